"""Where the time of a run goes: which kinds of work are under way in the event loop, and for how long.

A clock is held by a context variable, so that whatever works below it is timed without being handed anything; where
there is none, nothing is. Work of one kind that overlaps is counted once, so no kind takes more than the whole, and
what is left when nothing at all was under way is the framework's own: overhead.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType


class Activity(StrEnum):
    """A kind of work."""

    SAMPLING = "sampling"
    """A turn is at the engine."""
    TOOLS = "tools"
    """A tool call is in flight, or a server is being made ready for an episode."""
    JUDGING = "judging"
    """A verifier or a judge is at work."""
    UPDATING = "updating"
    """The learner has a batch, or the engine takes its new weights."""
    SAVING = "saving"
    """Something is being written to disk."""


@dataclass(frozen=True)
class Times:
    """A stretch of time, in seconds."""

    total: float
    of: dict[Activity, float]
    """While at least one piece of work of the kind was under way; kinds overlap."""
    overhead: float
    """While none was."""

    def metrics(self) -> dict[str, float]:
        """`<kind>_seconds`, `<kind>_time_share` (0 to 1) for each kind, and the same for `overhead`."""
        parts = {**{str(kind): seconds for kind, seconds in self.of.items()}, "overhead": self.overhead}
        shares = {f"{name}_time_share": seconds / max(self.total, 1e-9) for name, seconds in parts.items()}
        return {f"{name}_seconds": seconds for name, seconds in parts.items()} | shares


class Clock:
    """Counts what is under way. For one event loop: not safe between threads."""

    def __init__(self) -> None:
        now = time.perf_counter()
        self._running = dict.fromkeys(Activity, 0)
        self._since = dict.fromkeys(Activity, now)
        self._spent = dict.fromkeys(Activity, 0.0)
        self._busy, self._idle_since, self._idle = 0, now, 0.0
        self._began = now

    def begin(self, kind: Activity) -> None:
        """A piece of work of this kind starts."""
        if not self._running[kind]:
            now = self._since[kind] = time.perf_counter()
            if not self._busy:
                self._idle += now - self._idle_since
            self._busy += 1
        self._running[kind] += 1

    def end(self, kind: Activity) -> None:
        """A piece of work of this kind is over."""
        self._running[kind] -= 1
        if not self._running[kind]:
            now = time.perf_counter()
            self._spent[kind] += now - self._since[kind]
            self._busy -= 1
            if not self._busy:
                self._idle_since = now

    def take(self) -> Times:
        """What was counted since the last time; what is under way goes on counting."""
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


_clock: ContextVar[Clock | None] = ContextVar("clock of what is under way", default=None)


@contextmanager
def timed_by(clock: Clock) -> Iterator[Clock]:
    """Everything inside, also in tasks that are started there, is timed by this clock."""
    token = _clock.set(clock)
    try:
        yield clock
    finally:
        _clock.reset(token)


class during:  # reads as what it is: `with during(Activity.TOOLS):`
    """Work of one kind, from here to the end of the block. Costs a microsecond, and nothing without a clock."""

    __slots__ = ("_clock", "_kind")

    def __init__(self, kind: Activity) -> None:
        self._kind = kind
        self._clock = _clock.get()

    def __enter__(self) -> None:
        if self._clock is not None:
            self._clock.begin(self._kind)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._clock is not None:
            self._clock.end(self._kind)
