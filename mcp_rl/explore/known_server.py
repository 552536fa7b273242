"""A server whose state is known, with its open sessions.

What was measured once holds as long as the server lists the same tools. Its first listing tells, so a server whose
listing changed is measured anew, and no process is started only to find out.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from mcp_rl.explore.first_contact import understood, with_states
from mcp_rl.toolserver.group import unprefixed
from mcp_rl.toolserver.pool import open_sessions
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from mcp_rl.config import ToolsConfig
    from mcp_rl.toolserver.connection.deadlines import Deadlines
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.state import MeasuredState
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool


class KnownServer:
    """A server and its sessions; both may be others after `session`, the first thing to ask for."""

    def __init__(
        self,
        server: ToolServer,
        sessions: Sessions,
        transport: str | None,
        anew: Callable[[], Awaitable[tuple[ToolServer, Sessions]]] | None,
    ) -> None:
        self.server, self.sessions = server, sessions
        self._transport, self._anew = transport, anew

    async def session(self) -> Session:
        """Return the shared session. If it lists other tools than were measured, measure them and open others.

        Raises ServerError where the server cannot be used, ConfigError where the settings leave no tool.
        """
        params = self.server.params(self._transport)
        session = await self.sessions.get(params)
        if self._anew is not None and outdated(self.server, session.offered):
            self.server, self.sessions = await self._anew()
            session = await self.sessions.get(params)
        return session


@asynccontextmanager
async def known_server(
    server: ToolServer,
    transport: str | None,
    tools: ToolsConfig,
    *,
    states: Mapping[str, MeasuredState] | None = None,
    deadlines: Deadlines | None = None,
    log_dir: Path | None = None,
) -> AsyncIterator[KnownServer]:
    """Measure a server's state, unless that is remembered or given by `states`, and open sessions on the server."""
    opened = partial(open_sessions, tools=tools, deadlines=deadlines, log_dir=log_dir)
    async with AsyncExitStack() as stack:

        async def anew() -> tuple[ToolServer, Sessions]:
            await stack.aclose()
            known = await understood(server, transport, tools, anew=True)
            return known, await stack.enter_async_context(opened(known))

        known = await understood(server, transport, tools) if states is None else with_states(server, states)
        sessions = await stack.enter_async_context(opened(known))
        compares = states is None and tools.replay is None
        yield KnownServer(known, sessions, transport, anew if compares else None)


def outdated(server: ToolServer, offered: list[Tool]) -> bool:
    """Return whether a server, or a member of a group, was measured with other tools than it offers now."""
    for one in server.members or (server,):
        tools = unprefixed(one.name, offered) if server.members else offered
        if one.measured is not None and one.measured.listing != ToolSchemas(tools).hash:
            return True
    return False
