"""Calls that are each the first of an episode.

What a tool answers that shows itself what it keeps, such as a count of all its calls, follows from its arguments alone
in a new episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.toolserver.link import WrappedLink

if TYPE_CHECKING:
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.results import ToolResult


class FirstCalls(WrappedLink):
    """A link to a server whose every call begins an episode of its own."""

    def __init__(self, link: Link, sessions: Sessions, params: ServerParams) -> None:
        super().__init__(link)
        self._sessions, self._params = sessions, params

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        """Call a tool at the beginning of an episode."""
        async with self._sessions.lease(self._params) as lease:
            return await lease.session.connection.call(tool_name, arguments, deadline=deadline)


def shows_itself(server: ToolServer) -> bool:
    """Return whether what the tools change was seen in their own answers alone."""
    states = [one.measured for one in server.members or (server,) if one.measured is not None]
    return any(one.changing for one in states) and not any(one.shown_by for one in states)
