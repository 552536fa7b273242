"""Room for the connections to one server that episodes take in turns.

A connection whose episode did not end cleanly is closed rather than used again, one that nobody has used for long is
asked whether it still answers, and one that idles is closed.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import anyio

from mcp_rl.activity import Activity, during
from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.toolserver.connection import Connection

T = TypeVar("T")
Opening = Callable[[float], AbstractAsyncContextManager[Connection]]
"""Opens a connection; gets when it was asked for, on the monotonic clock."""

_CHECK_AFTER = 30.0
"""Seconds without a call after which a connection is asked whether it still answers."""
_PING_SECONDS = 5.0


@dataclass(eq=False)
class Place:
    """Room for one connection."""

    connection: Connection | None = None
    closing: AbstractAsyncContextManager[Connection] | None = None
    used_until: float = 0.0
    """When its last episode ended, on the monotonic clock."""
    spoilt: bool = False
    """Whether its episode left it in a state that nobody knows."""


class Places:
    """At most `count` connections, opened by `opening` when they are needed. Where each is for one episode, `once`."""

    def __init__(self, count: int, opening: Opening, *, once: bool, whose: str) -> None:
        self._opening, self._once, self._whose = opening, once, whose
        self._places = [Place() for _ in range(count)]
        self._free = list(self._places)
        self._room = anyio.Semaphore(count)
        self._closed = False

    @asynccontextmanager
    async def take(self, prepare: Callable[[Connection], Awaitable[T]]) -> AsyncIterator[tuple[Place, T]]:
        """A place with an open connection, and what `prepare` made of that; waits while all are taken.

        A connection that died since its last episode is opened anew. Raises ServerError where none can be opened,
        and what `prepare` raises.
        """
        asked = time.monotonic()
        async with self._room:
            place = self._free.pop()
            place.spoilt = False
            try:
                with during(Activity.TOOLS):
                    prepared = await self._prepared(place, prepare, asked)
                yield place, prepared
            except BaseException:
                place.spoilt = True
                raise
            finally:
                try:
                    if place.spoilt or self._once or self._closed:
                        with anyio.CancelScope(shield=True), during(Activity.TOOLS):
                            await _close(place)
                finally:
                    place.used_until = time.monotonic()
                    self._free.append(place)

    async def close_idle(self, seconds: float) -> None:
        """Close the connections that no episode has used for so long."""
        for place in self._places:
            try:
                self._room.acquire_nowait()
            except anyio.WouldBlock:
                return
            try:
                idle = time.monotonic() - place.used_until
                if place in self._free and place.connection is not None and idle > seconds:
                    self._free.remove(place)
                    try:
                        await _close(place)
                    finally:
                        self._free.insert(0, place)
            finally:
                self._room.release()

    async def aclose(self) -> None:
        """Close all, also those that episodes still have: their next call is a fault."""
        self._closed = True
        async with anyio.create_task_group() as tasks:
            for place in self._places:
                tasks.start_soon(_close, place)

    async def _prepared(self, place: Place, prepare: Callable[[Connection], Awaitable[T]], asked: float) -> T:
        used = place.connection is not None
        connection = await self._opened(place, asked)
        try:
            return await prepare(connection)
        except ServerFault:
            if not used or connection.alive:
                raise
        return await prepare(await self._opened(place, asked))

    async def _opened(self, place: Place, asked: float) -> Connection:
        if place.connection is not None and place.connection.alive:
            rested = time.monotonic() - place.used_until > _CHECK_AFTER
            if not rested or await place.connection.ping(_PING_SECONDS):
                return place.connection
        await _close(place)
        self._refuse_when_closed()
        opening = self._opening(asked)
        connection = await opening.__aenter__()
        place.closing = opening
        self._refuse_when_closed()
        place.connection = connection
        return connection

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ServerError(f"The connections to the server {self._whose} are closed.")


async def _close(place: Place) -> None:
    closing, place.closing, place.connection = place.closing, None, None
    if closing is not None:
        await closing.__aexit__(None, None, None)
