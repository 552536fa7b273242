"""A server with a tool, resources of several kinds and prompts."""

import base64

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("library", log_level="CRITICAL")  # a traceback, drawn for each error, takes a quarter of a second


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def read_resource(name: str) -> str:
    """The server's own tool of this name."""
    return f"own {name}"


@server.resource("library://rules", name="rules", mime_type="text/plain")
def rules() -> str:
    """The rules of the house."""
    return "Be quiet."


@server.resource("library://stamp", name="stamp", mime_type="image/png")
def stamp() -> bytes:
    return base64.b64decode("aGVsbG8=")


@server.resource("library://books/{number}")
def book(number: str) -> str:
    """A book by its number."""
    if number == "0":
        raise ValueError("there is no such book")
    return f"The book number {number}."


@server.prompt()
def review(title: str, tone: str = "kind") -> str:
    """Asks for a review."""
    return f"Write a {tone} review of {title}."


server.run("stdio")
