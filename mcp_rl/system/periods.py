"""The real times of pieces of work, for traces."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def timed() -> Iterator[Callable[[], tuple[float, float]]]:
    """Time a block. The function that it gives returns the Unix times, in seconds, of its beginning and its end, or of
    now while it runs. Its length is right even if the system's clock is set meanwhile."""
    began, started = time.time(), time.perf_counter()
    ended: list[float] = []

    def period() -> tuple[float, float]:
        took = (ended[0] if ended else time.perf_counter()) - started
        return round(began, 6), round(began + took, 6)

    try:
        yield period
    finally:
        ended.append(time.perf_counter())
