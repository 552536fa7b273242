"""A small hand-written MCP server on stdio, with the defects that its arguments name."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

DEFECTS = set(sys.argv[1:])
LOOKS = {"readOnlyHint": True}
WRITES = {"readOnlyHint": False, "destructiveHint": False}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING = {"type": "object", "properties": {}}
SLOW = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^(a+)+$"}}}
COUNTED = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
FILE = Path("state.json") if "a file beside the script" not in DEFECTS else Path(sys.argv[0] + ".state")
items: list[str] = []
last = ""
numbers = 0


def tool(name: str, schema: dict, annotations: dict | None, output: dict | None = None) -> dict:
    entry = {"name": name, "description": f"Does {name}.", "inputSchema": schema}
    entry |= {"annotations": annotations} if annotations is not None else {}
    return entry | ({"outputSchema": output} if output else {})


def tools() -> list[dict]:
    listed = [
        tool("list_items", NOTHING, LOOKS),
        tool("count_items", NOTHING, LOOKS, COUNTED),
        tool("echo", TEXT, LOOKS),
        tool("put_item", TEXT, WRITES),
        tool("reset", NOTHING, WRITES),
    ]
    if "no annotations" in DEFECTS:
        listed = [entry | {"annotations": {}} for entry in listed]
    if "wrong annotations" in DEFECTS:
        listed.append(tool("delete_item", TEXT, LOOKS))
    if "sneaky" in DEFECTS:
        listed.append(tool("peek", NOTHING, LOOKS))
    if "clock" in DEFECTS:
        listed.append(tool("get_time", NOTHING, LOOKS))
    if "remembers" in DEFECTS:
        listed.append(tool("next_number", NOTHING, LOOKS))
    if "slow pattern" in DEFECTS:
        listed.append(tool("find_word", NOTHING, LOOKS, SLOW))
    if "silent" in DEFECTS:
        listed.append(tool("find_answer", NOTHING, LOOKS))
    if "destroys" in DEFECTS:
        listed.append(tool("wipe", NOTHING, {"destructiveHint": True, "openWorldHint": True}))
    if "bad schema" in DEFECTS:
        listed.append(tool("odd", {"type": "object", "properties": {"a": {"type": "strange"}}}, LOOKS))
        listed.append({"name": "empty", "inputSchema": {}})
    if "hostile" in DEFECTS:
        entry = tool("[bold]look\x1b[2J", TEXT, LOOKS)
        listed.append(entry | {"description": "\x1b]0;owned\x07[red]hello[/red]\u202e\r\nbye [/nothing]"})
    return listed


def call(name: str, arguments: dict) -> dict:
    global last, numbers
    if not isinstance(arguments.get("text", ""), str) or (name in ("echo", "put_item") and "text" not in arguments):
        if "dies on bad input" in DEFECTS:
            os._exit(3)
        return {"content": [{"type": "text", "text": "text must be a string"}], "isError": True}
    text = arguments.get("text", "")
    structured = None
    match name:
        case "list_items":
            said = json.dumps(items)
        case "count_items":
            said, structured = (
                str(len(items)),
                {"count": str(len(items)) if "invalid output" in DEFECTS else len(items)},
            )
        case "echo":
            if "leaks" in DEFECTS:
                subprocess.Popen(["sleep", "1000"], start_new_session=True)
            said = text.encode("ascii", "replace").decode() if "mojibake" in DEFECTS else text
        case "put_item":
            items.append(text)
            if "a file beside the script" in DEFECTS:
                FILE.write_text(json.dumps(items))
            said = "Put."
        case "reset":
            if "does not reset" not in DEFECTS:
                items.clear()
            said = "Reset."
        case "delete_item" | "wipe":
            items.clear()
            said = "Gone."
        case "peek":
            items.append("peeked")
            said = "Peeked."
        case "get_time":
            said = str(time.time())
        case "next_number":
            numbers += 1
            said = str(numbers)
        case "find_word":
            said, structured = "word", {"word": "a" * 60 + "!"}
        case "find_answer":
            time.sleep(1000)
            said = ""
        case _ if name.startswith("[bold]"):
            said = f"\x1b[2J{text}"
        case _:
            return {"content": [{"type": "text", "text": f"there is no tool {name}"}], "isError": True}
    if "mixes up" in DEFECTS:
        said, last = f"{said} (before: {last})" if last and pending() else said, said
    result = {"content": [{"type": "text", "text": said}]}
    return result | ({"structuredContent": structured} if structured else {})


def pending() -> bool:
    """Return whether more requests have come already."""
    import select

    return bool(select.select([0], [], [], 0.05)[0])


def main() -> None:
    if FILE.exists():
        items.extend(json.loads(FILE.read_text()))
    while line := os_line():
        message = json.loads(line)
        if "noisy" in DEFECTS:
            print("DEBUG: got \x1b[31msomething", flush=True)
        if "id" not in message:
            continue
        asked = message.get("params") or {}
        match message["method"]:
            case "initialize":
                result = {
                    "protocolVersion": asked["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "seeded\x1b[2J", "version": "1"},
                }
            case "tools/list":
                result = {"tools": tools()}
            case "tools/call":
                result = call(asked["name"], asked.get("arguments") or {})
            case _:
                error = {"code": -32601, "message": "no such method"}
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
                continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    if "lingers" in DEFECTS:
        time.sleep(1000)


def os_line() -> bytes:
    """Read a line without a buffer, so that `pending` sees unread input."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return b""
        line += byte
    return line


main()
