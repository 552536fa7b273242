"""An MCP server whose tools stand in a JSON file (argument 1): name to input schema.

What a tool gives follows from its arguments alone. One call in five is refused, and results are numbers, texts, or
objects with an id, by the same arithmetic.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

SCHEMAS: dict[str, dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())


async def list_tools(context: Any, params: Any) -> ListToolsResult:
    hints = ToolAnnotations(read_only_hint=True)
    return ListToolsResult(tools=[Tool(name=n, input_schema=s, annotations=hints) for n, s in SCHEMAS.items()])


async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
    asked = json.dumps([params.name, params.arguments], sort_keys=True)
    digest = int(hashlib.sha256(asked.encode()).hexdigest(), 16)
    if digest % 5 == 0:
        return CallToolResult(content=[TextContent(text="That is not possible.")], is_error=True)
    kinds = [str(digest % 997), f"word{digest % 89}", json.dumps({"id": f"n{digest % 7}", "size": digest % 31})]
    return CallToolResult(content=[TextContent(text=kinds[digest % 3])])


async def serve() -> None:
    server: Server[Any] = Server("generated", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(serve)
