"""An MCP server whose one tool takes a second: `slow_server.py --transport stdio|sse|streamable-http --port PORT`."""

import argparse

import anyio
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("slow", log_level="WARNING")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
async def multiply(a: float, b: float) -> str:
    """Multiply two numbers in a second."""
    await anyio.sleep(1.0)
    return f"{a * b:g}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", default="stdio")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.transport == "stdio":
        server.run("stdio")
    else:
        server.run(options.transport, host="127.0.0.1", port=options.port)
