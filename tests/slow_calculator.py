"""An MCP server on stdio whose one tool takes a while, as one that asks something over a network would.

Appends a JSON line for each call to the file that its argument names: the first number, when it came and when it went.
"""

import json
import sys
import time
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

CALL_SECONDS = 0.3

server = MCPServer("slow", log_level="WARNING")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
async def add(a: float, b: float) -> str:
    """Add two numbers."""
    came = time.monotonic()
    await anyio.sleep(CALL_SECONDS)
    if len(sys.argv) > 1:
        with Path(sys.argv[1]).open("a") as log:  # noqa: ASYNC230  # a line at once
            print(json.dumps([a, came, time.monotonic()]), file=log)
    return f"{a + b:g}"


if __name__ == "__main__":
    server.run("stdio")
