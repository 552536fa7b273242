"""Chooses the number of torch's threads, before torch is imported. Imports nothing heavy.

Waiting OpenMP threads spin by default. On a shared machine two spinning threads made one second of work take eight and
more; passive waiting or a single thread keeps it near what the machine can give. Tool servers and our own event loop
need a CPU too: on two CPUs, torch with one thread played rollouts 1.25 times as fast as with two.
"""

import os
import time
from pathlib import Path

MOST_THREADS = 16
"""More do not help models that fit a CPU."""


def prepare_torch_threads(threads: int | None = None, *, sample_seconds: float = 0.15) -> int:
    """Set the variables that torch reads when it is imported, and return the number of threads.

    `threads`: the number that an earlier session of the run used, since results are bit-identical only with the same.
    Without it OMP_NUM_THREADS decides, else the number of CPUs that are free now, less one.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads is None:
        given = os.environ.get("OMP_NUM_THREADS", "")
        threads = int(given) if given.isdigit() and int(given) > 0 else max(1, free_cpus(sample_seconds) - 1)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads


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
