"""Sessions and leases: a link with the schemas that a model sees on it, held by everyone or by one episode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mcp_rl.toolserver.seats import SeatLink

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.sandbox.layer import Layer
    from mcp_rl.toolserver.seats import Seats
    from mcp_rl.toolserver.tools.listing import Tool
    from mcp_rl.toolserver.tools.schema import ToolSchemas


@dataclass(frozen=True)
class Session:
    """An open link and the tools that a model may call on it."""

    connection: Link
    schemas: ToolSchemas
    seats: Seats | None = None
    """How several players share an episode of the server; None: it knows one player."""

    @cached_property
    def read_only(self) -> frozenset[str]:
        """Server names of the tools that are annotated as read-only."""
        return frozenset(t.name for t in self.connection.tools if (t.annotations or {}).get("readOnlyHint") is True)

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """Server names of all tools, including those that no model sees."""
        return frozenset(tool.name for tool in self.connection.tools)

    @property
    def offered(self) -> list[Tool]:
        """The tools that a model sees."""
        return [tool for tool in self.connection.tools if tool.name in self.schemas.to_openai]

    def offering(self, name: str) -> Session:
        """Return this session with an additional tool, `name`, that takes the answer.

        If the server has a tool of that name, that one is used instead, and the session is returned unchanged.
        """
        return self if name in self.tool_names else replace(self, schemas=self.schemas.with_submission(name))

    def at(self, name: str, tools: Collection[str] = ()) -> Session:
        """Return this session for one seat, whose calls name it. It gets only these `tools`; none: all."""
        assert self.seats is not None
        schemas = self.schemas.only(tools) if tools else self.schemas
        return replace(self, connection=SeatLink(self.connection, self.seats, name), schemas=schemas)


@dataclass(eq=False)
class Lease:
    """A session for one episode."""

    session: Session
    layer: Layer | None = None
    """The layer of its server's process, where the isolation is `layer`."""
    spoilt: bool = False
    """True once the episode left the session in an unknown state."""
