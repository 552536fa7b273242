"""Chooses the number of torch's threads, before torch is imported. Imports nothing heavy.

Waiting OpenMP threads spin by default. On a shared machine two spinning threads made one second of work take eight and
more; passive waiting or a single thread keeps it near what the machine can give. Tool servers and our own event loop
need a CPU too: on two CPUs, torch with one thread played rollouts 1.25 times as fast as with two. While a learner
computes an update nothing else runs, and two threads are 1.3 times as fast as one. A product of a model with a few
million parameters ends before a second of torch's threads has started; its native forward pass splits whole steps, for
as many threads as an update gets.
"""

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

MOST_THREADS = 16
"""More do not help models that fit a CPU."""

_MOST_CROWDED = 4.0
"""Largest factor by which a busy machine lengthens deadlines."""

UPDATE_THREADS = "MCP_RL_UPDATE_THREADS"
"""Variable that tells the processes of a run the number of threads of an update, and of the native forward pass."""


class Threads(NamedTuple):
    """The numbers of torch's threads in one run. Results are bit-identical only with the same."""

    sampling: int
    update: int


def prepare_torch_threads(
    sampling: int | None = None, update: int | None = None, *, small: bool = False, sample_seconds: float = 0.15
) -> Threads:
    """Set the variables that torch reads when it is imported, and return the numbers of threads.

    `sampling`, `update`: the numbers that an earlier session of the run used; without `update`, the same as `sampling`.
    Without both OMP_NUM_THREADS decides; else an update gets every CPU that is free now, and all else one less, or one
    thread where every model is `small`, such as the built-in one.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sampling is None:
        given = os.environ.get("OMP_NUM_THREADS", "")
        if given.isdigit() and int(given) > 0:
            sampling = update = int(given)
        else:
            update = free_cpus(sample_seconds)
            sampling = 1 if small else max(1, update - 1)
    threads = Threads(sampling, update or sampling)
    os.environ |= {"OMP_NUM_THREADS": str(threads.sampling), UPDATE_THREADS: str(threads.update)}
    return threads


def take_turns() -> None:
    """Let Python's threads take turns every 0.2 ms, not every 5, from now on.

    The thread that samples needs the interpreter some times in each pass over the model, which takes a millisecond or
    two if the model is small. While the event loop's thread was busy, it waited 5 ms each time. That thread waited as
    long, after each answer of a tool, while another one imported the learner.
    """
    sys.setswitchinterval(min(sys.getswitchinterval(), 0.0002))


def update_threads() -> int | None:
    """Return the number of threads of an update, where `prepare_torch_threads` chose it in this process or in the one
    that started it; else None."""
    given = os.environ.get(UPDATE_THREADS, "")
    return int(given) if given.isdigit() else None


def free_cpus(sample_seconds: float = 0.15) -> int:
    """Return the number of CPUs that this process may use and that are idle, measured over a moment; at least 1."""
    allowed = _allowed()
    limit = min(cpu_limit(), MOST_THREADS)
    before = _idle_seconds()
    if before is None:
        return max(1, int(limit))
    began = time.perf_counter()
    time.sleep(sample_seconds)
    passed = time.perf_counter() - began
    after = _idle_seconds() or before
    idle = sum(min(1.0, (after.get(cpu, 0.0) - before.get(cpu, 0.0)) / passed) for cpu in allowed)
    return max(1, int(min(limit, round(idle))))


def cpu_limit() -> int:
    """Return the number of CPUs that this process may use, busy or not, by its affinity and its container's share."""
    allowed = len(_allowed())
    return max(1, int(min(allowed, _cgroup_limit() or allowed)))


def crowding() -> float:
    """Return the load of the machine for each of its CPUs over the last minute, from 1 to 4.

    Short deadlines, and the seconds for getting to know a server, are multiplied by it: a busy machine must not decide
    what is known.
    """
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on every system
        return 1.0
    return min(_MOST_CROWDED, max(1.0, load / (os.cpu_count() or 1)))


def _allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _idle_seconds() -> dict[int, float] | None:
    """Return the idle seconds of each CPU since boot; None if the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    fields = (line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit())
    return {int(name[3:]): (int(values[3]) + int(values[4])) / ticks for name, *values in fields}


def _cgroup_limit() -> float | None:
    """Return the container's share of CPUs; None if it has no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1.0, int(quota) / int(period))
    except (OSError, ValueError):
        return None
