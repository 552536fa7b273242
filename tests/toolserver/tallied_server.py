"""A small handwritten MCP server on stdio that notes every call, with its process, in the file of its first argument.

`add` keeps a total in the process and `total` shows it; `count` says how many calls the file has, so it answers
differently each time; `nap` takes a while; `fail` reports an error.
"""

import json
import os
import sys
import time

total = 0
log = sys.argv[1]
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    asked = message.get("params", {})
    match message["method"]:
        case "initialize":
            result = {
                "protocolVersion": asked["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tallied", "version": "1"},
            }
        case "tools/list":
            result = {
                "tools": [{"name": name, "inputSchema": NUMBER} for name in ("add", "total", "count", "nap", "fail")]
            }
        case _:
            name = asked["name"]
            with open(log, "a") as calls:  # noqa: PTH123
                calls.write(f"{name} {os.getpid()}\n")
            if name == "nap":
                time.sleep(0.2)
            if name == "add":
                total += asked["arguments"]["number"]
            with open(log) as calls:  # noqa: PTH123
                text = str(len(calls.readlines()) if name == "count" else total)
            result = {"content": [{"type": "text", "text": text}], "isError": name == "fail"}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
