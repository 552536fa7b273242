"""`Sessions`, the pool of open connections to one server or to a group of servers.

`get` gives the shared session and opens it at first use, and again after its connection broke for good. `lease` gives
an episode a session in the state that the server's isolation promises, and `episode` one that is leased at its first
call. A server that worked before and no longer comes
up is retried with growing pauses; if that fails, everyone who waited meanwhile gets the error, and later callers try
again.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import anyio

from mcp_rl.config import Isolation, ToolsConfig
from mcp_rl.errors import ScenarioError, ServerError, ServerFault
from mcp_rl.scenario import OneServer, ServerGroup, ServerParams
from mcp_rl.system.threads import cpu_limit
from mcp_rl.toolserver.cassette.library import canonical
from mcp_rl.toolserver.choice import ToolChoice
from mcp_rl.toolserver.connector import Connector
from mcp_rl.toolserver.filling import fill
from mcp_rl.toolserver.group import GroupLink, prefixed
from mcp_rl.toolserver.instances import affordable_instances
from mcp_rl.toolserver.on_demand import OnDemandLink
from mcp_rl.toolserver.remembered import Memory, NotingLink, RememberingLink, worth_remembering
from mcp_rl.toolserver.session import Lease, Session
from mcp_rl.toolserver.slots import Slots
from mcp_rl.toolserver.tools.offered import offering
from mcp_rl.toolserver.turns import Turns
from mcp_rl.toolserver.watched import WatchedLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from mcp_rl.toolserver.cassette import Cassette
    from mcp_rl.toolserver.connection.connection import Connection
    from mcp_rl.toolserver.connection.deadlines import Deadlines
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.sandbox.layer import Layer
    from mcp_rl.toolserver.state import MeasuredState
    from mcp_rl.toolserver.tool_server import ToolServer


_QUICK = 0.1
"""Seconds. If calls take less, and processes are used again, a few of them serve all episodes."""


class Sessions:
    """The open sessions on a server: `async with Sessions() as sessions: session = await sessions.get(params)`.

    Everything closes with the context, including sessions that episodes still hold: their next call is a fault. Inside
    the context, `sessions_in_use` returns this object. `server` declares the isolation and the deadlines; without a
    declared isolation, the tools' annotations decide. `tools` are the user's settings and take precedence. With a
    `cassette`, every call is recorded, or replayed with no server at all. `in_group` marks the pool of one member of a
    group.
    """

    def __init__(
        self,
        *,
        deadlines: Deadlines | None = None,
        log_dir: Path | None = None,
        name: str = "server",
        server: ToolServer | None = None,
        tools: ToolsConfig | None = None,
        cassette: Cassette | None = None,
        in_group: bool = False,
    ) -> None:
        self._server = server
        self._name = server.name if server else name
        self._tools = tools or ToolsConfig()
        self._cassette = cassette
        self._connector = Connector(self._name, self._tools, server=server, deadlines=deadlines, log_dir=log_dir)
        reset_tool = server.reset_tool if server else None
        fatal = server.measured.fatal if server and server.measured else ()
        self._choice = ToolChoice(
            self._name,
            self._tools,
            reset_tool=reset_tool,
            in_group=in_group,
            fatal=fatal,
            seats=server.seats if server and not in_group else None,
        )
        self._open: dict[str, Session] = {}
        self._closing: dict[str, AbstractAsyncContextManager[Connection]] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._slots: dict[str, Slots] = {}
        self._turns: dict[str, Turns | None] = {}
        """The processes on which episodes take turns, by server; None: each has its own."""
        self._memories: dict[str, Memory] = {}
        self._members: dict[str, Sessions] = {}
        self._set_up_already: WeakSet[Connection] = WeakSet()
        self._reaper: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._before: Token[Sessions | None] | None = None
        self._under_way = 0
        """Number of episodes inside `episode`."""

    async def __aenter__(self) -> Self:
        self._before = _in_use.set(self)
        self._connector.closed = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            with suppress(ValueError):  # left in another task than it was entered in
                _in_use.reset(self._before)
        with anyio.CancelScope(shield=True):  # a close that is cancelled before it begins would leave servers open
            await self._close()

    async def _close(self) -> None:
        self._connector.closed = True
        self._open.clear()
        self._ending.set()
        async with anyio.create_task_group() as tasks:
            if self._reaper is not None:  # it may be closing a connection, and ends after that
                tasks.start_soon(_ended, self._reaper)
            for member in self._members.values():
                tasks.start_soon(member._close)
            for turns in self._turns.values():
                if turns is not None:
                    tasks.start_soon(turns.aclose)
            for slots in self._slots.values():
                tasks.start_soon(slots.aclose)
            for key in list(self._closing):
                tasks.start_soon(self._close_shared, key)
        self._slots.clear()
        self._turns.clear()
        self._reaper = None

    async def get(self, params: ServerParams) -> Session:
        """Return the open session on this server; open a new one if there is none or it broke for good.

        Raises ServerError if it cannot be opened, ConfigError if the settings leave no tool.
        """
        asked, key = time.monotonic(), repr(params)
        if isinstance(params, ServerGroup):
            members = {name: await self._member(name).get(below) for name, below in params.servers.items()}
            return self._group_session(key, members)
        session = self._open.get(key)
        if session is not None and session.connection.alive:
            return session if not self._tools.allow_schema_change else self._choice.session(key, session.connection)
        async with self._locks.setdefault(key, anyio.Lock()):
            session = self._open.get(key)
            if session is None or not session.connection.alive:
                self._connector.refuse_when_closed()
                await self._close_shared(key)
                link = await self._shared_link(params, asked)
                if self._connector.closed:
                    await self._close_shared(key)
                self._connector.refuse_when_closed()
                session = self._open[key] = self._choice.session(key, link)
            return session

    def shown(self, session: Session) -> Session:
        """Return a session on this server, opened elsewhere, as these sessions are shown."""
        return session

    @property
    def replays(self) -> bool:
        """True if calls are answered from a recording, with no server at all."""
        return self._cassette is not None and self._cassette.replays

    async def isolation(self, params: ServerParams) -> Isolation:
        """Return the isolation of episodes on this server: the declared one, else the one that annotations imply.

        A group has the strictest isolation of its members.
        """
        if isinstance(params, ServerGroup):
            found = {await self._member(name).isolation(below) for name, below in params.servers.items()}
            return next((kind for kind in ("per-rollout", "reset", "layer") if kind in found), "shared")
        if self._server is not None and self._server.isolation is not None:
            return self._server.isolation
        key = repr(params)
        if self._choice.isolation(key) is None:
            await self.get(params)
        return self._choice.isolation(key) or "shared"

    @asynccontextmanager
    async def lease(self, params: ServerParams, initial_state: dict[str, Any] | None = None) -> AsyncIterator[Lease]:
        """Lease a session to one episode, in the state that an episode begins in; wait while all are taken.

        `initial_state` holds the arguments of the reset tool; for a group, the arguments of each member under its name.
        A server that died since the last episode is started again. Every call is made. Raises ServerError if no session
        can be opened, ServerFault if the reset fails.
        """
        memory = self._memory_of(params, initial_state)
        async with self._lease(params, initial_state) as lease:
            if memory is not None:
                stateful = await self.isolation(params) != "shared"
                link = NotingLink(lease.session.connection, memory, stateful=stateful, harmless=self._harmless)
                lease.session = replace(lease.session, connection=link)
            yield lease

    @asynccontextmanager
    async def _lease(self, params: ServerParams, initial_state: dict[str, Any] | None = None) -> AsyncIterator[Lease]:
        if isinstance(params, ServerGroup):
            async with self._lease_group(params, initial_state or {}) as lease:
                yield lease
            return
        isolation = await self.isolation(params)
        if isolation == "shared":
            yield Lease(await self.get(params))
            return
        if self._cassette is not None and self._cassette.replays:
            link = self._cassette.player(self._name, stateful=True, params=params)
            await self._reset(link, initial_state or {})
            yield Lease(self._choice.session(repr(params), link))
            return

        async def prepare(connection: Connection) -> Session:
            await self._set_up(connection)
            if isolation == "layer":
                await self._layer_of(connection).begin()
            link = self._recorded(await self._with_offered(connection), params, stateful=True)
            await self._reset(link, initial_state or {})
            return self._choice.session(repr(params), WatchedLink(link, self._harmless))

        async with self._slots_of(params, isolation).take(prepare) as (slot, session):
            layer = slot.connection.layer if slot.connection is not None and isolation == "layer" else None
            lease = Lease(session, layer)
            try:
                yield lease
            finally:
                link = session.connection
                slot.clean = bool(self._harmless) and isinstance(link, WatchedLink) and link.clean
                slot.spoilt = slot.spoilt or lease.spoilt

    @asynccontextmanager
    async def episode(self, params: ServerParams, initial_state: dict[str, Any] | None = None) -> AsyncIterator[Lease]:
        """Lease a session to one episode like `lease`, but at its first call; until then it only lists the tools.

        Raises ServerError if the server cannot be reached at all. The first call raises ServerFault if no session can
        be opened or the reset fails.
        """
        if isinstance(params, ServerGroup):
            _check_states(params, initial_state or {})
        if self._tools.allow_schema_change:  # only the episode's own session knows the tools of its server
            async with self.lease(params, initial_state) as leased:
                yield leased
            return
        shared = await self.get(params)
        isolation = await self.isolation(params)
        memory = self._memory_of(params, initial_state)
        if isolation == "shared":
            if memory is None:
                yield Lease(shared)
            else:
                yield Lease(replace(shared, connection=RememberingLink(shared.connection, memory, stateful=False)))
            return
        turns = None if initial_state else self._turns_on(params, isolation)
        link = OnDemandLink(shared, partial(self._lease, params, initial_state), turns)
        seen: Link = link
        if memory is not None:
            seen = RememberingLink(link, memory, stateful=True, harmless=self._harmless)
        lease = Lease(replace(shared, connection=seen))
        with self._counted(params):
            if not isinstance(params, ServerGroup) and (self._cassette is None or not self._cassette.replays):
                self._slots_of(params, isolation).expect()
            async with link.giving_back(lease):
                yield lease

    @contextmanager
    def _counted(self, params: ServerParams) -> Iterator[None]:
        """Count an episode as under way on this server, or on each server of a group."""
        pools = [self._member(name) for name in params.servers] if isinstance(params, ServerGroup) else [self]
        for pool in pools:
            pool._under_way += 1
        try:
            yield
        finally:
            for pool in pools:
                pool._under_way -= 1

    def remembers(self, params: ServerParams) -> bool:
        """Return whether episodes on this server are given answers from memory."""
        return self._slow_state(params) is not None

    def _slow_state(self, params: ServerParams) -> MeasuredState | None:
        """Return the measured state of a server whose answers are kept; None where each call is made."""
        server = self._server
        if server is None or isinstance(params, ServerGroup) or self._cassette is not None or server.seats is not None:
            return None
        measured = server.measured
        if measured is None or server.isolation != measured.isolation or not worth_remembering(measured, self._tools):
            return None
        return measured

    def _memory_of(self, params: ServerParams, initial_state: dict[str, Any] | None) -> Memory | None:
        """Return the answers that are kept of episodes which begin in this state; None where each call is made."""
        measured = self._slow_state(params)
        if measured is None:
            return None
        key = f"{params!r} {canonical(initial_state or {})}"
        if key not in self._memories:
            deadline, apart = self._connector.deadlines.call, measured.isolation == "per-rollout"
            self._memories[key] = Memory(measured.call_seconds, deadline, errors=apart)
        return self._memories[key]

    def _turns_on(self, params: ServerParams, isolation: Isolation) -> Turns | None:
        """Return the processes on which episodes take turns; None where each must have its own."""
        key = repr(params)
        if isinstance(params, ServerGroup) or self._cassette is not None:
            return None
        if key not in self._turns:
            layered = isolation == "layer" and self._quick
            several = self._slots_of(params, isolation).count > 1
            self._turns[key] = (
                Turns(
                    self._name,
                    partial(self._lease, params),
                    harmless=self._harmless,
                    layered=layered,
                    most=cpu_limit() if several else 1,
                )
                if layered or (self._harmless and several)
                else None
            )
        return self._turns[key]

    @property
    def _quick(self) -> bool:
        """True if the server's calls take so little that they can wait for each other."""
        measured = self._server.measured if self._server is not None else None
        return measured is not None and measured.call_seconds < _QUICK

    def _affordable(self, isolation: Isolation) -> int:
        """Return the number of connections for a server that does not say it."""
        quick = isolation == "layer" and self._quick
        return min(affordable_instances(), 2 * cpu_limit()) if quick else affordable_instances()

    @property
    def _harmless(self) -> tuple[str, ...]:
        """The tools after which a process is as good as new."""
        measured = self._server.measured if self._server is not None else None
        return measured.reading if measured is not None else ()

    async def _set_up(self, connection: Connection) -> None:
        """Fill a server which begins empty, once on each connection."""
        if connection in self._set_up_already or self._server is None or self._server.measured is None:
            return
        await fill(connection, connection.layer, self._server)
        self._set_up_already.add(connection)

    def _layer_of(self, connection: Connection) -> Layer:
        if connection.layer is None:
            raise ServerError(
                f"The isolation layer needs a server in a sandbox, and {self._name} runs in none; choose --isolation "
                "per-rollout, reset or shared."
            )
        return connection.layer

    async def _reset(self, link: Link, state: dict[str, Any]) -> None:
        server = self._server
        if server is None or server.isolation != "reset":
            return
        if server.reset_tool is not None:
            result = await link.call(server.reset_tool, state)
            if result.is_error:
                raise self._reset_fault(f"its tool {server.reset_tool} says {result.text[:200]!r}")
        if server.reset is not None:
            try:
                await server.reset(link, state)
            except ServerFault:
                raise
            except Exception as error:
                raise self._reset_fault(f"{type(error).__name__}: {error}") from error

    def _reset_fault(self, why: str) -> ServerFault:
        return ServerFault(f"The server {self._name} could not be reset: {why}.")

    def _slots_of(self, params: OneServer, isolation: Isolation) -> Slots:
        key = repr(params)
        if key not in self._slots:
            self._connector.refuse_when_closed()
            instances = self._server.instances if self._server else self._tools.max_servers
            once = isolation == "per-rollout"
            self._slots[key] = Slots(
                (instances or self._affordable(isolation)) if params.ours_to_start or once else 1,
                lambda asked: self._connector.open(params, asked, stateful=True, private=once),
                once=once,
                server=self._name,
                under_way=lambda: self._under_way,
            )
            if self._reaper is None:
                self._ending = asyncio.Event()
                self._reaper = asyncio.create_task(self._close_idle(), name=f"reaper of {self._name}")
        return self._slots[key]

    async def _close_idle(self) -> None:
        while not self._ending.is_set():
            for slots in list(self._slots.values()):
                await slots.close_idle(self._tools.idle_seconds)
            with anyio.move_on_after(min(self._tools.idle_seconds / 2, 30.0)):
                await self._ending.wait()

    async def _shared_link(self, params: OneServer, asked: float) -> Link:
        if self._cassette is not None and self._cassette.replays:
            return self._cassette.player(self._name, stateful=False, params=params)
        stateful = self._server is not None and self._server.stateful
        opening = self._connector.open(params, asked, stateful=stateful)
        connection = await opening.__aenter__()
        self._closing[repr(params)] = opening
        return self._recorded(await self._with_offered(connection), params, stateful=False)

    async def _close_shared(self, key: str) -> None:
        if opening := self._closing.pop(key, None):
            await opening.__aexit__(None, None, None)

    async def _with_offered(self, connection: Connection) -> Link:
        """Add the resources and prompts that are offered to the model as tools."""
        return await offering(connection, self._server.offer if self._server else self._tools.offer)

    def _recorded(self, link: Link, params: OneServer, *, stateful: bool) -> Link:
        if self._cassette is None:
            return link
        return self._cassette.record(link, self._name, stateful=stateful, params=params)

    # -- groups of servers

    def _member(self, name: str) -> Sessions:
        if name not in self._members:
            self._connector.refuse_when_closed()
            servers = {server.name: server for server in self._server.members} if self._server else {}
            self._members[name] = Sessions(
                deadlines=self._connector.deadlines,
                log_dir=self._connector.log_dir,
                name=name,
                server=servers.get(name),
                tools=self._tools,
                cassette=self._cassette,
                in_group=True,
            )
        return self._members[name]

    def _group_session(self, key: str, members: Mapping[str, Session]) -> Session:
        tools = [prefixed(name, tool) for name, session in members.items() for tool in session.offered]
        link = GroupLink({name: session.connection for name, session in members.items()})
        return self._choice.group_session(key, link, tools)

    @asynccontextmanager
    async def _lease_group(self, params: ServerGroup, state: dict[str, Any]) -> AsyncIterator[Lease]:
        """Lease a session of each member, in the order of their names so that two episodes cannot deadlock."""
        _check_states(params, state)
        async with AsyncExitStack() as stack:
            leases = {
                name: await stack.enter_async_context(self._member(name).lease(below, state.get(name)))
                for name, below in sorted(params.servers.items())
            }
            ordered = {name: leases[name].session for name in params.servers}
            lease = Lease(self._group_session(repr(params), ordered))
            try:
                yield lease
            finally:
                for below in leases.values():
                    below.spoilt = below.spoilt or lease.spoilt


