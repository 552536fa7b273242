"""Count the calls and the finds of an exploration, to show its progress.

A context variable holds the tally, so that scenario sources need not be passed one.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class ExplorationTally:
    """The progress of one exploration."""

    calls: int = 0
    """Tool calls made so far."""
    results: int = 0
    """Results that a task can be made of."""
    scenarios: int = 0
    """Scenarios made of them."""

    def parts(self) -> list[str]:
        """Return `512 calls`, `340 results` and `120 scenarios`, without those that are 0."""
        counts = {"calls": self.calls, "results": self.results, "scenarios": self.scenarios}
        return [f"{count} {name}" for name, count in counts.items() if count]


_current: ContextVar[ExplorationTally | None] = ContextVar("exploration", default=None)


@contextmanager
def tallied() -> Iterator[ExplorationTally]:
    """Yield a tally of what is explored inside this context."""
    tally = ExplorationTally()
    token = _current.set(tally)
    try:
        yield tally
    finally:
        _current.reset(token)


def count(*, calls: int = 0, results: int = 0, scenarios: int = 0) -> None:
    """Add to the tally of this context, if there is one."""
    if (tally := _current.get()) is not None:
        tally.calls += calls
        tally.results += results
        tally.scenarios += scenarios
