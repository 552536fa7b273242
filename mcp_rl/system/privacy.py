"""Hides what this process knows from other processes of the same user, among them the tool servers that it starts.

On Linux any process of a user may read the initial environment of another one (`/proc/PID/environ`), and its memory
where the kernel does not limit tracing to descendants. So variables that no child process inherits are blanked in the
initial environment, and the process is marked as not dumpable, which closes both files to everybody but root. It then
writes no core dumps either, and debuggers such as gdb and py-spy need root. Elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

from mcp_rl.system.processes.inherited import MARKER, computing_environment

_PR_SET_DUMPABLE = 4
_STAT = Path("/proc/self/stat")
_ENV_START = 47
"""Index of env_start among the fields of /proc/self/stat after the program's name (proc(5)); env_end follows."""


def seal_process() -> None:
    """Hide this process's environment and memory. Does nothing where the system offers no way.

    Processes that torchrun started together are left readable: their libraries may exchange memory.
    """
    if sys.platform != "linux" or os.environ.get("WORLD_SIZE", "1") != "1":
        return
    with suppress(OSError, ValueError, IndexError):
        _blank_environment()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _blank_environment() -> None:
    """Overwrite the values of variables that no child inherits in the memory that /proc/PID/environ shows.

    `os.environ`, and getenv in C, keep their values: setting a variable moves its value to the heap.
    """
    fields = _STAT.read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    if not 0 < start < end:
        return
    kept = {name.encode() for name in (*computing_environment(), *MARKER)}
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and value and name not in kept:
            if name in os.environb:
                os.environb[name] = os.environb[name]
            ctypes.memset(at + len(name) + 1, 0, len(value))
        at += len(entry) + 1
