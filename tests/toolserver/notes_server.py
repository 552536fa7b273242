"""A stateful server: notes by name, in memory."""

import os

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("notes", log_level="ERROR")
notes: dict[str, str] = {}
resets = 0


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def read_note(name: str) -> str:
    """The text of a note."""
    if name not in notes:
        raise ToolError(f"there is no note {name}")
    return notes[name]


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def count() -> dict[str, int]:
    """Count the notes and the resets, and give the process id."""
    return {"notes": len(notes), "resets": resets, "pid": os.getpid()}


@server.tool()
def write_note(name: str, text: str) -> str:
    """Write a note."""
    notes[name] = text
    return "Written."


@server.tool()
def reset(begin: dict[str, str] | None = None) -> str:
    """Put everything back."""
    global resets
    if begin and "broken" in begin:
        raise ToolError("it cannot begin like that")
    resets += 1
    notes.clear()
    notes.update(begin or {})
    return "Reset."


server.run("stdio")
