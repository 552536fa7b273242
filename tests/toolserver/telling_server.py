"""A server that tells its secrets wherever a server can: `telling_server.py --transport T [--port N]`."""

import argparse
import base64
import json
import os
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent

parser = argparse.ArgumentParser()
parser.add_argument("--transport", default="stdio")
parser.add_argument("--port", type=int, default=0)
options = parser.parse_args()

KEY = os.environ["SERVICE_KEY"]
DSN = os.environ["DATABASE"]
PASSWORD = DSN.split(":")[2].split("@")[0]
server = MCPServer(f"telling {KEY}", instructions=f"Use {KEY}.", log_level="CRITICAL")


@server.tool(description=f"Needs {KEY}.")
def tell(what: str) -> CallToolResult:
    forms = {
        "plain": f"{KEY} {DSN} {PASSWORD}",
        "json": json.dumps({"inner": json.dumps({KEY: [DSN]})}),
        "base64": base64.b64encode(KEY.encode()).decode(),
        "header": f"Authorization: Bearer {KEY}",
        "strange": "postgres://ann:unheard-of@db/x, ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "settings": f"{os.environ['MODE']} {os.environ['COUNT']} {os.environ['PLACE']} {os.environ['REGION']}",
    }
    text = forms[what]
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content={"said": [text], KEY: 1})


@server.tool()
def fail() -> str:
    raise ToolError(f"refused: {KEY}")


@server.tool()
def write() -> str:
    """Writes to stderr, in pieces."""
    print(f"whole {KEY}", file=sys.stderr, flush=True)
    for piece in ("cut ", KEY[:7], KEY[7:], f" {PASSWORD}\nlast {KEY}"):
        sys.stderr.write(piece)
        sys.stderr.flush()
        time.sleep(0.02)
    return "written"


@server.resource("telling://secret", name=f"about {KEY}")
def secret() -> str:
    return f"The key is {KEY}."


@server.prompt(description=f"Asks with {KEY}.")
def ask() -> str:
    return f"Take {KEY}."


if options.transport == "stdio":
    server.run("stdio")
else:
    server.run(options.transport, host="127.0.0.1", port=options.port)
