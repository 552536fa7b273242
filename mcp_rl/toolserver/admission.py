"""Admission of calls to a process that several episodes share.

Calls are made alone, or together with others that leave no trace and want the same files. Bringing an episode's files
into place costs as much as a quick call, so calls that want the files in place go before those that want others, a few
times in a row. For a few rounds of the event loop an episode may send its next call, since the calls of one turn follow
each other at once.
"""

from __future__ import annotations

import asyncio
from collections import deque

_TOGETHER = 8
"""Calls under way on a process where none leaves a trace."""
_PASSES = 8
"""Calls that may go before the one that has waited longest."""
_ROUNDS = 3
"""Rounds of the event loop in which the next call of a turn arrives."""


class _Waiting:
    def __init__(self, layer: int | None, *, harmless: bool, new: bool) -> None:
        self.layer, self.harmless, self.new = layer, harmless, new
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Admission:
    """The calls under way on a process, and those that wait."""

    def __init__(self) -> None:
        self.in_place: int | None = None
        """The number of the layer that is in place; None: nobody has changed anything."""
        self._under_way = 0
        self._alone = False
        """True while a call is under way that no other may join."""
        self._queue: deque[_Waiting] = deque()
        self._passed = 0
        self._rounds = 0

    async def enter(self, layer: int | None, *, harmless: bool, new: bool) -> bool:
        """Wait until a call over this layer may be made; `leave` must follow.

        `harmless` calls leave no trace; `new` ones bring their layer into place even if it is there. Returns whether
        the call still has to: a harmless one that waited while another one brought the same layer does not.
        """
        call = _Waiting(layer, harmless=harmless, new=new)
        self._queue.append(call)
        self._admit(oldest=len(self._queue) == 1)
        try:
            await call.admitted
        except BaseException:
            if call in self._queue:
                self._queue.remove(call)
            elif not call.admitted.cancelled():
                self.leave()
            raise
        return call.new

    def brought(self, layer: int | None, *, harmless: bool, anew: bool) -> None:
        """Note that the call under way has its layer in place, where it was brought `anew` or was already; others may
        join it now if it is harmless."""
        self.in_place = layer
        if anew:
            for call in self._queue:
                call.new = call.new and not (call.harmless and call.layer == layer)
        if harmless:
            self._alone = False
            self._admit(oldest=False)

    def leave(self) -> None:
        """End a call."""
        self._under_way -= 1
        self._alone = False
        self._admit(oldest=False)
        if self._queue and not self._under_way:
            self._rounds = _ROUNDS
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._rounds -= 1
        if self._rounds <= 0 or self._passed >= _PASSES:
            self._admit(oldest=True)
        elif self._queue and not self._under_way:
            asyncio.get_running_loop().call_soon(self._round)

    def _admit(self, *, oldest: bool) -> None:
        """Let in the calls that want what is in place; with `oldest`, the one that has waited longest if none does."""
        while self._queue and not self._alone and self._under_way < _TOGETHER:
            call = next((one for one in self._queue if self._fits(one)), None)
            if call is not None and call is not self._queue[0] and self._passed >= _PASSES:
                call = None
            if call is None and oldest and not self._under_way:
                call = self._queue[0]
            if call is None:
                return
            self._passed = 0 if call is self._queue[0] else self._passed + 1
            self._queue.remove(call)
            if not call.admitted.done():  # else it was cancelled
                self._under_way += 1
                self._alone = not call.harmless or call.new or call.layer != self.in_place
                call.admitted.set_result(None)

    def _fits(self, call: _Waiting) -> bool:
        return call.layer == self.in_place and (not self._under_way or (call.harmless and not call.new))
