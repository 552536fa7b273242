"""Open connections by server: shared, taken in turns after a reset, or one for each episode.

`get` opens a connection at first use, and again after one broke for good; `lease` gives an episode the state that the
server's isolation promises it. A server that no longer comes up is tried again with growing pauses. When that was in
vain, all who waited meanwhile hear of it; who asks later tries anew.
"""

import asyncio
import fnmatch
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from mcp_rl.config import Isolation, ToolsConfig
from mcp_rl.errors import ConfigError, ScenarioError, ServerError, ServerFault
from mcp_rl.plugins.server import BETWEEN, ToolServer, nearest
from mcp_rl.scenario import OneServer, ServerGroup, ServerParams
from mcp_rl.toolserver.connection import Connection, Deadlines, connect
from mcp_rl.toolserver.group import Together, prefixed
from mcp_rl.toolserver.isolation import implied_isolation
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.offered import offering
from mcp_rl.toolserver.places import Places
from mcp_rl.toolserver.relisting import changed_sentence, listing_change, schema_changed
from mcp_rl.toolserver.schema import ToolSchemas

if TYPE_CHECKING:
    from mcp_rl.toolserver.cassette import Cassette

_RESTARTS = 4
"""Tries to start a server that has worked before, half a second, one and two apart."""
_WAITED = 1.0
"""Seconds. Whoever has waited for so long while others tried in vain takes that for an answer."""


@dataclass(frozen=True)
class Session:
    """An open link and what a model may call on it."""

    connection: Link
    schemas: ToolSchemas

    @cached_property
    def read_only(self) -> frozenset[str]:
        """Server names of the tools that are annotated as changing nothing."""
        return frozenset(t.name for t in self.connection.tools if (t.annotations or {}).get("readOnlyHint") is True)

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """Server names of all tools, those that no model sees included."""
        return frozenset(tool.name for tool in self.connection.tools)

    @property
    def offered(self) -> list[Tool]:
        """The tools that a model sees."""
        return [tool for tool in self.connection.tools if tool.name in self.schemas.to_openai]

    def offering(self, name: str) -> "Session":
        """This session with one tool more, `name`, which takes the answer; itself where the server has a tool of that
        name, which then is the one."""
        return self if name in self.tool_names else Session(self.connection, self.schemas.with_submission(name))


@dataclass(eq=False)
class Lease:
    """A session for one episode. `spoilt` says that the episode left it in a state that nobody knows."""

    session: Session
    spoilt: bool = False


@dataclass(frozen=True)
class _Down:
    """A server that did not come up again: what was said, and when, on the monotonic clock."""

    said: str
    at: float


