"""An MCP server on stdio whose one tool takes a while, as one that asks something over a network would."""

import anyio
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

CALL_SECONDS = 0.3

server = MCPServer("slow", log_level="WARNING")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
async def add(a: float, b: float) -> str:
    """Add two numbers."""
    await anyio.sleep(CALL_SECONDS)
    return f"{a + b:g}"


if __name__ == "__main__":
    server.run("stdio")
