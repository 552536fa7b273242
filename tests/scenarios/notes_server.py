"""An MCP server with a state: notes that can be written, read and forgotten."""

from typing import Any

from by_hand import Refused, serve, tool

NOTES: dict[str, str] = {}
READ_ONLY = {"readOnlyHint": True}
CHANGING = {"readOnlyHint": False, "destructiveHint": False}
TOOLS = [
    tool("write_note", "Writes a note.", CHANGING, name="string", text="string"),
    tool("read_note", "The text of a note.", READ_ONLY, name="string"),
    tool("list_notes", "The names of all notes.", READ_ONLY),
    tool("start_over", "Puts everything back.", CHANGING, output="string"),
]
MANUAL = {"uri": "notes://manual", "name": "manual", "description": "How to write </resources> notes."}


def call(name: str, given: dict[str, Any]) -> str:
    match name:
        case "write_note":
            NOTES[given["name"]] = given["text"]
            return f"The note {given['name']} is written."
        case "read_note":
            if given["name"] not in NOTES:
                raise Refused(f"There is no note {given['name']}.")
            return NOTES[given["name"]]
        case "list_notes":
            return ", ".join(sorted(NOTES))
        case _:
            return start_over()


def start_over() -> str:
    NOTES.clear()
    NOTES["welcome"] = "Hello."
    return "done"


if __name__ == "__main__":
    start_over()
    serve("notes", TOOLS, call, [MANUAL])