class Sessions:
    """`async with Sessions() as sessions: session = await sessions.get(params)`. All close with the context, also those
    that an episode still has: its next call is a fault, and nothing is opened any more.

    Inside the context they are the sessions that `sessions_in_use` gives. `server` says how episodes are kept apart and
    how long its steps may take; where nobody declared an isolation, the listing decides. `tools` are the user's
    settings, which win. With a `cassette`, every call is recorded, or answered with no server at all.
    """

    def __init__(
        self,
        *,
        deadlines: Deadlines | None = None,
        log_dir: Path | None = None,
        name: str = "server",
        server: ToolServer | None = None,
        tools: ToolsConfig | None = None,
        cassette: "Cassette | None" = None,
    ) -> None:
        self._log_dir = log_dir
        self._server = server
        self._name = server.name if server else name
        self._tools = tools or ToolsConfig()
        self._deadlines = replace(
            deadlines or Deadlines(), longest_call=self._tools.longest_call, **(server.deadlines if server else {})
        )
        own = f"{self._name}{BETWEEN}"
        self._tool_deadlines = {
            **(server.tool_deadlines if server else {}),
            **{tool.removeprefix(own): seconds for tool, seconds in self._tools.deadlines.items()},
        }
        self._cassette = cassette
        self._open: dict[str, Session] = {}
        self._isolations: dict[str, Isolation] = {}
        self._places: dict[str, Places] = {}
        self._schemas: dict[str, tuple[list[Tool], ToolSchemas]] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._worked: set[str] = set()
        self._down: dict[str, _Down] = {}
        self._members: dict[str, Sessions] = {}
        self._is_member = False
        self._closing: dict[str, AbstractAsyncContextManager[Connection]] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._before: Token[Sessions | None] | None = None
        self._closed = False

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
        await self._close()

    async def _close(self) -> None:
        self._closed = True
        self._open.clear()
        self._ending.set()
        async with anyio.create_task_group() as tasks:
            if self._reaper is not None:  # which may be closing a connection, and is to end with that
                tasks.start_soon(_ended, self._reaper)
            for member in self._members.values():
                tasks.start_soon(member._close)
            for places in self._places.values():
                tasks.start_soon(places.aclose)
            for key in list(self._closing):
                tasks.start_soon(self._close_shared, key)
        self._places.clear()
        self._reaper = None

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ServerError(f"The connections to the server {self._name} are closed.")

    async def get(self, params: ServerParams) -> Session:
        """The open session of this server, a new one where there is none or the last one broke for good.

        Raises ServerError where it cannot be opened, ConfigError where the settings leave no tool of it.
        """
        asked, key = time.monotonic(), repr(params)
        if isinstance(params, ServerGroup):
            members = {name: await self._member(name).get(below) for name, below in params.servers.items()}
            return self._together(key, members)
        session = self._open.get(key)
        if session is not None and session.connection.alive:
            return session if not self._tools.allow_schema_change else self._session(key, session.connection)
        async with self._locks.setdefault(key, anyio.Lock()):
            session = self._open.get(key)
            if session is None or not session.connection.alive:
                self._refuse_when_closed()
                await self._close_shared(key)
                link = await self._shared_link(params, asked)
                if self._closed:
                    await self._close_shared(key)
                self._refuse_when_closed()
                session = self._open[key] = self._session(key, link)
            return session

    async def isolation(self, params: ServerParams) -> Isolation:
        """How episodes on this server are kept apart: as declared, else as the listing says; of several servers, the
        strictest."""
        if isinstance(params, ServerGroup):
            found = {await self._member(name).isolation(below) for name, below in params.servers.items()}
            return next((kind for kind in ("per-rollout", "reset") if kind in found), "shared")
        if self._server is not None and self._server.isolation is not None:
            return self._server.isolation
        key = repr(params)
        if key not in self._isolations:
            self._isolations[key] = implied_isolation((await self.get(params)).offered)
        return self._isolations[key]

    @asynccontextmanager
    async def lease(self, params: ServerParams, initial_state: dict[str, Any] | None = None) -> AsyncIterator[Lease]:
        """A session for one episode, in the state that an episode begins in; waits while all are taken.

        `initial_state` are the arguments of the reset tool; of several servers, the arguments under each one's name. A
        server that died since the last episode is started anew. Raises ServerError where no session can be opened,
        ServerFault where the reset fails.
        """
        if isinstance(params, ServerGroup):
            async with self._lease_together(params, initial_state or {}) as lease:
                yield lease
            return
        isolation = await self.isolation(params)
        if isolation == "shared":
            yield Lease(await self.get(params))
            return
        if self._cassette is not None and self._cassette.replays:
            link = self._cassette.player(self._name, stateful=True, params=params)
            await self._reset(link, initial_state or {})
            yield Lease(self._session(repr(params), link))
            return

        async def prepare(connection: Connection) -> Session:
            link = self._recorded(await self._with_offered(connection), params, stateful=True)
            await self._reset(link, initial_state or {})
            return self._session(repr(params), link)

        async with self._places_of(params, isolation).take(prepare) as (place, session):
            lease = Lease(session)
            try:
                yield lease
            finally:
                place.spoilt = place.spoilt or lease.spoilt

    async def _reset(self, link: Link, state: dict[str, Any]) -> None:
        server = self._server
        if server is None or server.isolation != "reset":
            return
        if server.reset_tool is not None:
            result = await link.call(server.reset_tool, state)
            if result.is_error:
                raise self._not_reset(f"its tool {server.reset_tool} says {result.text[:200]!r}")
        if server.reset is not None:
            try:
                await server.reset(link, state)
            except ServerFault:
                raise
            except Exception as error:
                raise self._not_reset(f"{type(error).__name__}: {error}") from error

    def _not_reset(self, why: str) -> ServerFault:
        return ServerFault(f"The server {self._name} could not be reset: {why}.")

    def _places_of(self, params: OneServer, isolation: Isolation) -> Places:
        key = repr(params)
        if key not in self._places:
            self._refuse_when_closed()
            instances = self._server.instances if self._server else self._tools.max_servers or 4
            once = isolation == "per-rollout"
            self._places[key] = Places(
                instances if params.ours_to_start or once else 1,
                lambda asked: self._connecting(params, asked, stateful=True, private=once),
                once=once,
                whose=self._name,
            )
            if self._reaper is None:
                self._ending = asyncio.Event()
                self._reaper = asyncio.create_task(self._close_idle(), name=f"reaper of {self._name}")
        return self._places[key]

    async def _close_idle(self) -> None:
        while not self._ending.is_set():
            for places in list(self._places.values()):
                await places.close_idle(self._tools.idle_seconds)
            with anyio.move_on_after(min(self._tools.idle_seconds / 2, 30.0)):
                await self._ending.wait()

    async def _shared_link(self, params: OneServer, asked: float) -> Link:
        if self._cassette is not None and self._cassette.replays:
            return self._cassette.player(self._name, stateful=False, params=params)
        declared = self._server.isolation if self._server else None
        stateful = declared in ("reset", "per-rollout")
        opening = self._connecting(params, asked, stateful=stateful)
        connection = await opening.__aenter__()
        self._closing[repr(params)] = opening
        return self._recorded(await self._with_offered(connection), params, stateful=False)

    async def _close_shared(self, key: str) -> None:
        if opening := self._closing.pop(key, None):
            await opening.__aexit__(None, None, None)

    async def _with_offered(self, connection: Connection) -> Link:
        """The connection with what else the model gets as tools."""
        return await offering(connection, self._server.offer if self._server else self._tools.offer)

    def _recorded(self, link: Link, params: OneServer, *, stateful: bool) -> Link:
        if self._cassette is None:
            return link
        return self._cassette.record(link, self._name, stateful=stateful, params=params)

    @asynccontextmanager
    async def _connecting(
        self, params: OneServer, asked: float, *, stateful: bool, private: bool = False
    ) -> AsyncIterator[Connection]:
        """A new connection, with patience for a server that has worked before. `asked` is when it was asked for, on
        the monotonic clock."""
        key = repr(params)
        down = self._down.get(key)
        if down is not None and down.at - asked > _WAITED:
            raise ServerError(down.said)
        retrying = AsyncRetrying(
            stop=stop_after_attempt(_RESTARTS if key in self._worked else 1),
            wait=wait_exponential(multiplier=0.5, max=4),
            retry=retry_if_exception_type(ServerError),
            reraise=True,
        )
        async with AsyncExitStack() as stack:
            try:
                connection: Connection = await retrying(self._connect, stack, params, stateful, private)
            except ServerError as error:
                if key in self._worked:
                    self._down[key] = _Down(str(error), time.monotonic())
                raise
            self._worked.add(key)
            self._down.pop(key, None)
            yield connection

    async def _connect(self, stack: AsyncExitStack, params: OneServer, stateful: bool, private: bool) -> Connection:
        self._refuse_when_closed()
        return await stack.enter_async_context(
            connect(
                params,
                deadlines=self._deadlines,
                log_dir=self._log_dir,
                name=self._name,
                stateful=stateful,
                tool_deadlines=self._tool_deadlines,
                allow_schema_change=self._tools.allow_schema_change,
                private=private,
            )
        )

    # -- what a model gets to see

    def _session(self, key: str, link: Link) -> Session:
        """A session whose schemas are the same object as long as the server lists the same tools.

        Raises SchemaChanged where it lists others than it did, unless the user's settings allow that.
        """
        known = self._schemas.get(key)
        if known is None or known[0] != link.tools:
            change = listing_change(known[0], link.tools) if known else None
            if change and not self._tools.allow_schema_change:
                raise schema_changed(changed_sentence(f"The server {self._name}", change))
            known = self._schemas[key] = (list(link.tools), self._offered(link.tools))
            self._isolations.pop(key, None)
        return Session(link, known[1])

    def _offered(self, tools: list[Tool]) -> ToolSchemas:
        """Raises ConfigError where the settings name no tool, or leave none."""
        names = [tool.name for tool in tools]
        hidden = self._server.reset_tool if self._server else None
        if hidden is not None and hidden not in names:
            raise ConfigError(
                f"The server {self._name} has no tool {hidden!r} to reset it with; {nearest(hidden, names)}"
            )
        schemas = ToolSchemas(tool for tool in tools if tool.name != hidden and self._chosen(tool.name))
        if not self._is_member:
            self._check_choice([*names, *(f"{self._name}{BETWEEN}{name}" for name in names)], names, schemas)
        return schemas

    def _chosen(self, name: str) -> bool:
        names = [name, f"{self._name}{BETWEEN}{name}"]
        included = not self._tools.include or _any_match(names, self._tools.include)
        return included and not _any_match(names, self._tools.exclude)

    def _check_choice(self, names: list[str], listed: list[str], schemas: ToolSchemas) -> None:
        """`names` are all that the user may say of a tool, `listed` those to suggest."""
        said = {"include": self._tools.include, "exclude": self._tools.exclude, "deadlines": self._tools.deadlines}
        for key, patterns in said.items():
            for pattern in patterns:
                if not (pattern in names if key == "deadlines" else _any_match(names, [pattern])):
                    raise ConfigError(
                        f"tools.{key} names {pattern!r}, and the server {self._name} has no such tool; "
                        f"{nearest(pattern, listed)}"
                    )
        if not schemas.openai:
            raise ConfigError(f"tools.include and tools.exclude leave no tool of the server {self._name}.")

    # -- several servers together

    def _member(self, name: str) -> "Sessions":
        if name not in self._members:
            self._refuse_when_closed()
            servers = {server.name: server for server in self._server.members} if self._server else {}
            member = self._members[name] = Sessions(
                deadlines=self._deadlines,
                log_dir=self._log_dir,
                name=name,
                server=servers.get(name),
                tools=self._tools,
                cassette=self._cassette,
            )
            member._is_member = True
        return self._members[name]

    def _together(self, key: str, members: Mapping[str, Session]) -> Session:
        tools = [prefixed(name, tool) for name, session in members.items() for tool in session.offered]
        link = Together({name: session.connection for name, session in members.items()})
        known = self._schemas.get(key)
        if known is None or known[0] != tools:
            schemas = ToolSchemas(tools)
            listed = [tool.name for tool in link.tools]
            plain = [tool.name for session in members.values() for tool in session.connection.tools]
            self._check_choice([*listed, *plain], listed, schemas)
            known = self._schemas[key] = (tools, schemas)
        return Session(link, known[1])

    @asynccontextmanager
    async def _lease_together(self, params: ServerGroup, state: dict[str, Any]) -> AsyncIterator[Lease]:
        """A lease of each server, taken in the order of their names, so that no two episodes wait for each other."""
        _check_states(state, params)
        async with AsyncExitStack() as stack:
            leases = {
                name: await stack.enter_async_context(self._member(name).lease(below, state.get(name)))
                for name, below in sorted(params.servers.items())
            }
            ordered = {name: leases[name].session for name in params.servers}
            lease = Lease(self._together(repr(params), ordered))
            try:
                yield lease
            finally:
                for below in leases.values():
                    below.spoilt = below.spoilt or lease.spoilt


