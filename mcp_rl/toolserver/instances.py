"""The number of connections that episodes may have to a server at a time, if nothing says it."""

import psutil

from mcp_rl.system.processes.marker import marker_in
from mcp_rl.system.processes.memory import machine_memory
from mcp_rl.system.threads import cpu_limit

_PER_PROCESSOR, _MOST = 8, 32
_SHARE_OF_MEMORY = 0.25
"""The part of the free memory that servers may take."""
_USUAL_BYTES = 128 * 2**20
"""Memory of a server of which none runs yet."""


def affordable_instances() -> int:
    """Return 8 connections for each processor, at most 32, and fewer if a quarter of the free memory holds fewer."""
    _, free = machine_memory()
    most = min(_PER_PROCESSOR * cpu_limit(), _MOST)
    return max(1, min(most, int(free * _SHARE_OF_MEMORY / _bytes_of_a_server())))


def _bytes_of_a_server() -> int:
    """Return the memory of the largest server that runs now, with its watchdog and everything that it started."""
    sizes = []
    for process in psutil.Process().children():
        try:
            marker = marker_in(process.environ())
            if marker is not None and marker.role == "tool server":
                sizes.append(sum(one.memory_info().rss for one in (process, *process.children(recursive=True))))
        except psutil.Error:
            continue
    return max(sizes, default=_USUAL_BYTES)
