"""A small MCP server on stdio, by hand, with a state, whose tools all may be repeated.

A reset with `hang` is never answered, and `slow_start` as the first argument is a server that needs a while.
"""

import json
import os
import sys
import time

WRITES = {"idempotentHint": True}
TOOLS = {"look": {"readOnlyHint": True}, "write": WRITES, "reset": WRITES}
value = ""

if sys.argv[1:] == ["slow_start"]:
    time.sleep(0.3)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    asked = message.get("params", {})
    given = asked.get("arguments", {})
    match message["method"], asked.get("name"):
        case "initialize", _:
            result = {
                "protocolVersion": asked["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "stateful", "version": "1"},
            }
        case "tools/list", _:
            schema = {"type": "object", "properties": {}}
            result = {"tools": [{"name": n, "inputSchema": schema, "annotations": a} for n, a in TOOLS.items()]}
        case _, name:
            if "hang" in given:
                continue
            if name != "look":
                value = given.get("text", "")
            text = json.dumps({"value": value, "pid": os.getpid()})
            result = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
