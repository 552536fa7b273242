"""A small handwritten MCP server on stdio that knows a secret and returns results of every kind."""

import json
import os
import sys

SCHEMA = {"type": "object", "properties": {}}
READS = {"readOnlyHint": True}
TOOLS = {"echo": READS, "tick": READS, "login": READS, "pages": READS, "put": {}, "look": READS, "reset": {}, "die": {}}
if "--other-tools" in sys.argv:
    TOOLS["more"] = {}
held, ticks = "", 0


def result(name, given):
    global held, ticks
    match name:
        case "echo" if not given:
            return {"content": [{"type": "text", "text": "nothing to echo"}], "isError": True}
        case "echo":
            text, structured = given.get("text"), given
            return {"content": [{"type": "text", "text": str(text)}], "structuredContent": structured}
        case "tick":
            ticks += 1
            text = f"tick {ticks}"
        case "login":
            token = os.environ["API_TOKEN"]
            fields = {"token": token, "said": json.dumps({"inner": token}), "place": os.environ["PLACE"]}
            return {"content": [{"type": "text", "text": f"your token is {token}"}], "structuredContent": fields}
        case "pages":
            text = "A page of text. " * 500
        case "reset" | "put":
            held = given.get("text", "")
            text = "done"
        case "look":
            text = f"held: {held}"
        case "die":
            os._exit(3)
    return {"content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    asked = message.get("params", {})
    match message["method"]:
        case "initialize":
            answer = {
                "protocolVersion": asked["protocolVersion"],
                "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "recorded", "version": "1"},
            }
        case "tools/list":
            listed = [{"name": n, "inputSchema": SCHEMA, "annotations": a} for n, a in TOOLS.items()]
            answer = {"tools": [{"name": "bad", "inputSchema": {}}, *listed]}
        case "resources/list":
            answer = {"resources": [{"uri": "note://1", "name": "one"}]}
        case "ping":
            answer = {}
        case _:
            answer = result(asked["name"], asked.get("arguments", {}))
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)
