"""Processes of ours whose owner is dead: found by the marker in their environment, named, and ended.

The watchdog sees to it that there are none. This is for what even that does not catch: a watchdog that was killed too,
or a machine that killed in the wrong order.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from mcp_rl.processes.marker import marker_in

_BY_ITSELF_SECONDS = 2.0
"""For a watchdog whose owner has just died to end everything."""
_POLITE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Leftover:
    """A process that an earlier run of ours left behind."""

    process: psutil.Process
    role: str
    run: str
    memory_mb: float
    """Resident, when it was found."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        run = f" of the run in {self.run}" if self.run else ""
        return f"{self.role} (process {self.pid}){run}, {self.memory_mb:.0f} MB"


def leftovers() -> list[Leftover]:
    """Processes of this user that carry our marker and whose owner is dead, this process and those above it left out.

    A process in another namespace of process ids (a container's, seen from its host) is not judged: the owner that it
    names is not the one that has this id here.
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
    """Of process ids; empty where the system has none."""
    return str(Path(f"/proc/{pid}/ns/pid").readlink()) if Path("/proc/self/ns/pid").exists() else ""


def end_leftovers(say: Callable[[str], None] = lambda sentence: None) -> list[Leftover]:
    """End what earlier runs left behind, SIGTERM first, then SIGKILL; a sentence to `say` for each.

    What is ending by itself at this moment is given the time. Returns what was ended; where there is nothing
    it takes a few hundredths of a second.
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
