"""`Link`, the interface through which rollouts use a tool server.

A connection is a link. Others wrap one or several links, or none: a group of servers, a server whose resources are
offered as tools, a recording and its replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mcp_rl.toolserver.tools.listing import Tool
    from mcp_rl.toolserver.tools.results import ToolResult


class Link(Protocol):
    """Tools that can be called."""

    @property
    def tools(self) -> list[Tool]:
        """The tools in the order of the listing."""
        ...

    @property
    def warnings(self) -> list[str]:
        """A sentence for each tool that was left out."""
        ...

    @property
    def server_info(self) -> dict[str, str]:
        """The server's name and version, as it reports them."""
        ...

    @property
    def alive(self) -> bool:
        """True until calls can no longer succeed."""
        ...

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        """Call a tool by the server's own name for it. `deadline` is in seconds; None means the link's default.

        Errors that the tool or the server reports are results with `is_error`. Raises ServerFault if the server or
        the connection failed, RunStop if the run cannot continue.
        """
        ...

    async def resources(self) -> list[dict[str, Any]]:
        """Return the server's descriptions of its resources, each with a `uri`; empty if it lists none."""
        ...

    async def ping(self, deadline: float) -> bool:
        """Return whether the server answers within `deadline` seconds."""
        ...


class WrappedLink:
    """A link that passes everything except calls on to another link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def tools(self) -> list[Tool]:
        return self._link.tools

    @property
    def warnings(self) -> list[str]:
        return self._link.warnings

    @property
    def server_info(self) -> dict[str, str]:
        return self._link.server_info

    @property
    def alive(self) -> bool:
        return self._link.alive

    async def resources(self) -> list[dict[str, Any]]:
        return await self._link.resources()

    async def ping(self, deadline: float) -> bool:
        return await self._link.ping(deadline)
