"""Calls on a server that may do anything: each has an end, and a server that died is started again."""

import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio
import psutil

from mcp_rl.errors import McpRlError, ServerError, ServerFault
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import OneServer
from mcp_rl.scenarios.pool import Pool
from mcp_rl.scenarios.sample import Sampler
from mcp_rl.servers.inspection import deadlines_of
from mcp_rl.toolserver.connection import Connection, connect
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.offered import offering

CALL_SECONDS = 10.0
"""For one call where the plugin says nothing: a tool that takes longer is no use in thousands of episodes."""
_RESTARTS = 6
_PING_SECONDS = 1.0


@dataclass(frozen=True)
class Reply:
    """What came of one call. `fault` says why there is no answer."""

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
    def said(self) -> tuple[bool, str, str]:
        """What two equal calls are compared by."""
        return self.is_error, self.text, repr(self.structured)


class Caller:
    """`async with Caller(server, params) as caller`. Raises ServerError where the server cannot be used at all."""

    def __init__(self, server: ToolServer, params: OneServer, *, seed: int, seconds: float) -> None:
        """`seconds` is the time for all calls together."""
        self.server, self._params = server, params
        self.pool = Pool()
        self.samplers: dict[str, Sampler] = {}
        self._seed, self._until = seed, time.monotonic() + seconds
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None
        self._link: Link | None = None
        self._restarts = 0
        self._in_flight = 0
        self._private = server.isolation == "per-rollout"
        self._lock = anyio.Lock()
        self._known: set[psutil.Process] = set()
        self._before: set[psutil.Process] = set()
        self._owners: dict[psutil.Process, str] = {}
        self._randoms: dict[str, random.Random] = {}

    async def __aenter__(self) -> Self:
        self._before = running()
        await self._open()
        for tool in self.link.tools:
            custom = self.server.argument_samplers.get(tool.name)
            self.samplers[tool.name] = Sampler(tool.name, tool.input_schema, self.pool, custom)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    @property
    def link(self) -> Link:
        """The connection with the tools for what else is offered."""
        assert self._link is not None
        return self._link

    @property
    def processes(self) -> set[psutil.Process]:
        """Those that came up since we began."""
        return running() - self._before

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self._until

    def seconds_for(self, tool: str) -> float:
        """The deadline of one call."""
        return self.server.tool_deadlines.get(tool, self.server.deadlines.get("call", CALL_SECONDS))

    def draw(self, tool: Tool) -> dict[str, Any] | None:
        """Arguments that fit the tool's schema."""
        dice = self._randoms.setdefault(tool.name, random.Random(f"{self._seed}:{tool.name}"))
        try:
            drawn = self.samplers[tool.name].draw(dice)
        except (TypeError, ValueError, KeyError, RecursionError, ArithmeticError, AttributeError, IndexError):
            return None  # a schema that is none, or a plugin's sampler that fails
        return drawn.arguments if drawn else None

    async def call(self, tool: str, arguments: dict[str, Any]) -> Reply:
        """Call a tool. Never raises for what the server does."""
        if self.out_of_time:
            return Reply(tool, arguments, fault="there was no time left to call it")
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
            await self._leave_when_stuck()
            return Reply(tool, arguments, fault=str(error))
        reply = Reply(tool, arguments, result.text, result.structured, result.is_error, result.seconds)
        for process in self.processes - self._known:
            self._known.add(process)
            if alone:
                self._owners[process] = tool
        return reply

    async def use_private_folder(self) -> None:
        """Start the server again in a folder of its own, as rollouts get it. Raises ServerError."""
        if not self._private and self._params.ours_to_start:
            self._private = True
            await self._stack.aclose()
            await self._open()

    async def reset(self) -> str | None:
        """Put the server's state back as before an episode; what went wrong."""
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
        except Exception as error:  # whatever a plugin's function raises
            return f"{type(error).__name__}: {error}"
        return None

    def left_by_calls(self) -> Counter[str]:
        """Tool to the number of processes that came up in its calls and are still there."""
        alive = self.processes
        return Counter(tool for process, tool in self._owners.items() if process in alive)

    async def close(self) -> float:
        """Close the connection; how many seconds that took."""
        started = time.monotonic()
        await self._stack.aclose()
        return time.monotonic() - started

    async def _alive(self) -> Link:
        async with self._lock:
            if not self.connection.alive:
                await self._reopen()
            return self.link

    async def _reopen(self) -> None:
        if self._restarts >= _RESTARTS:
            raise ServerError(f"The server {self.server.name} was lost {_RESTARTS} times and is left alone.")
        self._restarts += 1
        await self._stack.aclose()
        await self._open()

    async def _leave_when_stuck(self) -> None:
        """Close the server where it answers nothing any more, so that one call cannot spoil all others."""
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
            private=self._private,
        )
        self._connection = await self._stack.enter_async_context(opening)
        self._link = await offering(self._connection, self.server.offer)
        self._known = self.processes


def running() -> set[psutil.Process]:
    """The live processes below this one."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
        except psutil.Error:
            continue
    return found
