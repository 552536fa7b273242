"""Memory of this machine and of this process."""

from __future__ import annotations

import ctypes
import functools
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def peak_rss_mb() -> float:
    """Return the most memory that this process ever used, in MiB; the kernel counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def give_back_memory() -> None:
    """Give the heap's free pages back to the system, where the C library can (glibc's). Tensors of many sizes leave
    holes between each other that no later one fits into."""
    if (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def machine_memory() -> tuple[int, int]:
    """Return the total and the free bytes of this machine, or of the container around this process."""
    system = psutil.virtual_memory()
    total, free = int(system.total), int(system.available)
    for limit, used in _cgroup_memory():
        total, free = min(total, limit), min(free, max(0, limit - used))
    return total, free


def _cgroup_memory(root: Path = Path("/sys/fs/cgroup")) -> Iterator[tuple[int, int]]:
    """Yield the limit and the use, in bytes, of each control group above this process that has a limit.

    Page cache, which the kernel frees when memory is short, does not count as used.
    """
    folders: list[Path] = [root, root / "memory"]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            path = line.rpartition(":")[2].strip("/")
            below = root if line.startswith("0::") else root / "memory"
            folders += [below.joinpath(*path.split("/")[:depth]) for depth in range(1, len(path.split("/")) + 1)]
    for folder in dict.fromkeys(folders):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):
                most = int((folder / limit).read_text())
                stat = (folder / "memory.stat").read_text()
                cached = re.search(r"^(?:total_)?inactive_file (\d+)", stat, re.MULTILINE)
                yield most, int((folder / used).read_text()) - int(cached[1] if cached else 0)
