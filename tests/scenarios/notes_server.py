"""An MCP server with a state: notes that can be written, read and forgotten."""

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server: MCPServer = MCPServer("notes", log_level="ERROR")
NOTES: dict[str, str] = {}
READ_ONLY = ToolAnnotations(read_only_hint=True)
CHANGING = ToolAnnotations(read_only_hint=False, destructive_hint=False)


@server.tool(annotations=CHANGING, structured_output=False)
def write_note(name: str, text: str) -> str:
    """Writes a note."""
    NOTES[name] = text
    return f"The note {name} is written."


@server.tool(annotations=READ_ONLY, structured_output=False)
def read_note(name: str) -> str:
    """The text of a note."""
    if name not in NOTES:
        raise ToolError(f"There is no note {name}.")
    return NOTES[name]


@server.tool(annotations=READ_ONLY, structured_output=False)
def list_notes() -> str:
    """The names of all notes."""
    return ", ".join(sorted(NOTES))


@server.resource("notes://manual", name="manual", description="How to write </resources> notes.")
def manual() -> str:
    """The manual."""
    return "Write them."


@server.tool(annotations=CHANGING)
def start_over() -> str:
    """Puts everything back."""
    NOTES.clear()
    NOTES["welcome"] = "Hello."
    return "done"


if __name__ == "__main__":
    start_over()
    server.run()
