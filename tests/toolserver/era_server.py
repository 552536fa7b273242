"""A handwritten MCP server of one era of the protocol: `era_server.py MODE [PORT]`, on stdio or over streamable HTTP.

MODE is "older" (a handshake; knows no other method), "newer" (2026-07-28, and refuses the handshake), or one of the
misbehaviours below. Every request is noted on stderr by its method.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

MODE = sys.argv[1]
NEWER = "2026-07-28"
META = "io.modelcontextprotocol/"
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "default": "Ada"}, "sure": {"type": "boolean", "default": True}},
    "required": ["name"],
}
UNANSWERABLE = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TASKS: dict[str, dict] = {}
COUNTS: dict[str, int] = {}
"""Handle to the number of its calls: state of the newer era, which no session holds."""
ANSWERS: "Queue[dict]" = Queue()
"""Answers of the client to requests of the older era."""


class Wrong(Exception):
    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(code, message)
        self.error = {"code": code, "message": message} | ({"data": data} if data is not None else {})


def tool(name: str, schema: dict = TEXT) -> dict:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema}


STATE = "ghp_0123456789abcdefABCDEF0123456789abcd"
"""Looks like a credential, and must come back as it is."""
REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
BAD_HEADER = {"type": "object", "properties": {"list": {"type": "array", "x-mcp-header": "No Header"}}}
NAMES = (
    "open",
    "count",
    "echo",
    "ask",
    "ask-much",
    "ask-on",
    "sample",
    "wait",
    "wait-and-ask",
    "fail-later",
    "never-done",
    "odd-result",
)
TOOLS = [tool(name) for name in NAMES]
if MODE not in ("older", "older-results"):
    TOOLS += [tool("where", REGION), tool("bad-header", BAD_HEADER)]


def text(words: str) -> dict:
    return {"content": [{"type": "text", "text": words}]}


def form(schema: dict, message: str = "Who are you?") -> dict:
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def said(answer: dict | None) -> str:
    answer = answer or {}
    return f"{answer.get('action')} {json.dumps(answer.get('content'), sort_keys=True)}"


def newer_call(params: dict, headers: dict[str, str] | None) -> dict:
    name, arguments = params["name"], params.get("arguments") or {}
    answers, state = params.get("inputResponses"), params.get("requestState")
    capabilities = params["_meta"][f"{META}clientCapabilities"]
    match name:
        case "open":
            handle = os.urandom(4).hex()
            COUNTS[handle] = 0
            return text(handle)
        case "count":
            COUNTS[arguments["text"]] += 1
            return text(str(COUNTS[arguments["text"]]))
        case "ask" if answers is None:
            return {"resultType": "input_required", "inputRequests": {"who": form(FORM)}, "requestState": "first"}
        case "ask" if state == "first":  # a second round, which keeps the first answer in its state
            asks = {"more": form(UNANSWERABLE, "And what else?")}
            return {
                "resultType": "input_required",
                "inputRequests": asks,
                "requestState": STATE + json.dumps(answers["who"]),
            }
        case "ask":
            return text(f"{said(json.loads(state.removeprefix(STATE)))}, {said(answers['more'])}")
        case "ask-much":
            asks = {str(number): form(FORM) for number in range(1000)}
            return {"resultType": "input_required", "inputRequests": asks}
        case "ask-on":
            return {"resultType": "input_required", "inputRequests": {"who": form(FORM)}}
        case "sample":
            return {"resultType": "input_required", "inputRequests": {"model": {"method": "sampling/createMessage"}}}
        case "wait" | "wait-and-ask" | "fail-later" | "never-done":
            if f"{META}tasks" not in capabilities.get("extensions", {}):
                raise Wrong(-32021, "this takes long")
            identity = f"task-{len(TASKS)}"
            TASKS[identity] = {"name": name, "looks": 0, "text": arguments.get("text", "")}
            return {"resultType": "task", **task(identity, "working")}
        case "odd-result":
            return {"resultType": "poem"} | text("roses are red")
        case "where":
            if headers is not None and headers.get("mcp-param-region") != arguments.get("region"):
                raise Wrong(-32020, "the header Mcp-Param-Region does not match")
            return text(str(arguments.get("region")))
    return text(str(arguments.get("text", "")))


def task(identity: str, status: str, **more: object) -> dict:
    return {"taskId": identity, "status": status, "ttlMs": None, "pollIntervalMs": 20, **more}


def look_at(identity: str) -> dict:
    kept = TASKS.get(identity)
    if kept is None:
        raise Wrong(-32602, "Task not found")
    kept["looks"] += 1
    if kept["name"] == "never-done" or kept["looks"] < 3:
        return task(identity, "working")
    if kept["name"] == "fail-later":
        return task(identity, "failed", error={"code": -32603, "message": "the disk is full"})
    if kept["name"] == "wait-and-ask" and "answer" not in kept:
        return task(identity, "input_required", inputRequests={"who": form(FORM)})
    return task(identity, "completed", result=text(said(kept["answer"]) if "answer" in kept else kept["text"]))


def newer(method: str, params: dict, headers: dict[str, str] | None) -> dict:
    if method == "initialize":
        raise Wrong(-32022, "There is no handshake any more.", {"supported": [NEWER], "requested": "2025-11-25"})
    meta = params.get("_meta") or {}
    if meta.get(f"{META}protocolVersion") != NEWER or f"{META}clientCapabilities" not in meta:
        raise Wrong(-32602, "the envelope is missing")
    if headers is not None:
        named = params.get("name") or params.get("taskId")
        found = (headers.get("mcp-protocol-version"), headers.get("mcp-method"), headers.get("mcp-name"))
        if found != (NEWER, method, named):
            raise Wrong(-32020, f"the headers say {found}")
    match method:
        case "server/discover":
            info = {f"{META}serverInfo": {"name": "era", "version": "2"}}
            capabilities = {"tools": {}, "extensions": {f"{META}tasks": {}}}
            return {"supportedVersions": [NEWER], "capabilities": capabilities, "_meta": info}
        case "tools/list" if MODE == "claims":
            raise Wrong(-32600, "Send initialize first.")
        case "tools/list":
            return {"tools": TOOLS, "ttlMs": 0, "cacheScope": "public"}
        case "tools/call":
            return newer_call(params, headers)
        case "tasks/get":
            return look_at(params["taskId"])
        case "tasks/update":
            TASKS[params["taskId"]]["answer"] = params["inputResponses"]["who"]
            return {}
        case "tasks/cancel":
            del TASKS[params["taskId"]]
            return {}
    raise Wrong(-32601, f"There is no method {method}.")


def older(method: str, params: dict, ask: "callable") -> dict:
    match method:
        case "initialize":
            version = NEWER if MODE == "shakes-hands-anew" else params["protocolVersion"]
            return {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "era", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call" if params["name"] == "ask":
            return text(said(ask(form(FORM))))
        case "tools/call" if MODE == "older-results":
            return {"resultType": "input_required", "inputRequests": {"who": form(FORM)}}
        case "tools/call":
            return text(str((params.get("arguments") or {}).get("text", "")))
        case "server/discover" if MODE == "future":
            return {"supportedVersions": ["2031-01-01"], "capabilities": {}}
    raise Wrong(-32601, f"There is no method {method}.")


def reply(message: dict, headers: dict[str, str] | None, ask: "callable") -> dict:
    method, params = message["method"], message.get("params") or {}
    print(method, file=sys.stderr, flush=True)
    base = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        if MODE in ("newer", "claims"):
            return base | {"result": {"resultType": "complete"} | newer(method, params, headers)}
        return base | {"result": older(method, params, ask)}
    except Wrong as wrong:
        return base | {"error": wrong.error}


def on_stdio() -> None:
    def ask(request: dict) -> dict:
        print(json.dumps({"jsonrpc": "2.0", "id": "question", **request}), flush=True)
        return json.loads(sys.stdin.readline()).get("result")

    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "server/discover" and MODE == "exits":
            os._exit(1)
        if (
            "id" in message
            and "method" in message
            and not (MODE == "silent" and message["method"] == "server/discover")
        ):
            print(json.dumps(reply(message, None, ask)), flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(405, b"")

    do_DELETE = do_GET

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "method" not in message:
            ANSWERS.put(message.get("result"))
        if "method" not in message or "id" not in message:
            self._send(202, b"")
            return
        if MODE == "older" and message["method"] != "initialize" and "mcp-session-id" not in self.headers:
            print(message["method"], file=sys.stderr, flush=True)
            self._send(400, b"There is no session.", "text/plain")
            return
        if message["method"] == "tools/call" and message["params"]["name"] == "ask" and MODE == "older":
            self._stream(message)
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = reply(message, headers, None)
        self._send(400 if "error" in answer else 200, json.dumps(answer).encode())

    def _stream(self, message: dict) -> None:
        """Answer in an event stream, with a question before the result."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

        def send(event: dict) -> None:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

        def ask(request: dict) -> dict:
            send({"jsonrpc": "2.0", "id": "question", **request})
            return ANSWERS.get(timeout=60)

        send(reply(message, None, ask))
        self.close_connection = True

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if MODE == "older":
            self.send_header("mcp-session-id", "one")
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
        server.serve_forever()
    on_stdio()
