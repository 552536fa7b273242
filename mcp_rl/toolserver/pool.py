"""Open connections by server: shared, taken in turns after a reset, or one for each episode.

`get` opens a connection at first use, and again after one broke for good; `lease` gives an episode the state that the
server's isolation promises it. A connection whose episode did not end cleanly is closed rather than used again.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.scenario import ServerParams, StdioServer
from mcp_rl.toolserver.connection import Connection, Deadlines, connect
from mcp_rl.toolserver.schema import ToolSchemas

if TYPE_CHECKING:
    from mcp_rl.plugins.server import ToolServer


@dataclass(frozen=True)
class Session:
    """An open connection and what a model may call on it."""

    connection: Connection
    schemas: ToolSchemas

    @cached_property
    def read_only(self) -> frozenset[str]:
        """Server names of the tools that are annotated as changing nothing."""
        return frozenset(t.name for t in self.connection.tools if (t.annotations or {}).get("readOnlyHint") is True)

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """Server names of all tools, those that no model sees included."""
        return frozenset(tool.name for tool in self.connection.tools)

    def offering(self, name: str) -> "Session":
        """This session with one tool more, `name`, which takes the answer; itself where the server has a tool of that
        name, which then is the one."""
        return self if name in self.tool_names else Session(self.connection, self.schemas.with_submission(name))


@dataclass(eq=False)
class Lease:
    """A session for one episode. `spoilt` says that the episode left it in a state that nobody knows."""

    session: Session
    spoilt: bool = False


@dataclass(eq=False)
class _Place:
    """Room for one connection that episodes take in turns."""

    session: Session | None = None
    closing: AbstractAsyncContextManager[Connection] | None = None


@dataclass(eq=False)
class _Pool:
    """The places of one server. All of them are free at first, and nothing is open."""

    count: int
    places: list[_Place] = field(init=False)
    free: list[_Place] = field(init=False)
    room: anyio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.places = [_Place() for _ in range(self.count)]
        self.free = list(self.places)
        self.room = anyio.Semaphore(self.count)


class Sessions:
    """`async with Sessions() as sessions: session = await sessions.get(params)`. All close with the context, also those
    that an episode still has: its next call is a fault, and nothing is opened any more.

    Inside the context they are the sessions that `sessions_in_use` gives. `server` says how episodes are kept apart;
    without one they share everything.
    """

    def __init__(
        self,
        *,
        deadlines: Deadlines | None = None,
        log_dir: Path | None = None,
        name: str = "server",
        server: "ToolServer | None" = None,
    ) -> None:
        self._deadlines = deadlines
        self._log_dir = log_dir
        self._name = server.name if server else name
        self._isolation = (server.isolation if server else None) or "shared"
        self._reset_tool = server.reset_tool if server else None
        self._instances = server.instances if server else 1
        self._open: dict[str, Session] = {}
        self._pools: dict[str, _Pool] = {}
        self._schemas: dict[str, Session] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._stack = AsyncExitStack()
        self._before: Token[Sessions | None] | None = None
        self._closed = False

    @property
    def shared(self) -> bool:
        """Whether all episodes use the session that `get` gives."""
        return self._isolation == "shared"

    async def __aenter__(self) -> Self:
        self._before = _in_use.set(self)
        self._closed = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            with suppress(ValueError):  # left in another task than it was entered in
                _in_use.reset(self._before)
        self._closed = True
        self._open.clear()
        try:
            await self._close_pools()
        finally:
            await self._stack.aclose()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ServerError(f"The connections to the server {self._name} are closed.")

    async def get(self, params: ServerParams) -> Session:
        """The open session of this server, a new one where there is none or the last one broke for good.

        Raises ServerError where it cannot be opened.
        """
        key = repr(params)
        session = self._open.get(key)
        if session is not None and session.connection.alive:
            return session
        async with self._locks.setdefault(key, anyio.Lock()):
            session = self._open.get(key)
            if session is None or not session.connection.alive:
                self._refuse_when_closed()
                connection = await self._stack.enter_async_context(self._connecting(params))
                if self._closed:
                    await self._stack.aclose()
                self._refuse_when_closed()
                session = self._open[key] = self._session(key, connection)
            return session

    @asynccontextmanager
    async def lease(self, params: ServerParams, initial_state: dict[str, Any] | None = None) -> AsyncIterator[Lease]:
        """A session for one episode, in the state that an episode begins in; waits while all are taken.

        `initial_state` are the arguments of the reset tool. A server that died since the last episode is started anew.
        Raises ServerError where no session can be opened, ServerFault where the reset fails.
        """
        if self.shared:
            yield Lease(await self.get(params))
            return
        pool = self._pools.setdefault(repr(params), _Pool(self._places(params)))
        async with pool.room:
            place = pool.free.pop()
            lease: Lease | None = None
            try:
                lease = Lease(await self._ready(place, params, initial_state or {}))
                yield lease
            except BaseException:
                if lease is not None:
                    lease.spoilt = True
                raise
            finally:
                try:
                    if lease is None or lease.spoilt or self._closed or self._isolation == "per-rollout":
                        with anyio.CancelScope(shield=True):
                            await _close(place)
                finally:
                    pool.free.append(place)

    async def _ready(self, place: _Place, params: ServerParams, state: dict[str, Any]) -> Session:
        """An open session in the state that an episode begins in."""
        used = place.session is not None
        session = await self._opened(place, params)
        try:
            await self._reset(session, state)
        except ServerFault:
            if not used or session.connection.alive:
                raise
            session = await self._opened(place, params)
            await self._reset(session, state)
        return session

    async def _reset(self, session: Session, state: dict[str, Any]) -> None:
        if self._reset_tool is None:
            return
        result = await session.connection.call(self._reset_tool, state)
        if result.is_error:
            raise ServerFault(
                f"The server {self._name} could not be reset: its tool {self._reset_tool} says {result.text[:200]!r}."
            )

    def _places(self, params: ServerParams) -> int:
        """How many connections with a state of their own there can be."""
        ours = isinstance(params, StdioServer) or params.launch is not None
        return self._instances if ours or self._isolation == "per-rollout" else 1

    async def _opened(self, place: _Place, params: ServerParams) -> Session:
        if place.session is not None and place.session.connection.alive:
            return place.session
        await _close(place)
        self._refuse_when_closed()
        opening = self._connecting(params)
        connection = await opening.__aenter__()
        place.closing = opening
        self._refuse_when_closed()
        place.session = self._session(repr(params), connection)
        return place.session

    async def _close_pools(self) -> None:
        places = [place for pool in self._pools.values() for place in pool.places]
        self._pools.clear()
        async with anyio.create_task_group() as tasks:
            for place in places:
                tasks.start_soon(_close, place)

    def _connecting(self, params: ServerParams) -> AbstractAsyncContextManager[Connection]:
        return connect(
            params, deadlines=self._deadlines, log_dir=self._log_dir, name=self._name, stateful=not self.shared
        )

    def _session(self, key: str, connection: Connection) -> Session:
        """A session whose schemas are the same object as long as the server lists the same tools."""
        known = self._schemas.get(key)
        if known is None or known.connection.tools != connection.tools:
            offered = [tool for tool in connection.tools if tool.name != self._reset_tool]
            known = self._schemas[key] = Session(connection, ToolSchemas(offered))
        return Session(connection, known.schemas)


async def _close(place: _Place) -> None:
    closing, place.closing, place.session = place.closing, None, None
    if closing is not None:
        await closing.__aexit__(None, None, None)


_in_use: ContextVar[Sessions | None] = ContextVar("sessions in use", default=None)


@asynccontextmanager
async def sessions_in_use() -> AsyncIterator[Sessions]:
    """The sessions of the innermost `async with Sessions()` around us, or new ones for just this context."""
    if sessions := _in_use.get():
        yield sessions
        return
    async with Sessions() as sessions:
        yield sessions
