"""Offers the bundled notebook, a stateful server: every episode begins with the same notes.

It gives no phrases or samplers for its tools, so that tasks are generated for it as for any server.
"""

from collections.abc import Callable

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.scenario import Launch, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = "{bundled}/servers/node/mcp_notes/mcp_notes.mjs"


def launch(transport: str, *args: str) -> Launch:
    return Launch(command="node", args=(SCRIPT, "--transport", transport, *args))


@hookimpl
def register_servers(register: Callable[[ToolServer], None]) -> None:
    stdio = launch("stdio")
    register(
        ToolServer(
            "mcp_notes",
            "A notebook in memory: create, read, search, change, tag and delete notes. Needs Node.js 20 or newer.",
            {
                "stdio": StdioServer(command=stdio.command, args=stdio.args),
                "sse": SseServer(url="http://127.0.0.1:{port}/sse", launch=launch("sse", "--port", "{port}")),
                "streamable-http": StreamableHttpServer(
                    url="http://127.0.0.1:{port}/mcp", launch=launch("streamable-http", "--port", "{port}")
                ),
            },
            isolation="reset",
            reset_tool="reset_notes",
        )
    )
