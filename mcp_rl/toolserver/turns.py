"""Episodes that take turns on a few processes of a server, a call at a time, instead of holding a process each.

Where a server keeps its state in files that it reads again, each episode has a layer of its own on the process: a call
is made over the layer of its episode, and those of the others are put away meanwhile, which takes a millisecond. Where
it keeps its state in the process, only calls that leave no trace can share one. So a model may sample for as long as it
likes without keeping a process from others.

A call that fails takes its process with it, and what episodes had changed there: their next calls are faults. For a
while after that, episodes get processes of their own, so that one which hangs a server harms no other twice.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, TypeVar

import anyio

from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.system.activity import Activity, during
from mcp_rl.system.allowance import not_counted
from mcp_rl.toolserver.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container

    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.session import Lease

T = TypeVar("T")
_QUEUE = 4
"""Episodes that wait for a process before another one is started."""
_APART = 64
"""Episodes that get a process of their own after a call failed on a shared one."""
_FORGOTTEN = 32
"""Layers that nobody needs any more that one request names."""
_ENDED = 0
"""The number of a layer that nobody needs any more."""


class Turn:
    """An episode's place among others on a process."""

    def __init__(self) -> None:
        self.place: _Place | None = None
        self.number: int | None = None
        """The number of its layer, once it changed something; until then it is at the mark."""
        self.joined = False
        self.using = anyio.Lock(fast_acquire=True)

    @property
    def lost(self) -> bool:
        """True if what the episode changed is gone."""
        return self.number is not None and (self.place is None or self.place.failed)


class _Place:
    """A process that is held for the episodes that take turns on it."""

    def __init__(self) -> None:
        self.lease: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self.calls = Admission()
        self.waiting = 0
        self.turns: set[Turn] = set()
        self.over = asyncio.Event()
        """Set once nobody uses it any more, or it failed."""
        self.failed = False
        self.unneeded: list[int] = []
        self.holder: asyncio.Task[None] | None = None
        self._last = _ENDED

    def next_number(self) -> int:
        self._last += 1
        return self._last

    async def bring(self, turn: Turn, *, new: bool) -> bool:
        """Put the layer of `turn` in place, with `new` even if nothing seems to have changed; return whether it was
        necessary.

        Raises ServerFault if the layer before it filled the memory that all share.
        """
        layer = (await self.lease).layer
        if layer is None or (turn.number == self.calls.in_place and not new):
            return False
        leaving = self.calls.in_place or None
        unneeded = [self.unneeded.pop() for _ in self.unneeded[:_FORGOTTEN]]
        if not await layer.turn(leaving, turn.number, unneeded) and leaving is not None:
            raise ServerFault("What the episodes on one process have written does not fit into its layer any more.")
        return True


