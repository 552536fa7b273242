"""A link for one episode that takes its place on a server at the episode's first call.

Sampling before that call needs no server, so far more episodes can be under way than servers run. Where episodes can
take turns on one process (`turns.py`), sampling between calls needs none either.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.system.allowance import not_counted
from mcp_rl.toolserver.link import Link, WrappedLink
from mcp_rl.toolserver.turns import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mcp_rl.toolserver.session import Lease, Session
    from mcp_rl.toolserver.tools.results import ToolResult
    from mcp_rl.toolserver.turns import Turns


class OnDemandLink(WrappedLink):
    """Lists the tools of the shared session, and enters `take` for a session of its own at the first call that cannot
    be made in turns with others."""

    def __init__(
        self, shared: Session, take: Callable[[], AbstractAsyncContextManager[Lease]], turns: Turns | None = None
    ) -> None:
        super().__init__(shared.connection)
        self._take, self._turns, self._turn = take, turns, Turn()
        self._taking = anyio.Lock()
        self._held = AsyncExitStack()
        self._lease: Lease | None = None
        self._failed: ServerFault | None = None

    @property
    def alive(self) -> bool:
        if self._failed is not None or self._turn.lost:
            return False
        return self._lease is None or self._lease.session.connection.alive

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        if self._turns is not None and self._lease is None and self._turns.takes(self._turn, tool_name):
            return await self._turns.use(
                self._turn, tool_name, lambda link: link.call(tool_name, arguments, deadline=deadline)
            )
        return await (await self._own_link()).call(tool_name, arguments, deadline=deadline)

    async def resources(self) -> list[dict[str, Any]]:
        return await (await self._own_link()).resources()

    async def _own_link(self) -> Link:
        """Return the link of the episode's own session; lease it first if need be. A failure to do so is final."""
        async with self._taking:
            if self._failed is not None:
                raise self._failed
            if self._lease is None:
                self._let_go()
                try:
                    with not_counted():
                        self._lease = await self._held.enter_async_context(self._take())
                except ServerFault as fault:
                    self._failed = fault
                    raise
                except ServerError as error:
                    self._failed = ServerFault(str(error), delivered=False)
                    raise self._failed from error
            return self._lease.session.connection

    @asynccontextmanager
    async def giving_back(self, lease: Lease) -> AsyncIterator[None]:
        """Give back what was leased meanwhile, spoilt if `lease`, the episode's view of it, is."""
        async with self._held:
            try:
                yield
            finally:
                self._let_go()
                if self._lease is not None:
                    self._lease.spoilt = self._lease.spoilt or lease.spoilt

    def _let_go(self) -> None:
        if self._turns is not None:
            self._turns.end(self._turn)
