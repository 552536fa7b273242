"""Environment variables that mark the processes that we start, so that they can be recognised later.

Their own children inherit the marker. It names the owner, the process that started them, by its id and its time of
creation, since ids are used again. If the system tells it, that time is in ticks since boot, which do not change when
the clock is set.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mcp_rl.system.processes.inherited import OWNER, ROLE, RUN

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLOCK_STEPS = 2.0
"""Seconds by which the clock, and with it the time of creation, may have been set since."""


@dataclass(frozen=True)
class Marker:
    """The owner of a process, its role and its run."""

    owner: int
    created: float
    """The owner's time of creation, in seconds since 1970."""
    role: str
    run: str
    ticks: int | None = None
    """The owner's time of creation, in ticks since boot; None if the system does not tell."""

    @property
    def owner_lives(self) -> bool:
        """True while the owner runs; a zombie counts as dead."""
        try:
            owner = psutil.Process(self.owner)
            if owner.status() == psutil.STATUS_ZOMBIE:
                return False
            ticks = _ticks(self.owner)
            if self.ticks is not None and ticks is not None:
                return ticks == self.ticks
            return abs(owner.create_time() - self.created) < _CLOCK_STEPS
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            return True


def marking(role: str, run: Path | None) -> dict[str, str]:
    """Return the marker's variables, for the environment of a process that we start."""
    return {
        OWNER: this_process(),
        ROLE: role,
        RUN: str(run.resolve()) if run is not None else "",
        "SPT_NOENV": "1",  # or setproctitle, as vLLM calls it, writes over what /proc shows of the environment
    }


def this_process() -> str:
    """Return the process that calls this, as a marker names its owner."""
    own = psutil.Process()
    ticks = _ticks(own.pid)
    return f"{own.pid}:{own.create_time():.2f}" + (f":{ticks}" if ticks is not None else "")


def marker_in(environment: Mapping[str, str]) -> Marker | None:
    """Return the marker in an environment; None if it has none, or a malformed one."""
    owner, _, rest = environment.get(OWNER, "").partition(":")
    created, _, ticks = rest.partition(":")
    try:
        since = int(ticks) if ticks else None
        return Marker(int(owner), float(created), environment.get(ROLE, "?"), environment.get(RUN, ""), since)
    except ValueError:
        return None


def _ticks(pid: int) -> int | None:
    """Return the time at which a process was created, as Linux has it: proc_pid_stat(5), field 22."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return None
