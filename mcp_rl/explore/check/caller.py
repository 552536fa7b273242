"""Calls on a server that may do anything: every call ends, and a server that died is started again."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import anyio
import psutil

from mcp_rl.errors import McpRlError, ServerError, ServerFault
from mcp_rl.explore.check.inspection import deadlines_of
from mcp_rl.explore.fitting import observe_start
from mcp_rl.explore.sample import Sampler, samplers
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.toolserver.connection.connection import Connection, connect
from mcp_rl.toolserver.filling import fill
from mcp_rl.toolserver.sandbox.choice import sandbox_of
from mcp_rl.toolserver.tools.offered import offering

if TYPE_CHECKING:
    from types import TracebackType

    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

CALL_SECONDS = 10.0
"""Default deadline of a call. A slower tool is of no use in thousands of episodes."""
_RESTARTS = 6
_PING_SECONDS = 1.0


@dataclass(frozen=True)
class CallReply:
    """The result of one call, or in `fault` the reason why there is none."""

    tool: str
    arguments: dict[str, Any]
    text: str = ""
    structured: Any = None
    is_error: bool = False
    seconds: float = 0.0
    fault: str | None = None

    @property
    def worked(self) -> bool:
        return self.fault is None and not self.is_error

    @property
    def content(self) -> tuple[bool, str, str]:
        """The parts in which two equal calls are compared."""
        return self.is_error, self.text, repr(self.structured)


class ServerCaller:
    """A connection for checks: `async with ServerCaller(…) as caller`.

    Entering it raises ServerError where the server cannot be used at all.
    """

    def __init__(self, server: ToolServer, params: OneServer, *, seed: int, seconds: float) -> None:
        """`seconds` is the time for all calls together."""
        self.server, self._params = server, params
        self.pool = ValuePool()
        self._samplers: dict[str, Sampler] = {}
        self._randoms: dict[str, random.Random] = {}
        self._seed, self._until = seed, time.monotonic() + seconds
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None
        self._link: Link | None = None
        self._private = server.isolation == "per-rollout"
        self._lock = anyio.Lock()
        self._restarts = self._in_flight = 0
        self._before: set[psutil.Process] = set()
        self._known: set[psutil.Process] = set()
        self._owners: dict[psutil.Process, str] = {}

    async def __aenter__(self) -> Self:
        self._before = running()
        await self._open()
        observe_start(self.pool, self._params, self.server.start)
        self._samplers = samplers(self.link.tools, self.pool, self.server)
        self._randoms = {name: random.Random(f"{self._seed}:{name}") for name in self._samplers}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    @property
    def link(self) -> Link:
        """The connection with the tools for resources and prompts that the server's `offer` adds."""
        assert self._link is not None
        return self._link

    @property
    def processes(self) -> set[psutil.Process]:
        """The child processes that came up since this caller was entered."""
        return running() - self._before

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self._until

    def seconds_for(self, tool: str) -> float:
        """Return the deadline of one call of a tool."""
        return self.server.tool_deadlines.get(tool, self.server.deadlines.get("call", CALL_SECONDS))

    def draw(self, tool: Tool) -> dict[str, Any] | None:
        """Return arguments that fit the tool's schema, or None where none can be drawn."""
        try:
            drawn = self._samplers[tool.name].draw(self._randoms[tool.name])
        except (TypeError, ValueError, KeyError, RecursionError, ArithmeticError, AttributeError, IndexError):
            return None  # an invalid schema, or a plugin's sampler that fails
        return drawn.arguments if drawn else None

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallReply:
        """Call a tool. Never raises for what the server does."""
        if self.out_of_time:
            return CallReply(tool, arguments, fault="there was no time left to call it")
        try:
            link = await self._alive()
            self._in_flight += 1
            alone = self._in_flight == 1
            try:
                result = await link.call(tool, arguments, deadline=self.seconds_for(tool))
            finally:
                alone = alone and self._in_flight == 1
                self._in_flight -= 1
        except (ServerFault, ServerError) as error:
            await self._close_if_stuck()
            return CallReply(tool, arguments, fault=str(error))
        for process in self.processes - self._known:
            self._known.add(process)
            if alone:
                self._owners[process] = tool
        return CallReply(tool, arguments, result.text, result.structured, result.is_error, result.seconds)

    async def use_private_folder(self) -> None:
        """Restart the server in a temporary folder of its own, as rollouts get it. Raises ServerError."""
        if not self._private and self._params.ours_to_start:
            self._private = True
            await self._stack.aclose()
            await self._open()

    async def reset(self) -> str | None:
        """Reset the server's state as before an episode. Return the error, or None."""
        try:
            link = await self._alive()
            if self.server.reset_tool is not None:
                result = await link.call(self.server.reset_tool, {})
                if result.is_error:
                    return f"its tool {self.server.reset_tool} says: {result.text}"
            if self.server.reset is not None:
                await self.server.reset(link, {})
        except McpRlError as error:
            return str(error)
        except Exception as error:  # anything that a plugin's function raises
            return f"{type(error).__name__}: {error}"
        return None

    def left_by_calls(self) -> Counter[str]:
        """Count by tool the processes that came up during its calls and still run."""
        alive = self.processes
        return Counter(tool for process, tool in self._owners.items() if process in alive)

    async def close(self) -> float:
        """Close the connection and return the seconds that it took."""
        started = time.monotonic()
        await self._stack.aclose()
        return time.monotonic() - started

    async def _alive(self) -> Link:
        async with self._lock:
            if not self.connection.alive:
                if self._restarts >= _RESTARTS:
                    raise ServerError(f"The server {self.server.name} was lost {_RESTARTS} times and is left alone.")
                self._restarts += 1
                await self._stack.aclose()
                await self._open()
            return self.link

    async def _close_if_stuck(self) -> None:
        """Close a server that no longer answers pings, so that one call cannot spoil all others."""
        async with self._lock:
            if self.connection.alive and not await self.connection.ping(_PING_SECONDS):
                await self._stack.aclose()

    async def _open(self) -> None:
        opening = connect(
            self._params,
            deadlines=deadlines_of(self.server),
            name=self.server.name,
            stateful=True,
            allow_schema_change=True,
            sandbox=sandbox_of(self.server, private=self._private),
        )
        self._connection = await self._stack.enter_async_context(opening)
        self._connection.elicitation = self.server.elicitation
        self._link = await offering(self._connection, self.server.offer)
        await fill(self._link, self._connection.layer, self.server)
        self._known = self.processes


def running() -> set[psutil.Process]:
    """Return the live descendants of this process."""
    return {process for process in psutil.Process().children(recursive=True) if lives(process)}


def lives(process: psutil.Process) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
