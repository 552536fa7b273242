"""A small MCP server on stdio, without an SDK so that it starts in 40 ms: `state_server.py KIND [PLACE]`.

KIND is where it keeps its notes: files (read again at each call), relative (the same, below the working directory),
cached (read once, written through), database (an open one), process, outside (another process, at the port PLACE), or
what it keeps instead: nothing, nothing with a slow first call (lazy) or one slow tool (waiting), nothing that a name
tells (sums), logs, random answers, coins (short random answers), a switch, a count of its own calls, files named .sht
(sheets), notes in memory with an overview beside their list (overview).
"""

import json
import random
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bare_server import serve

KIND, PLACE = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ".")
BIRTH = time.time_ns()
TEXT = {"type": "string"}


def tool(name, *parameters, **annotations):
    schema = {"type": "object", "properties": dict.fromkeys(parameters, TEXT), "required": list(parameters)}
    return {"name": name, "description": name.replace("_", " "), "inputSchema": schema, "annotations": annotations}


NOTES = [tool("list_notes"), tool("get_birth"), tool("add_note", "title"), tool("delete_note", "title")]
TOOLS = {
    "nothing": [tool("get_length", "text"), tool("save_nothing", "text"), tool("repeat", "text")],
    "sums": [tool("add", "text"), tool("twice", "text"), tool("shout", "text")],
    "sheets": [tool("create_sheet", "filepath"), tool("read_sheet", "filepath"), tool("sheet_size", "filepath")],
    "lazy": [tool("get_length", "text"), tool("repeat", "text")],
    "waiting": [tool("get_length", "text"), tool("repeat", "text"), tool("get_length_later", "text")],
    "logs": [tool("get_length", "text"), tool("write_log", "text")],
    "random": [tool("list_numbers"), tool("create_number"), tool("roll")],
    "coins": [tool("get_length", "text"), *(tool(f"flip_coin_{number}") for number in range(24))],
    "switch": [tool("get_length", "text"), tool("toggle_lamp")],
    "counting": [tool("get_length", "text", readOnlyHint=True), tool("get_turn", readOnlyHint=True)],
    "overview": [*NOTES[:1], tool("get_overview"), *NOTES[2:]],
    "refusing": [tool("get_length", "text"), tool("update_secret", "password")],
}


class Memory:
    def __init__(self):
        self.kept = []

    def read(self):
        return list(self.kept)

    def write(self, notes):
        self.kept = notes


class File:
    def __init__(self, path):
        self.path = path

    def read(self):
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def write(self, notes):
        self.path.write_text(json.dumps(notes))


class Cached(File):
    notes = None

    def read(self):
        if self.notes is None:
            self.notes = super().read()
        return list(self.notes)

    def write(self, notes):
        self.notes = notes
        super().write(notes)


class Database:
    def __init__(self, path):
        import sqlite3

        self.open = sqlite3.connect(path, isolation_level=None)
        self.open.execute("CREATE TABLE IF NOT EXISTS notes (title TEXT)")

    def read(self):
        return [title for (title,) in self.open.execute("SELECT title FROM notes")]

    def write(self, notes):
        self.open.execute("DELETE FROM notes")
        self.open.executemany("INSERT INTO notes VALUES (?)", [(note,) for note in notes])


class Outside:
    def ask(self, message):
        with socket.create_connection(("127.0.0.1", int(str(PLACE)))) as channel, channel.makefile("rw") as stream:
            stream.write(json.dumps(message) + "\n")
            stream.flush()
            return json.loads(stream.readline())

    def read(self):
        return self.ask(None)

    def write(self, notes):
        self.ask(notes)


STORES = {
    "files": lambda: File(PLACE / "notes.json"),
    "relative": lambda: File(Path("notes.json")),
    "cached": lambda: Cached(PLACE / "notes.json"),
    "database": lambda: Database(PLACE / "notes.db"),
    "outside": Outside,
}
store = STORES.get(KIND, Memory)()
lamp, turn, lazy = False, 0, KIND == "lazy"


def sheet(name, path):
    if path.suffix != ".sht":
        return json.dumps({"错误": f"只支持 .sht 格式文件: {path}"})
    if name == "create_sheet":
        path.write_text(f"sheet {path.stem}")
        return f"Made the sheet {path.stem}."
    if not path.exists():
        return json.dumps({"错误": f"文件不存在: {path}"})
    return path.read_text() if name == "read_sheet" else str(path.stat().st_size)


def call(name, arguments):
    global lamp, turn, lazy
    if lazy:
        time.sleep(0.6)
        lazy = False
    text = arguments.get("text", "")
    if name == "get_length_later":
        time.sleep(0.6)
    if name.startswith("get_length"):
        return str(len(text))
    if name in ("save_nothing", "repeat"):
        return text
    if KIND == "sums":
        return {"add": f"{text}!", "twice": 2 * text, "shout": text.upper()}[name]
    if KIND == "sheets":
        return sheet(name, Path(arguments["filepath"]))
    if name == "write_log":
        with (PLACE / "calls.log").open("a") as log:
            log.write(f"{text}\n")
        return "written"
    if name in ("list_numbers", "create_number", "roll"):
        return str(random.random())
    if name.startswith("flip_coin"):
        return random.choice(["heads", "tails"])
    if name == "get_turn":
        turn += 1
        return f"turn {turn}"
    if name == "toggle_lamp":
        lamp = not lamp
        return "on" if lamp else "off"
    if name == "get_birth":
        return str(BIRTH)
    if name == "update_secret":
        raise ValueError("wrong password")
    notes = store.read()
    if name == "count_notes":
        return str(len(notes))
    if name == "get_overview":
        rights = {"write": True, "network": False, "can_be_given": ["network"]}
        return json.dumps({"owner": "User", "place": None, "rights": rights, "notes": notes, "count": len(notes)})
    if name == "list_notes":
        return json.dumps(notes)
    if name == "add_note":
        store.write([*notes, arguments["title"]])
        return f"added {arguments['title']}"
    if arguments["title"] not in notes:
        raise ValueError(f"there is no note {arguments['title']}; there are {', '.join(notes) or 'none'}")
    store.write([note for note in notes if note != arguments["title"]])
    return "deleted"


def answer(method, params):
    if method == "initialize":
        about = {"name": f"state {KIND}", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        more = [tool("count_notes")] if (PLACE / "more").exists() else []
        return {"tools": TOOLS.get(KIND, NOTES) + more}
    if method == "tools/call":
        try:
            text, failed = call(params["name"], params["arguments"]), False
        except ValueError as error:
            text, failed = str(error), True
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return {} if method == "ping" else None


serve(answer)
