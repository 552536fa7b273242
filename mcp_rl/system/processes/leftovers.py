"""Finds the processes of dead owners by the marker in their environment, and ends them.

The watchdog normally leaves none. This catches the rest: a watchdog that was killed too, or a kernel that killed
processes in the wrong order.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mcp_rl.system.processes.marker import marker_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BY_ITSELF_SECONDS = 2.0
"""Time that a watchdog gets to end everything after its owner died."""
_POLITE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Leftover:
    """A process that an earlier run left behind."""

    process: psutil.Process
    role: str
    run: str
    memory_mb: float
    """Resident memory in MiB, when it was found."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        run = f" of the run in {self.run}" if self.run else ""
        return f"{self.role} (process {self.pid}){run}, {self.memory_mb:.0f} MB"


def leftovers() -> list[Leftover]:
    """Return this user's processes that carry our marker and whose owner is dead, except this process and its parents.

    Processes in another namespace of process ids (a container's, seen from its host) are left out: the owner that they
    name is not the process that has this id here.
    """
    return sorted(_found(), key=lambda leftover: leftover.pid)


def _found() -> Iterator[Leftover]:
    own = psutil.Process()
    spared = {own.pid, *(process.pid for process in own.parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid in spared or process.uids().real != os.getuid():
                continue
            marker = marker_in(process.environ())
            if marker is None or marker.owner_lives or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _namespace(process.pid) == _namespace(own.pid):
                yield Leftover(process, marker.role, marker.run, process.memory_info().rss / 2**20)


def _namespace(pid: int) -> str:
    """Return the namespace of process ids that a process is in; empty if the system has none."""
    return str(Path(f"/proc/{pid}/ns/pid").readlink()) if Path("/proc/self/ns/pid").exists() else ""


def end_leftovers(say: Callable[[str], None] = lambda sentence: None) -> list[Leftover]:
    """End what earlier runs left behind, with SIGTERM and then SIGKILL; `say` gets a sentence about each.

    Processes that are ending by themselves get the time for it. Returns what was ended; with nothing to end it takes a
    few hundredths of a second.
    """
    found = leftovers()
    deadline = time.monotonic() + _BY_ITSELF_SECONDS
    while found and time.monotonic() < deadline:
        time.sleep(0.05)
        found = [leftover for leftover in found if _lives(leftover.process)]
    for leftover in found:
        with suppress(psutil.Error):
            leftover.process.terminate()
    _, stubborn = psutil.wait_procs([leftover.process for leftover in found], timeout=_POLITE_SECONDS)
    for process in stubborn:
        with suppress(psutil.Error):
            process.kill()
    _, alive = psutil.wait_procs(stubborn, timeout=_KILL_SECONDS)
    for leftover in found:
        what = "Could not end" if leftover.process in alive else "Ended"
        say(f"{what} what an earlier run left behind: {leftover}.")
    return found


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
