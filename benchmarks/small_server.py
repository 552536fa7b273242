"""A small MCP server on stdio, of a few megabytes: `python -S small_server.py SECONDS`; its one tool takes so long.

It speaks the protocol by hand, since the SDK alone takes 40 MB, and a thousand of these must fit one machine.
"""

import json
import sys
import time

TOOL = {
    "name": "add",
    "description": "Add two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
    "annotations": {"readOnlyHint": True},
}


def answer(method, params, seconds):
    """Return the result of a request; None for a method that is not here."""
    if method == "initialize":
        about = {"name": "small", "version": "1.0.0"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        time.sleep(seconds)
        total = params["arguments"]["a"] + params["arguments"]["b"]
        return {"content": [{"type": "text", "text": f"{total:g}"}], "isError": False}
    return {} if method == "ping" else None


def main():
    seconds = float(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        said = {"jsonrpc": "2.0", "id": asked["id"]}
        result = answer(asked["method"], asked.get("params", {}), seconds)
        if result is None:
            said["error"] = {"code": -32601, "message": f"there is no method {asked['method']}"}
        else:
            said["result"] = result
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