def _check_states(state: dict[str, Any], params: ServerGroup) -> None:
    for name, below in state.items():
        if name not in params.servers or not isinstance(below, dict):
            raise ScenarioError(
                f"The initial_state of several servers holds an object under each one's name "
                f"({', '.join(params.servers)}); it has {name!r}."
            )


async def _ended(task: asyncio.Task[None]) -> None:
    with anyio.CancelScope(shield=True):
        await asyncio.wait({task})


def _any_match(names: list[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _cassette(tools: ToolsConfig) -> "Cassette":
    from mcp_rl.toolserver.cassette import Cassette

    if tools.record is not None:
        return Cassette.recording(tools.record)
    assert tools.replay is not None
    return Cassette.replaying(tools.replay)


@asynccontextmanager
async def open_sessions(
    server: ToolServer, tools: ToolsConfig, *, deadlines: Deadlines | None = None, log_dir: Path | None = None
) -> AsyncIterator[Sessions]:
    """Sessions on a server as the user's settings want them, recorded or played back where they say so.

    Raises ConfigError where the recording cannot be written or read.
    """
    async with AsyncExitStack() as stack:
        cassette = stack.enter_context(_cassette(tools)) if tools.record or tools.replay else None
        yield await stack.enter_async_context(
            Sessions(deadlines=deadlines, log_dir=log_dir, server=server, tools=tools, cassette=cassette)
        )


_in_use: ContextVar[Sessions | None] = ContextVar("sessions in use", default=None)


@asynccontextmanager
async def sessions_in_use() -> AsyncIterator[Sessions]:
    """The sessions of the innermost `async with Sessions()` around us, or new ones for just this context."""
    if sessions := _in_use.get():
        yield sessions
        return
    async with Sessions() as sessions:
        yield sessions
