"""Seats: how several players share one episode of a server, each with a side of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mcp_rl.toolserver.link import Link, WrappedLink

if TYPE_CHECKING:
    from mcp_rl.toolserver.tools.listing import Tool
    from mcp_rl.toolserver.tools.results import ToolResult


@dataclass(frozen=True)
class Seats:
    """A server's turns. Its results say in their structured content whose turn it is: `turn` names a seat, or is null
    once the game is over."""

    yields: tuple[str, ...]
    """Tools with which a seat makes its move. A successful call ends the seat's turn, or the episode if the game is
    over."""
    argument: str = "seat"
    """The argument of the tools that names the seat that calls. It is set for each seat, and no model sees it."""
    view: str | None = None
    """A tool that only reads. What it shows when a seat's turn comes is the answer to that seat's last move."""
    leave: str | None = None
    """A tool that no model sees, called for a seat that ends before the game is over. None: the episode is a fault."""
    source: str | None = None
    """The scenario source of games between seats, for `mcp-rl league`."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """Tools that no model sees."""
        return (self.leave,) if self.leave else ()

    @property
    def named(self) -> tuple[str, ...]:
        """Every tool that is named here."""
        return tuple(name for name in (*self.yields, self.view, self.leave) if name)

    def without_argument(self, tool: Tool) -> Tool:
        """Return a tool as a model sees it, without the argument for the seat."""
        schema: dict[str, Any] = tool.input_schema
        properties = schema.get("properties")
        if not isinstance(properties, dict) or self.argument not in properties:
            return tool
        kept = {name: value for name, value in properties.items() if name != self.argument}
        required = [name for name in schema.get("required") or [] if name != self.argument]
        return replace(tool, input_schema={**schema, "properties": kept, "required": required})

    def over(self, structured: object) -> bool:
        """Return whether a result says that the game is over."""
        return isinstance(structured, dict) and "turn" in structured and structured["turn"] is None


class SeatLink(WrappedLink):
    """A link on which every call is one seat's."""

    def __init__(self, link: Link, seats: Seats, name: str) -> None:
        super().__init__(link)
        self._argument, self._name = seats.argument, name

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        if any(tool.name == tool_name and self._argument in _properties(tool) for tool in self.tools):
            arguments = {**arguments, self._argument: self._name}
        return await self._link.call(tool_name, arguments, deadline=deadline)


def _properties(tool: Tool) -> dict[str, Any]:
    found = tool.input_schema.get("properties")
    return found if isinstance(found, dict) else {}
