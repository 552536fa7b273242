"""Measures how long each kind of work is under way in the event loop of a run.

A context variable holds the clock, so code is timed without being passed one, and is not timed if there is none.
Overlapping work of one kind counts once, so no kind takes more than the whole time. Time with no work under way is the
framework's own overhead.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class Activity(StrEnum):
    """A kind of work."""

    SAMPLING = "sampling"
    """A turn is at the engine."""
    TOOLS = "tools"
    """A tool call is in flight or waits for its server, a server is being made ready, or an agent program runs."""
    JUDGING = "judging"
    """A verifier or a judge is at work."""
    UPDATING = "updating"
    """The learner has a batch, or the engine takes its new weights."""
    SAVING = "saving"
    """Something is being written to disk."""


@dataclass(frozen=True)
class Times:
    """A stretch of time by kinds of work, in seconds."""

    total: float
    of: dict[Activity, float]
    """Time with at least one piece of work of the kind under way; kinds overlap."""
    overhead: float
    """Time with no work under way."""

    def metrics(self) -> dict[str, float]:
        """Return `<kind>_seconds` and `<kind>_time_share` (0 to 1) of each kind and of `overhead`."""
        parts = {**{str(kind): seconds for kind, seconds in self.of.items()}, "overhead": self.overhead}
        shares = {f"{name}_time_share": seconds / max(self.total, 1e-9) for name, seconds in parts.items()}
        return {f"{name}_seconds": seconds for name, seconds in parts.items()} | shares


@dataclass(frozen=True)
class Work:
    """A piece of work under way."""

    kind: Activity
    what: str
    """Name of the tool, or words for what is done; empty where the kind says it all."""
    since: float
    """Time at which it began, by `time.perf_counter`."""


class Clock:
    """Counts the work under way in one event loop. Not thread-safe, apart from `under_way` and `ended`."""

    def __init__(self) -> None:
        now = time.perf_counter()
        self._running = dict.fromkeys(Activity, 0)
        self._since = dict.fromkeys(Activity, now)
        self._spent = dict.fromkeys(Activity, 0.0)
        self._busy, self._idle_since, self._idle = 0, now, 0.0
        self._began = now
        self._work: dict[object, Work] = {}
        self.ended = 0
        """Pieces of work that have ended."""

    @property
    def under_way(self) -> list[Work]:
        """The named pieces of work under way, the oldest first; any thread may ask."""
        return list(self._work.copy().values())

    def begin(self, kind: Activity, work: object = None, what: str = "") -> None:
        """Start a piece of work of this kind. `work` names it in `under_way`, until `end` is called with it."""
        if work is not None:
            self._work[work] = Work(kind, what, time.perf_counter())
        if not self._running[kind]:
            now = self._since[kind] = time.perf_counter()
            if not self._busy:
                self._idle += now - self._idle_since
            self._busy += 1
        self._running[kind] += 1

    def end(self, kind: Activity, work: object = None) -> None:
        """End a piece of work of this kind."""
        self.ended += 1
        self._work.pop(work, None)
        self._running[kind] -= 1
        if not self._running[kind]:
            now = time.perf_counter()
            self._spent[kind] += now - self._since[kind]
            self._busy -= 1
            if not self._busy:
                self._idle_since = now

    def take(self) -> Times:
        """Return the times since the last call. Work that is under way goes on counting."""
        now = time.perf_counter()
        for kind, running in self._running.items():
            if running:
                self._spent[kind] += now - self._since[kind]
                self._since[kind] = now
        if not self._busy:
            self._idle += now - self._idle_since
            self._idle_since = now
        times = Times(now - self._began, self._spent, self._idle)
        self._spent, self._idle, self._began = dict.fromkeys(Activity, 0.0), 0.0, now
        return times


_clock: ContextVar[Clock | None] = ContextVar("activity clock", default=None)


@contextmanager
def timed_by(clock: Clock) -> Iterator[Clock]:
    """Time everything inside with this clock, tasks that are started there included."""
    token = _clock.set(clock)
    try:
        yield clock
    finally:
        _clock.reset(token)


class during:  # lower case, since it reads as a statement: `with during(Activity.TOOLS):`
    """Time a block as work of one kind. Costs a few microseconds, and nothing without a clock."""

    __slots__ = ("_clock", "_kind", "_what")

    def __init__(self, kind: Activity, what: str = "") -> None:
        self._kind, self._what = kind, what
        self._clock = _clock.get()

    def __enter__(self) -> None:
        if self._clock is not None:
            self._clock.begin(self._kind, self, self._what)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._clock is not None:
            self._clock.end(self._kind, self)
