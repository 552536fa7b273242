"""The processes on which calls are compared, each over its own layer of files."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcp_rl.toolserver.link import Link


class Place(Protocol):
    """A server's process over its own layer of files."""

    @property
    def link(self) -> Link: ...

    async def mark(self) -> None:
        """Make the files as they are what `throw_away` returns to."""
        ...

    async def throw_away(self) -> None:
        """Put every file back as it was; the process stays."""
        ...

    async def packed(self) -> bytes | None:
        """Return the files that were written, for `unpack`; None if they are too large to keep."""
        ...

    async def unpack(self, packed: bytes) -> None:
        """Write the files that `packed` returned."""
        ...


OpenPlace = Callable[[], AbstractAsyncContextManager[Place]]
"""Starts a new process over a fresh layer."""


class Processes:
    """Starts processes, or uses one again that is as good as a new one."""

    def __init__(self, open_place: OpenPlace, start_seconds: float) -> None:
        """`start_seconds` is what the first start took."""
        self._open_place = open_place
        self.start_seconds = start_seconds
        self.exits = AsyncExitStack()
        """Ends what is kept open."""
        self._as_new: Place | None = None
        """A process that equals a new one once its layer is thrown away."""

    def use_again(self, place: Place, opened: AsyncExitStack) -> None:
        """Keep a place open that equals a new one once its layer is thrown away; `opened` would close it."""
        self._as_new = place
        self.exits.push_async_exit(opened.pop_all())

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Place]:
        """Open a place in its initial state: a used one whose layer is thrown away if that suffices, as some servers
        take seconds to start."""
        if self._as_new is not None and self._as_new.link.alive:
            await self._as_new.throw_away()
            yield self._as_new
        else:
            async with self.started() as place:
                yield place

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Place]:
        """Open a place, and note how long a start takes: the first one may have asked a launcher."""
        began = time.monotonic()
        async with self._open_place() as place:
            self.start_seconds = min(self.start_seconds, time.monotonic() - began)
            yield place