class Turns:
    """The processes of a server that episodes share, at most `most`; `take` leases one."""

    def __init__(
        self,
        server: str,
        take: Callable[[], AbstractAsyncContextManager[Lease]],
        *,
        harmless: Container[str],
        layered: bool,
        most: int,
    ) -> None:
        self._server, self._take, self._harmless = server, take, harmless
        self._layered, self._most = layered, most
        self._places: list[_Place] = []
        self._apart = 0
        self._closed = False

    def takes(self, turn: Turn, tool: str) -> bool:
        """Return whether an episode can make a call of this tool here; it has made all earlier ones here."""
        if not self._layered and tool not in self._harmless:
            return False
        if not turn.joined and self._apart:
            self._apart -= 1
            return False
        turn.joined = True
        return True

    async def use(self, turn: Turn, tool: str, action: Callable[[Link], Awaitable[T]]) -> T:
        """Return what `action`, a call of `tool`, returns on the link of a process in the state of the episode.

        Raises ServerFault if the call failed, or an earlier one of somebody else took the episode's state with it.
        """
        async with turn.using:
            while True:
                if turn.lost:
                    raise self._lost()
                new = turn.place is None or turn.place.failed
                place = self._free_place(turn) if new else turn.place
                assert place is not None
                harmless = tool in self._harmless
                link, new = await self._admitted(place, turn, harmless=harmless, new=new and self._layered)
                try:
                    if not place.failed:
                        return await self._used(place, turn, harmless, new, action, link)
                finally:
                    place.calls.leave()

    async def _admitted(self, place: _Place, turn: Turn, *, harmless: bool, new: bool) -> tuple[Link, bool]:
        """Wait until the call may be made; the second value says whether it has to bring its layer into place."""
        place.waiting += 1
        try:
            with not_counted(), during(Activity.TOOLS, "a turn at a shared server"):
                link = (await self._leased(place)).session.connection
                return link, await place.calls.enter(turn.number, harmless=harmless, new=new)
        finally:
            place.waiting -= 1

    async def _used(
        self, place: _Place, turn: Turn, harmless: bool, new: bool, action: Callable[[Link], Awaitable[T]], link: Link
    ) -> T:
        try:
            if self._layered:
                with not_counted():
                    anew = await place.bring(turn, new=new)
                if not harmless and turn.number is None:
                    turn.number = place.next_number()
                place.calls.brought(turn.number, harmless=harmless, anew=anew)
            return await action(link)
        except BaseException:
            self._fail(place)
            raise

    def end(self, turn: Turn) -> None:
        """Let go of an episode's layer and its place."""
        place = turn.place
        if place is None:
            return
        turn.place = None
        place.turns.discard(turn)
        if turn.number is not None:
            if place.calls.in_place == turn.number:
                place.calls.in_place = _ENDED
            else:
                place.unneeded.append(turn.number)
        if not place.turns:
            self._let_go(place)

    async def aclose(self) -> None:
        """Give all processes back; what episodes call after that are faults."""
        self._closed = True
        holders = {place.holder for place in self._places if place.holder is not None}
        for place in list(self._places):
            self._fail(place)
            if place.holder is not None and not place.lease.done():  # its server is being started
                place.holder.cancel()
        if holders:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(holders)

    def _free_place(self, turn: Turn) -> _Place:
        """Return the process that fewest wait for, or start another; the episode is there from now on."""
        if self._closed:
            raise self._closing()
        place = min(self._places, key=lambda place: place.waiting, default=None)
        if place is None or (place.waiting >= _QUEUE and len(self._places) < self._most):
            place = _Place()
            place.holder = asyncio.create_task(self._hold(place), name=f"holds a process of {self._server}")
            self._places.append(place)
        turn.place = place
        place.turns.add(turn)
        return place

    async def _hold(self, place: _Place) -> None:
        """Lease a process and keep it while episodes use it."""
        try:
            async with self._take() as lease:
                place.lease.set_result(lease)
                try:
                    await place.over.wait()
                finally:
                    lease.spoilt = lease.spoilt or place.failed
        except BaseException as error:
            if not place.lease.done():
                place.lease.set_exception(error if isinstance(error, Exception) else self._closing())
                place.lease.exception()  # those who wait for it, if anyone, raise it
            if not isinstance(error, Exception):
                raise
        finally:
            self._let_go(place)

    async def _leased(self, place: _Place) -> Lease:
        try:
            return await asyncio.shield(place.lease)
        except ServerFault:
            raise
        except ServerError as error:
            raise ServerFault(str(error), delivered=False) from error

    def _fail(self, place: _Place) -> None:
        if not place.failed and not self._closed:
            self._apart = _APART
        place.failed = True
        self._let_go(place)

    def _let_go(self, place: _Place) -> None:
        with suppress(ValueError):
            self._places.remove(place)
        place.over.set()

    def _closing(self) -> ServerFault:
        return ServerFault(f"The connections to the server {self._server} are closed.", delivered=False)

    def _lost(self) -> ServerFault:
        return ServerFault(
            f"The process of the server {self._server} that held this episode's files is gone, after a call of another "
            "episode."
        )