def _check_states(params: ServerGroup, state: Mapping[str, Any]) -> None:
    for name, below in state.items():
        if name not in params.servers or not isinstance(below, dict):
            raise ScenarioError(
                "The initial_state of several servers must hold an object under each server's name "
                f"({', '.join(params.servers)}), not {name!r}."
            )


async def _ended(task: asyncio.Task[None]) -> None:
    with anyio.CancelScope(shield=True):
        await asyncio.wait({task})


def _cassette(tools: ToolsConfig) -> Cassette:
    from mcp_rl.toolserver.cassette import Cassette

    if tools.record is not None:
        return Cassette.recording(tools.record)
    assert tools.replay is not None
    return Cassette.replaying(tools.replay)


@asynccontextmanager
async def open_sessions(
    server: ToolServer, tools: ToolsConfig, *, deadlines: Deadlines | None = None, log_dir: Path | None = None
) -> AsyncIterator[Sessions]:
    """Open sessions on a server with the user's settings, recording or replaying calls if these say so.

    Raises ConfigError if the recording cannot be written or read.
    """
    async with AsyncExitStack() as stack:
        cassette = stack.enter_context(_cassette(tools)) if tools.record or tools.replay else None
        yield await stack.enter_async_context(
            Sessions(deadlines=deadlines, log_dir=log_dir, server=server, tools=tools, cassette=cassette)
        )


_in_use: ContextVar[Sessions | None] = ContextVar("sessions in use", default=None)


@asynccontextmanager
async def sessions_in_use() -> AsyncIterator[Sessions]:
    """Give the sessions of the innermost `async with Sessions()` around the caller, else new ones for this context."""
    if sessions := _in_use.get():
        yield sessions
        return
    async with Sessions() as sessions:
        yield sessions
