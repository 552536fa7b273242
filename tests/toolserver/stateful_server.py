"""A small handwritten, stateful MCP server on stdio; all of its tools may be repeated.

A call with `hang` is never answered. The first argument selects a variant: `slow_start` starts slowly, `down FILE`
does not start while the file exists and counts the attempts in FILE.tries, `destroys` annotates its tool `write` as
destructive, `grows FILE` has an additional tool if the file exists, `falters FILE` fails at its second to fifth start,
counted in the file, `nested` has a tool with `__` in its name, and `mute FILE` has a resource that it does not list
while the file exists.
"""

import json
import os
import sys
import time

WRITES = {"idempotentHint": True}
TOOLS = {"look": {"readOnlyHint": True}, "write": WRITES, "reset": WRITES}
value = ""

match sys.argv[1:]:
    case ["slow_start"]:
        time.sleep(0.3)
    case ["down", file] if os.path.exists(file):  # noqa: PTH110
        with open(f"{file}.tries", "a") as tries:  # noqa: PTH123
            tries.write("tried\n")
        sys.exit("the database is away")
    case ["grows", file] if os.path.exists(file):  # noqa: PTH110
        TOOLS["erase"] = {}
    case ["falters", file]:
        with open(file, "a+b") as starts:  # noqa: PTH123
            starts.write(b".")
            if 2 <= starts.tell() <= 5:
                sys.exit("not today")
    case ["nested"]:
        TOOLS["deep__look"] = {"readOnlyHint": True}
    case ["destroys"]:
        WRITES["destructiveHint"] = True
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
                "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "stateful", "version": "1"},
            }
        case "tools/list", _:
            schema = {"type": "object", "properties": {}}
            result = {"tools": [{"name": n, "inputSchema": schema, "annotations": a} for n, a in TOOLS.items()]}
        case "resources/list", _:
            if sys.argv[1:2] == ["mute"] and os.path.exists(sys.argv[2]):  # noqa: PTH110
                continue
            result = {"resources": [{"uri": "it://one", "name": "one"}] if "mute" in sys.argv else []}
        case "resources/templates/list", _:
            result = {"resourceTemplates": []}
        case _, name:
            if "hang" in given:
                continue
            if name != "look":
                value = given.get("text", "")
            text = json.dumps({"value": value, "pid": os.getpid()})
            result = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
