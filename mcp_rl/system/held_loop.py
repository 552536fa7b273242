"""Names whatever holds the event loop for more than a second, in a line of the log.

A thread asks the loop for a sign of life a few times a second, which costs microseconds. If none comes, it says in
which function the loop's thread is, the innermost one of ours and the innermost of all. A busy machine is nobody's
fault: the loop's thread must have used the processor for most of the time, or be stuck for long.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import FrameType

log = logging.getLogger(__name__)
_T = TypeVar("_T")

HELD_SECONDS = 1.0
"""Seconds without a sign of life after which the place is named."""
WATCHER = "watcher of the event loop"
"""The name of the thread."""
_PAUSE = 0.25
_STUCK = 10.0
"""Seconds after which the place is named although its thread does not compute: it waits for something."""
_PACKAGE = __name__.partition(".")[0]


def run_watched(function: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
    """Run an asynchronous function in an event loop of its own, like `anyio.run`, and watch the loop."""
    import anyio

    async def watched() -> _T:
        with watched_loop():
            return await function(*arguments)

    return anyio.run(watched)


@contextmanager
def watched_loop() -> Iterator[None]:
    """Watch the running event loop from another thread while the context is open."""
    watcher = _Watcher(asyncio.get_running_loop(), threading.get_ident())
    thread = threading.Thread(target=watcher.watch, name=WATCHER, daemon=True)
    thread.start()
    try:
        yield
    finally:
        watcher.over.set()
        thread.join()


class _Watcher:
    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self.over = threading.Event()
        self._loop, self._thread = loop, thread
        self._alive = threading.Event()
        self._named: set[str] = set()

    def watch(self) -> None:
        while not self.over.wait(_PAUSE):
            self._alive.clear()
            asked, used = time.monotonic(), self._used()
            try:
                self._loop.call_soon_threadsafe(self._alive.set)
            except RuntimeError:  # the loop is closed
                return
            wait = HELD_SECONDS
            while not self._alive.wait(wait) and not self.over.is_set():
                held = time.monotonic() - asked
                if self._used() - used > held / 2 or held > _STUCK:
                    self._name(held)
                wait = _PAUSE

    def _used(self) -> float:
        """Return the processor time of the loop's thread, in seconds."""
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread))
        except (AttributeError, OSError):  # a system without it: believe the clock
            return time.monotonic()

    def _name(self, held: float) -> None:
        """Log where the loop's thread is, once for each place."""
        frame = sys._current_frames().get(self._thread)
        ours, innermost = _places(frame)
        if ours in self._named or ours is None:
            return
        self._named.add(ours)
        beyond = f" (in {innermost})" if innermost != ours else ""
        log.warning("The event loop has been held for %.1f s by %s%s.", held, ours, beyond)


def _places(frame: FrameType | None) -> tuple[str | None, str]:
    """Return the innermost function of ours and the innermost of all; none of ours while modules are imported."""
    ours, innermost = None, ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("importlib._bootstrap"):
            return None, innermost
        place = f"{module}.{frame.f_code.co_name}, line {frame.f_lineno}"
        innermost = innermost or place
        if ours is None and module.partition(".")[0] == _PACKAGE:
            ours = place
        frame = frame.f_back
    return ours, innermost
