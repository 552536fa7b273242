"""Books tables. It asks its user for what a call leaves out."""

from typing import Annotated, Literal

from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Elicit, Resolve
from pydantic import BaseModel, Field

server = MCPServer("bookings", log_level="ERROR")


class Booking(BaseModel):
    guests: int = Field(title="Number of guests")
    date: str
    place: Literal["inside", "terrace"] = "inside"


def ask(restaurant: str) -> Elicit[Booking]:
    return Elicit(f"A table at {restaurant}?", Booking)


@server.tool()
def book(restaurant: str, wanted: Annotated[ElicitationResult[Booking], Resolve(ask)]) -> str:
    """Book a table."""
    if not isinstance(wanted, AcceptedElicitation):
        return f"Nothing was booked: {wanted.action}."
    return f"Booked for {wanted.data.guests} on {wanted.data.date}, {wanted.data.place}."


server.run("stdio")
