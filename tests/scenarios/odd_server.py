"""An MCP server with the tools that an explorer must treat with care. Argument: a file that changing tools write to."""

import random
import sys
import time
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server: MCPServer = MCPServer("odd", log_level="ERROR")
BOOKS = {"b-17": "Emma", "b-23": "Ulysses", "b-42": "Kim", "b-57": "Dune", "b-61": "Hunger"}
READ_ONLY = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READ_ONLY)
def list_books() -> str:
    """Lists the ids of all books."""
    return "\n".join(f"- {book}" for book in BOOKS)


@server.tool(annotations=READ_ONLY, structured_output=False)
def title_of(book_id: str) -> str:
    """The title of a book."""
    if book_id not in BOOKS:
        raise ToolError(f"There is no book {book_id}.")
    return BOOKS[book_id]


@server.resource("book://emma/first-page", name="first page of Emma")
def first_page() -> str:
    """A resource that no tool's result ever shows."""
    return "Emma Woodhouse, handsome, clever, and rich"


@server.tool(annotations=READ_ONLY, structured_output=False)
def open_page(uri: str) -> str:
    """Opens a page."""
    if uri != "book://emma/first-page":
        raise ToolError(f"There is no page {uri}.")
    return "handsome, clever, and rich"


@server.tool(structured_output=False)
def double(number: float) -> float:
    """Twice a number."""
    return 2 * number


@server.tool(annotations=READ_ONLY)
def roll_dice(sides: int) -> int:
    """Rolls dice."""
    return random.randrange(10**9)


@server.tool(annotations=READ_ONLY)
def now(zone: str) -> str:
    """Tells the time."""
    return f"{zone}: {int(time.time())}"


@server.tool(annotations=READ_ONLY, structured_output=False)
def stamp(shelf: str) -> str:
    """Stamps a shelf."""
    return f"The shelf {shelf} was stamped at {time.strftime('%H:%M:%S')}."


@server.tool(annotations=READ_ONLY)
async def think(topic: str) -> str:
    """Takes its time."""
    await anyio.sleep(30)
    return topic


@server.tool(annotations=READ_ONLY, structured_output=False)
def settings(section: str) -> str:
    """Shows settings."""
    return f"{section}: SERVICE_TOKEN = 12345-abcdef"


@server.tool()
def delete_book(book_id: str) -> str:
    """Deletes a book."""
    Path(sys.argv[1]).write_text("deleted")
    return "gone"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def tidy(shelf: str) -> str:
    """Throws things away."""
    Path(sys.argv[1]).write_text("tidied")
    return "tidy"


if __name__ == "__main__":
    server.run("stdio")
