"""How a server ends: within its deadline, by itself, and with everything that it started."""

import time
from collections.abc import Iterator

import anyio
import psutil

from mcp_rl.processes.watchdog import _POLITE_SECONDS
from mcp_rl.scenario import OneServer, StdioServer
from mcp_rl.servers.caller import Caller
from mcp_rl.servers.findings import Finding, note, ok, problem
from mcp_rl.servers.isolation import names
from mcp_rl.servers.visible import shortened

_LATE = 0.05
"""Seconds after the server's end from which a process of its own counts as left behind."""
_GONE_WITHIN = 3.0
"""Seconds that the watchdog may take to end all of it."""


async def ending(caller: Caller, params: OneServer) -> tuple[float, list[Finding]]:
    """Close the connection and watch the server's processes end; how many seconds closing took."""
    if not params.ours_to_start:
        return await caller.close(), []
    processes = caller.processes
    watchdogs = {process for process in processes if _parent(process) == psutil.Process().pid}
    servers = {process for process in processes if _parent(process) in {watchdog.pid for watchdog in watchdogs}}
    named = {process: _name(process) for process in processes}
    ended: dict[psutil.Process, float] = {}
    started = time.monotonic()
    seconds = 0.0

    async def watch() -> None:
        while time.monotonic() < started + seconds_allowed and len(ended) < len(processes):
            for process in processes - ended.keys():
                if not _lives(process):
                    ended[process] = time.monotonic() - started
            await anyio.sleep(0.01)

    deadline = caller.server.deadlines.get("close", 5.0)
    seconds_allowed = 2 * deadline + _GONE_WITHIN
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        seconds = await caller.close()
        seconds_allowed = seconds + _GONE_WITHIN
    left = [named[process] for process in processes - ended.keys()]
    by_itself = max((ended.get(server, 99.0) for server in servers), default=0.0)
    orphans = [
        named[process]
        for process in processes - watchdogs - servers
        if ended.get(process, 99.0) > by_itself + _LATE and isinstance(params, StdioServer)
    ]
    return seconds, list(_findings(seconds, deadline, left, by_itself, orphans, isinstance(params, StdioServer)))


def _findings(
    seconds: float, deadline: float, left: list[str], by_itself: float, orphans: list[str], stdio: bool
) -> Iterator[Finding]:
    if left:
        yield problem(
            "shutdown",
            f"{len(left)} processes are still there after the server was closed: {names(left)}.",
            "They pile up until the machine is full.",
            "Let the server end what it starts.",
        )
    elif seconds > deadline:
        yield problem(
            "shutdown",
            f"Closing took {seconds:.1f} s, and may take {deadline:g}.",
            "A server for each rollout is closed thousands of times.",
            "End when the input ends, and on SIGTERM.",
        )
    elif stdio and by_itself > _POLITE_SECONDS:
        yield note(
            "shutdown",
            f"It did not exit within {_POLITE_SECONDS:g} s of the end of its input, and was ended by a signal.",
            "Nothing is left; a server for each rollout takes that much longer.",
            "Exit when standard input ends.",
        )
    elif orphans:
        yield note(
            "shutdown",
            f"It exits and leaves {len(orphans)} processes behind: {names(orphans)}.",
            "We end them too; other clients do not.",
            "End what the server starts before it exits.",
        )
    else:
        yield ok("shutdown", f"It was gone {seconds:.2g} s after it was told to close, with all that it started.")


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


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
