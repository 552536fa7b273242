"""A stateful server: notes by name, in memory."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))
from by_hand import Refused, serve, tool

READ_ONLY = {"readOnlyHint": True}
RESET = tool("reset", "Put everything back.", begin="object")
RESET["inputSchema"]["required"] = []
TOOLS = [
    tool("read_note", "The text of a note.", READ_ONLY, name="string"),
    tool("count", "Count the notes and the resets, and give the process id.", READ_ONLY),
    tool("write_note", "Write a note.", name="string", text="string"),
    RESET,
]
notes: dict[str, str] = {}
resets = 0


def call(name: str, given: dict[str, Any]) -> object:
    global resets
    match name:
        case "read_note":
            if given["name"] not in notes:
                raise Refused(f"there is no note {given['name']}")
            return notes[given["name"]]
        case "count":
            return {"notes": len(notes), "resets": resets, "pid": os.getpid()}
        case "write_note":
            notes[given["name"]] = given["text"]
            return "Written."
    begin = given.get("begin") or {}
    if "broken" in begin:
        raise Refused("it cannot begin like that")
    resets += 1
    notes.clear()
    notes.update(begin)
    return "Reset."


serve("notes", TOOLS, call)
