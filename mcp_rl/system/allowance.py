"""A time limit that stands still while its work waits for a shared resource."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator


class Allowance:
    """At most `seconds` of work inside `limiting`, which is cancelled after that. Waiting in `not_counted` is free."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = anyio.CancelScope()
        self._began = time.perf_counter()
        self._waited = 0.0
        self._waiting_since: float | None = None

    @property
    def spent(self) -> float:
        """Seconds since the beginning, without those that were not counted."""
        return (self._waiting_since or time.perf_counter()) - self._began - self._waited

    @property
    def exceeded(self) -> bool:
        """True if the work was cancelled."""
        return self._scope.cancelled_caught

    @contextmanager
    def limiting(self) -> Iterator[None]:
        """Limit the work inside, including tasks that are started inside."""
        self._began = time.perf_counter()
        self._scope.deadline = anyio.current_time() + self._seconds
        token = _current.set(self)
        try:
            with self._scope:
                yield
        finally:
            _current.reset(token)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        since = self._waiting_since = time.perf_counter()
        left = self._scope.deadline - anyio.current_time()
        self._scope.deadline = math.inf
        try:
            yield
        finally:
            self._scope.deadline = anyio.current_time() + left
            self._waited += time.perf_counter() - since
            self._waiting_since = None


@contextmanager
def not_counted() -> Iterator[None]:
    """Stop the clock of the innermost allowance around the caller; one caller of it at a time."""
    allowance = _current.get()
    if allowance is None:
        yield
        return
    with allowance._paused():
        yield


_current: ContextVar[Allowance | None] = ContextVar("allowance", default=None)
