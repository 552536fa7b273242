"""Starts processes under the watchdog: they and their descendants end when this process ends, however it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Literal

import anyio
import psutil

from mcp_rl.system.processes.inherited import computing_environment
from mcp_rl.system.processes.marker import marking
from mcp_rl.system.processes.process_log import ProcessLog, opened_log
from mcp_rl.system.redaction import Redaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.abc import Process

_TRACKER = "multiprocessing.resource_tracker"
_WATCHDOG = Path(__file__).with_name("watchdog.py")
SANDBOXED = Path(__file__).with_name("sandboxed.py")
_SOURCE = str(Path(__file__).resolve().parents[3])
"""The folder that holds the package `mcp_rl`."""
Pipes = Literal["null", "out", "pass"]
"""The pipes between a command and us: none, its output, or its input and output."""
_POLL = 0.02
_ASK_SECONDS = 1.0
_STOP_SECONDS = 3.0
"""Time for the watchdog to end everything; it needs about a second, and gets SIGTERM after _ASK_SECONDS."""


def python_path() -> str:
    """Return the PYTHONPATH with which a child process imports this very `mcp_rl`."""
    return os.pathsep.join([_SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])


class Child:
    """A process started by `spawned`."""

    def __init__(self, process: Process, pid: int, role: str, log: ProcessLog) -> None:
        self.process = process
        """The watchdog's process, whose pipes are the command's."""
        self.pid = pid
        """The process id of the command itself."""
        self.role = role
        self.log = log

    @property
    def returncode(self) -> int | None:
        """The exit code as in `subprocess`, -9 after SIGKILL and so on; None while it runs."""
        code = self.process.returncode
        return code - 256 if code is not None and code > 256 - 65 else code

    @property
    def ending(self) -> str:
        """The way it ended, in words: "exited with status 1", "was killed by SIGSEGV"."""
        code = self.returncode
        if code is None:
            return "runs"
        if code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"

    async def wait(self) -> int:
        """Wait until it and its descendants have ended; return its exit code."""
        while (code := self.returncode) is None:  # noqa: ASYNC110
            await anyio.sleep(_POLL)
        return code

    def tail(self, lines: int = 5, characters: int = 600) -> str:
        """Return the last lines of its log, with " | " between them; empty if it wrote nothing."""
        return self.log.tail(lines, characters)

    def kill(self) -> None:
        """Send SIGKILL to it and its descendants, except to the tracker that then removes their shared memory."""
        if self.process.returncode is not None:  # another process may have the watchdog's id by now
            return
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if not any(_TRACKER in word for word in process.cmdline()):
                        process.kill()


async def open_watched(
    command: Sequence[str],
    *,
    stdin: Pipes,
    folder: str = "",
    sandbox: int | None = None,
    redaction: Redaction | None = None,
    **options: Any,
) -> Process:
    """Start a command under the watchdog, whose arguments `watchdog.py` explains, in a session of its own.

    `sandbox` is the descriptor of a socket to a sandbox. No secret that `redaction` knows reaches its stderr. The
    options are those of `anyio.open_process`. Raises OSError if it cannot be started.
    """
    rules = json.dumps((redaction or Redaction()).rules()).encode()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as pipe:
        passed = (reading,) if sandbox is None else (reading, sandbox)
        inside = "" if sandbox is None else str(sandbox)
        process = await anyio.open_process(
            [sys.executable, "-I", "-S", str(_WATCHDOG), stdin, folder, str(reading), inside, *command],
            stdin=PIPE,
            start_new_session=True,
            pass_fds=passed,
            **options,
        )
        with suppress(BrokenPipeError):
            pipe.write(rules)
    return process


@asynccontextmanager
async def spawned(
    command: Sequence[str],
    *,
    role: str,
    run: Path | None,
    log: Path,
    environment: Mapping[str, str] | None = None,
    pipes: Pipes = "null",
    cwd: Path | None = None,
    folder: Path | None = None,
) -> AsyncIterator[Child]:
    """Run a command while the context is open, and end it and all its descendants afterwards.

    Its environment is `computing_environment`, a marker with `role` and the folder of the run, and `environment`. Its
    stderr (with the pipes "null" also its stdout) goes to `log`, up to a limit. With "pass" its standard input and
    output are pipes to this process, `child.process.stdin` and `.stdout`, and when the input ends, it has a moment to
    exit by itself; with "out" only its output is one. `folder` is removed when everything has ended, however this
    process ends. Raises OSError if the command cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with opened_log(log) as file:
        process = await open_watched(
            command,
            stdin=pipes,
            folder=str(folder or ""),
            stdout=file.file if pipes == "null" else PIPE,
            stderr=file.file,
            env=computing_environment() | marking(role, run) | dict(environment or {}),
            cwd=cwd,
        )
        command_pid: int | None = None
        try:
            command_pid = await _pid_of_command(process)
            yield Child(process, command_pid, role, file)
        finally:
            await end_process(process, command_pid)


async def _pid_of_command(process: Process) -> int:
    """Return the id of the watchdog's only child; the watchdog's own if the command ended before it was seen."""
    while process.returncode is None:
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children():
                return child.pid
        await anyio.sleep(_POLL / 4)
    return process.pid


async def end_process(process: Process, command: int | None = None) -> None:
    """End everything under a watchdog: cut its lifeline, and the watchdog does the rest.

    `command` is the id of the command's process, if it is known: without a /proc the command has a process group of its
    own that outlives a killed watchdog.
    """
    with anyio.CancelScope(shield=True):
        if process.stdin:
            with suppress(OSError, anyio.BrokenResourceError):
                await process.stdin.aclose()
        # If the command reads nothing, unread input keeps the pipe and so the lifeline open: then SIGTERM follows.
        if not await _ended(process, _ASK_SECONDS):
            send_signal(process, signal.SIGTERM)
            if not await _ended(process, _STOP_SECONDS):
                below = _below(process.pid)
                send_signal(process, signal.SIGKILL)
                for left in below:
                    with suppress(psutil.Error):
                        left.kill()
                await _ended(process, _STOP_SECONDS)
        if process.returncode == -signal.SIGKILL:  # the watchdog was killed, so nothing was cleaned up
            own = [] if command is None or await anyio.Path("/proc").is_dir() else [command]
            for group in (process.pid, *own):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        with anyio.move_on_after(_STOP_SECONDS):
            await process.aclose()


def send_signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended.

    `process.terminate` and `.kill` first ask the kernel if it has ended. An answer there takes the exit code away from
    the thread in which asyncio waits for it, which then warns of an unknown child process and reports 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _below(pid: int) -> list[psutil.Process]:
    """Return the descendants of a process."""
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


async def _ended(process: Process, seconds: float) -> bool:
    """Return whether it ends in time. Unlike `process.wait` this does not wait for its output to be read."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(_POLL)
    return process.returncode is not None
