"""An MCP server on stdio with three boards, to which a tool adds others, without an SDK. `begin` starts anew."""

import json
import sys

TEXT = {"type": "string"}
COLOURS = {"Harbour": "red", "Meadow": "green", "Summit": "white"}


def tool(name, about, /, **parameters):
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"name": name, "description": about, "inputSchema": schema, "annotations": {}}


TOOLS = [
    tool("list_boards", "List all boards."),
    tool("add_board", "Create a new board.", name={**TEXT, "description": "Name of the new board"}),
    tool("begin", "Start anew."),
]
boards = dict(COLOURS)


def call(name, arguments):
    if name == "begin":
        boards.clear()
        boards.update(COLOURS)
    if name == "add_board":
        boards[arguments["name"]] = "grey"
        return json.dumps({"status": "created", "name": arguments["name"]})
    return json.dumps({"boards": [{"name": name, "colour": colour} for name, colour in boards.items()]})


def answer(method, params):
    if method == "initialize":
        about = {"name": "boards", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": call(params["name"], params["arguments"])}], "isError": False}
    return {} if method == "ping" else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        result = answer(request["method"], request.get("params") or {})
        said = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}), flush=True)
