"""A small handwritten MCP server on stdio that reports progress and changes its list of tools.

`changing_http.py` offers the same over HTTP.
"""

import json
import sys
import threading
import time
from itertools import count
from typing import Any


def tool(name: str, description: str = "", **annotations: bool) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, "annotations": annotations}


TOOLS = [tool("echo", readOnlyHint=True), *map(tool, ("write", "work", "grow", "announce", "listings"))]


class Service:
    """The server's behaviour on any transport. `send` sends a message to the client."""

    def __init__(self) -> None:
        self.tools = list(TOOLS)
        self.listings = 0
        self.calls: list[str] = []
        self.refuses: set[str] = set()
        """Methods that get an error."""
        self.silent = False
        """True while no request is answered."""

    def handle(self, request: dict[str, Any], send: Any) -> None:
        if "id" not in request or self.silent:
            return
        method, params = request["method"], request.get("params") or {}
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        if method in self.refuses:
            send(reply | {"error": {"code": -32000, "message": f"no {method} today"}})
            return
        send(reply | {"result": self.result(method, params, send)})

    def result(self, method: str, params: dict[str, Any], send: Any) -> dict[str, Any]:
        match method:
            case "initialize":
                return {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": True}, "resources": {}},
                    "serverInfo": {"name": "changing", "version": "0"},
                }
            case "tools/list":
                self.listings += 1
                return {"tools": self.tools}
            case "resources/list":
                page = int(params.get("cursor") or 0)
                more = {"nextCursor": str(page + 1)} if page < 2 else {}
                return {"resources": [{"uri": f"note://{page}", "name": "a note"}, {"name": "no uri"}], **more}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": "as it is", "of its own": 1}]}
            case "tools/call":
                self.calls.append(params["name"])
                text = self.call(params["name"], params.get("arguments") or {}, params.get("_meta") or {}, send)
                return {"content": [{"type": "text", "text": text}]}
        return {}

    def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any], send: Any) -> str:
        match name:
            case "work":
                self.work(meta.get("progressToken"), send, **arguments)
            case "grow":
                self.tools = [*self.tools, tool(f"more{len(self.tools)}")]
                send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            case "announce":
                for _ in range(arguments["times"]):
                    send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            case "listings":
                return str(self.listings)
        return str(arguments.get("text", "done"))

    def work(self, token: Any, send: Any, seconds: float, report_for: float = 1000) -> None:
        started = time.monotonic()
        for step in count():
            passed = time.monotonic() - started
            if passed > seconds:
                return
            if passed < report_for and token is not None:
                progress = {"progressToken": token, "progress": step}
                send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
            time.sleep(0.1)


def main() -> None:
    service, one_at_a_time = Service(), threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with one_at_a_time:
            print(json.dumps(message), flush=True)

    for line in sys.stdin:
        threading.Thread(target=service.handle, args=(json.loads(line), send), daemon=True).start()


if __name__ == "__main__":
    main()
