"""Slots for the connections that episodes use in turns.

Connections are opened as episodes need them. After the first one, the next ones are opened in the background while
episodes under way may still need them, and from the beginning of an episode, whose model samples first. A connection is
closed rather than reused if its episode did not end cleanly, pinged before use if it rested for long, and closed if it
idles.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import anyio

from mcp_rl.errors import McpRlError, ServerError, ServerFault
from mcp_rl.system.activity import Activity, during
from mcp_rl.toolserver.connection.connection import Connection

log = logging.getLogger(__name__)

T = TypeVar("T")
Opening = Callable[[float], AbstractAsyncContextManager[Connection]]
"""Opens a connection; takes the time at which it was asked for, on the monotonic clock."""

_PING_AFTER = 30.0
"""Seconds without a call after which a connection is pinged before an episode gets it."""
_PING_SECONDS = 5.0
_SPARE = 2
"""Connections that wait for an episode where each serves one: several episodes often need theirs at one time."""


@dataclass(eq=False)
class Slot:
    """Room for one connection."""

    connection: Connection | None = None
    closing: AbstractAsyncContextManager[Connection] | None = None
    used_until: float = 0.0
    """When its last episode ended, on the monotonic clock."""
    spoilt: bool = False
    """True once its episode left the connection in an unknown state."""
    clean: bool = False
    """True if its last episode called nothing that may leave a trace, so that the process is as good as new."""


class Slots:
    """At most `count` connections to a server, opened on demand; with `once`, each serves a single episode that may
    leave a trace.

    `under_way` returns the number of episodes that hold a slot or may still need one.
    """

    def __init__(
        self, count: int, opening: Opening, *, once: bool, server: str, under_way: Callable[[], int] = lambda: 0
    ) -> None:
        self._opening, self._once, self._server = opening, once, server
        self.count = count
        self._slots = [Slot() for _ in range(count)]
        self._free = list(self._slots)
        self._room = anyio.Semaphore(count)
        self._closed = False
        self._under_way = under_way
        self._ahead: asyncio.Task[None] | None = None
        self._needed = False
        """True once an episode has taken a slot."""

    @asynccontextmanager
    async def take(self, prepare: Callable[[Connection], Awaitable[T]]) -> AsyncIterator[tuple[Slot, T]]:
        """Give a slot with an open connection and the result of `prepare` on it; wait while all slots are taken.

        A connection that died since its last episode is replaced, and so is one that cannot be prepared. Raises
        ServerError if none can be opened, and whatever `prepare` raises on a new one.
        """
        asked = time.monotonic()
        self._needed = True
        async with self._room:
            slot = self._next_free()
            slot.spoilt = slot.clean = False
            try:
                with during(Activity.TOOLS, "a server being made ready"):
                    prepared = await self._prepared(slot, prepare, asked)
                self._open_ahead()
                yield slot, prepared
            except BaseException:
                slot.spoilt = True
                raise
            finally:
                try:
                    if slot.spoilt or self._closed or (self._once and not slot.clean):
                        with anyio.CancelScope(shield=True), during(Activity.TOOLS, "a server being stopped"):
                            await _close(slot)
                finally:
                    slot.used_until = time.monotonic()
                    self._free.append(slot)
                    if self._once:
                        asyncio.get_running_loop().call_soon(self._open_ahead)

    def expect(self) -> None:
        """Open a connection in the background for an episode that has just begun, if earlier ones needed theirs."""
        if self._needed:
            self._open_ahead()

    async def close_idle(self, seconds: float) -> None:
        """Close the connections that no episode has used for `seconds`."""
        for slot in self._slots:
            try:
                self._room.acquire_nowait()
            except anyio.WouldBlock:
                return
            try:
                idle = time.monotonic() - slot.used_until
                if slot in self._free and slot.connection is not None and idle > seconds:
                    self._free.remove(slot)
                    try:
                        await _close(slot)
                    finally:
                        self._free.insert(0, slot)
            finally:
                self._room.release()

    async def aclose(self) -> None:
        """Close all connections, including those that episodes still hold: their next call is a fault."""
        self._closed = True
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait({self._ahead})
        async with anyio.create_task_group() as tasks:
            for slot in self._slots:
                tasks.start_soon(_close, slot)

    def _next_free(self) -> Slot:
        """Take a free slot: the one used last of those with an open connection, or else any."""
        slot = next((slot for slot in reversed(self._free) if slot.connection is not None), self._free[-1])
        self._free.remove(slot)
        return slot

    def _open_ahead(self) -> None:
        """Open a connection in the background if too few free ones are open and an episode under way may need it."""
        idle = self._closed or (self._ahead is not None and not self._ahead.done())
        taken = len(self._slots) - len(self._free)
        unopened = [slot for slot in self._free if slot.connection is None]
        spare = len(self._free) - len(unopened)
        enough = spare >= (_SPARE if self._once else 1) or self._under_way() <= taken + spare
        if idle or enough or not unopened:
            return
        with suppress(anyio.WouldBlock):
            self._room.acquire_nowait()
            self._free.remove(unopened[-1])
            self._ahead = asyncio.create_task(self._opened_ahead(unopened[-1]), name=f"opens {self._server} ahead")

    async def _opened_ahead(self, slot: Slot) -> None:
        try:
            await self._opened(slot, time.monotonic())
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await _close(slot)
            if not isinstance(error, McpRlError):
                raise
            log.info("No connection was opened ahead: %s", error)
        finally:
            slot.used_until = time.monotonic()
            self._free.append(slot)
            self._room.release()
            if self._once and slot.connection is not None:
                asyncio.get_running_loop().call_soon(self._open_ahead)

    async def _prepared(self, slot: Slot, prepare: Callable[[Connection], Awaitable[T]], asked: float) -> T:
        used = slot.connection is not None
        connection = await self._opened(slot, asked)
        try:
            return await prepare(connection)
        except ServerFault:
            if not used:
                raise
        await _close(slot)  # what an earlier episode left behind is not this one's fault
        return await prepare(await self._opened(slot, asked))

    async def _opened(self, slot: Slot, asked: float) -> Connection:
        if slot.connection is not None and slot.connection.alive:
            rested = time.monotonic() - slot.used_until > _PING_AFTER
            if not rested or await slot.connection.ping(_PING_SECONDS):
                return slot.connection
        await _close(slot)
        self._refuse_when_closed()
        opening = self._opening(asked)
        connection = await opening.__aenter__()
        slot.closing = opening
        self._refuse_when_closed()
        slot.connection = connection
        return connection

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ServerError(f"The connections to the server {self._server} are closed.")


async def _close(slot: Slot) -> None:
    closing, slot.closing, slot.connection = slot.closing, None, None
    if closing is not None:
        await closing.__aexit__(None, None, None)
