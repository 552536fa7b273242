"""Limits that no input may exceed: a second of the event loop, 500 MB, and the errors of our own tree."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mcp_rl.errors import McpRlError

SECONDS = 1.0
"""Processor time for which the event loop may be held; wall time would say more about the machine than about us."""
MEGABYTES = 500
_GIVE_UP = 20 * SECONDS
_STATUS = Path("/proc/self/status")
_FORGET = Path("/proc/self/clear_refs")


class Exceeded(BaseException):
    """A limit was exceeded. Not an Exception, so that nothing under test swallows it."""


@contextlib.contextmanager
def limited(*, holds_loop: bool = True) -> Iterator[None]:
    """Fail if the block takes longer, or more memory; with `holds_loop` False only memory and endlessness count."""
    before = _memory(forget=True)
    old = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, _GIVE_UP)
    began = time.thread_time()
    try:
        yield
    finally:
        took = time.thread_time() - began
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
    if holds_loop and took > SECONDS:
        raise Exceeded(f"it held the event loop for {took:.1f} s")
    if (more := _memory() - before) > MEGABYTES:
        raise Exceeded(f"it took {more} MB")


def refused(work: Callable[[], Any], *also: type[Exception]) -> Any:
    """Return what `work` returns, or the error of our tree (or one of `also`) that it raises. Any other is raised."""
    try:
        return work()
    except (McpRlError, *also) as error:
        assert str(error).strip(), "an error without a sentence"
        return error


@contextlib.contextmanager
def watched_loop() -> Iterator[None]:
    """Fail if any step of an event loop takes longer than SECONDS."""
    handle = asyncio.events.Handle
    run, slow = handle._run, []

    def timed(self: asyncio.Handle) -> None:
        began = time.thread_time()
        try:
            run(self)
        finally:
            if (took := time.thread_time() - began) > SECONDS:
                slow.append(f"{self!r} held the event loop for {took:.1f} s")

    handle._run = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        handle._run = run  # type: ignore[method-assign]
    if slow:
        raise Exceeded("; ".join(slow))


def held_now() -> int:
    """Return the bytes of address space of this process; 0 where that is unknown."""
    if not _STATUS.exists():
        return 0
    held = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmSize"))
    return int(held.split()[1]) << 10


def _too_long(number: int, frame: object) -> None:
    raise Exceeded(f"it did not end within {_GIVE_UP:g} s")


def _memory(*, forget: bool = False) -> int:
    """Return the most megabytes that this process has held; with `forget`, as of now on."""
    if not _STATUS.exists():
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak >> (20 if sys.platform == "darwin" else 10)
    if forget:
        with contextlib.suppress(OSError):
            _FORGET.write_text("5")
    held = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(held.split()[1]) >> 10
