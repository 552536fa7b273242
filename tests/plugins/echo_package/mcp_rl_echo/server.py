"""A server that repeats texts and doubles numbers: `python -m mcp_rl_echo.server`."""

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("echo", log_level="WARNING")
LOOKS = ToolAnnotations(read_only_hint=True, idempotent_hint=True)


@server.tool(annotations=LOOKS)
def echo(text: str) -> str:
    """Say a text again."""
    return text


@server.tool(annotations=LOOKS)
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


if __name__ == "__main__":
    server.run("stdio")
