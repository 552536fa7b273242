"""A small handwritten MCP server on stdio that misbehaves in the way that its first argument names."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODE = sys.argv[1]
ECHO = {
    "name": "echo",
    "description": "Gives back what it got.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},
}
WRITE = {"name": "write", "description": "Changes something.", "inputSchema": {"type": "object", "properties": {}}}


def tools(cursor: str | None) -> dict:
    match MODE:
        case "no-tools":
            return {"tools": []}
        case "bad-schema":
            return {"tools": [{"name": "bad", "inputSchema": {}}, ECHO, {"inputSchema": {"type": "object"}}, ECHO]}
        case "pages":
            page = int(cursor or 0)
            entry = ECHO | {"name": f"echo-{page}"}
            return {"tools": [entry], "nextCursor": str(page + 1)} if page < 3 else {"tools": [entry]}
        case "endless-pages":
            return {"tools": [ECHO], "nextCursor": "same"}
        case "read-only" | "dies-once":
            return {"tools": [ECHO]}
    return {"tools": [ECHO, WRITE]}


def call(name: str, arguments: dict) -> dict | None:
    text = str(arguments.get("text", ""))
    if text == "exit":
        print("I was told to go.", file=sys.stderr, flush=True)
        os._exit(3)
    if MODE == "dies-once" and not Path(sys.argv[2]).exists():
        Path(sys.argv[2]).touch()
        os._exit(3)
    if text == "never":
        return None
    if text.startswith("sleep"):
        time.sleep(float(text.split()[1]))
    if name == "broken":
        raise ValueError("there is no such tool")
    return {"content": [{"type": "text", "text": f"{text}|{os.getpid()}" if text == "pid" else text}]}


def answer(method: str, params: dict) -> dict | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "0"},
        }
    if method == "tools/list":
        return tools(params.get("cursor"))
    if method == "ping":
        return {}
    if method != "tools/call":
        raise ValueError("there is no such method")
    return call(params["name"], params.get("arguments") or {})


def main() -> None:
    if MODE == "dies-at-start":
        print("first line\nthe database is not there", file=sys.stderr)
        sys.exit(1)
    if MODE == "over-http":
        print("INFO:     Uvicorn running on http://0.0.0.0:8123 (Press CTRL+C to quit)", file=sys.stderr, flush=True)
        time.sleep(1000)
    if MODE == "over-sse":
        print("Server will be available at http://localhost:3000/sse", file=sys.stderr, flush=True)
        time.sleep(1000)
    if MODE == "mute":
        time.sleep(1000)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(
            [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"],
            start_new_session=True,
        )
    if MODE == "environment":
        print(json.dumps(dict(os.environ)), file=sys.stderr, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if MODE == "chatty":
            print("this is no JSON-RPC", flush=True)
        if "id" not in request:
            continue
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            result = answer(request["method"], request.get("params") or {})
        except ValueError as error:
            print(json.dumps(reply | {"error": {"code": -32602, "message": str(error)}}), flush=True)
            continue
        if result is not None:
            print(json.dumps(reply | {"result": result}), flush=True)
    if MODE == "stubborn":
        time.sleep(1000)


main()
