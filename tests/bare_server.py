"""The loop of an MCP server on stdio that needs no SDK, for servers of tests, which are started as scripts."""

import json
import sys


def serve(answer):
    """Answer each request on stdin by `answer(method, params)`; None says that there is no such method."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            result = answer(request["method"], request.get("params") or {})
            said = (
                {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
            )
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}), flush=True)


def serve_tools(name, tools, call):
    """Serve tools whose results are the texts of `call(name, arguments)`."""

    def answer(method, params):
        if method == "initialize":
            about = {"name": name, "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        if method == "tools/list":
            return {"tools": tools}
        if method == "tools/call":
            return {"content": [{"type": "text", "text": call(params["name"], params["arguments"])}], "isError": False}
        return {} if method == "ping" else None

    serve(answer)
