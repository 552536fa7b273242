"""The end of a server: within its deadline, without a signal, and with everything that it started."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import psutil

from mcp_rl.explore.check.caller import lives
from mcp_rl.explore.check.catalogue import CLEAN_EXIT, ENDED_BY_SIGNAL, ORPHANS, SLOW_TO_CLOSE, STILL_RUNNING
from mcp_rl.scenario import OneServer, StdioServer
from mcp_rl.system.processes.watchdog import _POLITE_SECONDS
from mcp_rl.system.visible import shortened
from mcp_rl.toolserver.isolation import names

if TYPE_CHECKING:
    from mcp_rl.explore.check.caller import ServerCaller
    from mcp_rl.explore.check.findings import Finding

_LATE = 0.05
"""Seconds after the server's end from which a process that it started counts as left behind."""
_GONE_WITHIN = 3.0
"""Seconds that the watchdog may take to end everything."""


async def ending(caller: ServerCaller, params: OneServer) -> tuple[float, list[Finding]]:
    """Close the connection and watch the server's processes end. Return the seconds that closing took, and findings."""
    if not params.ours_to_start:
        return await caller.close(), []
    processes = caller.processes
    watchdogs = {process for process in processes if _parent(process) == psutil.Process().pid}
    servers = {process for process in processes if _parent(process) in {watchdog.pid for watchdog in watchdogs}}
    named = {process: _name(process) for process in processes}
    deadline = caller.server.deadlines.get("close", 5.0)
    ended: dict[psutil.Process, float] = {}
    started = time.monotonic()
    seconds_allowed = 2 * deadline + _GONE_WITHIN

    async def watch() -> None:
        while time.monotonic() < started + seconds_allowed and len(ended) < len(processes):
            for process in processes - ended.keys():
                if not lives(process):
                    ended[process] = time.monotonic() - started
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        seconds = await caller.close()
        seconds_allowed = seconds + _GONE_WITHIN
    left = [named[process] for process in processes - ended.keys()]
    by_itself = max((ended.get(server, 99.0) for server in servers), default=0.0)
    stdio = isinstance(params, StdioServer)
    orphans = [
        named[process]
        for process in processes - watchdogs - servers
        if stdio and ended.get(process, 99.0) > by_itself + _LATE
    ]
    if left:
        finding = STILL_RUNNING.found(number=len(left), names=names(left))
    elif seconds > deadline:
        finding = SLOW_TO_CLOSE.found(seconds=seconds, deadline=deadline)
    elif stdio and by_itself > _POLITE_SECONDS:
        finding = ENDED_BY_SIGNAL.found(seconds=_POLITE_SECONDS)
    elif orphans:
        finding = ORPHANS.found(number=len(orphans), names=names(orphans))
    else:
        finding = CLEAN_EXIT.found(seconds=seconds)
    return seconds, [finding]


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.Error:
        return None


def _name(process: psutil.Process) -> str:
    try:
        return f"{shortened(' '.join(process.cmdline()[:3]) or process.name(), 60)} ({process.pid})"
    except psutil.Error:
        return str(process.pid)
