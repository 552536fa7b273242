"""What the processes that we start carry in their environment, so that they can be told from everybody else's.

What they start inherits it. A marker names the owner, the process that started them, by its id and the time that it was
created, since ids are used again: where the system tells it, in ticks since it was started itself, which do not change
where the clock is set.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

OWNER, ROLE, RUN = "MCP_RL_OWNER", "MCP_RL_ROLE", "MCP_RL_RUN"
_CLOCK_STEPS = 2.0
"""Seconds by which the clock may have been set since: the time of creation is reckoned from it."""


@dataclass(frozen=True)
class Marker:
    """Whose a process is, and what it is for."""

    owner: int
    created: float
    """When the owner was created, seconds since 1970."""
    role: str
    run: str
    ticks: int | None = None
    """The same since the system was started; None where it does not tell."""

    @property
    def owner_lives(self) -> bool:
        """A process that has ended and was not collected yet is dead."""
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
    """Variables for the environment of a process that we start."""
    own = psutil.Process()
    ticks = _ticks(own.pid)
    return {
        OWNER: f"{own.pid}:{own.create_time():.2f}" + (f":{ticks}" if ticks is not None else ""),
        ROLE: role,
        RUN: str(run.resolve()) if run is not None else "",
        "SPT_NOENV": "1",  # or setproctitle, as vLLM calls it, writes over what /proc shows of the environment
    }


def marker_in(environment: Mapping[str, str]) -> Marker | None:
    """None where there is none, or what is there is not of our form."""
    owner, _, rest = environment.get(OWNER, "").partition(":")
    created, _, ticks = rest.partition(":")
    try:
        since = int(ticks) if ticks else None
        return Marker(int(owner), float(created), environment.get(ROLE, "?"), environment.get(RUN, ""), since)
    except ValueError:
        return None


def _ticks(pid: int) -> int | None:
    """When a process was created, as Linux has it: proc_pid_stat(5), field 22."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return None
