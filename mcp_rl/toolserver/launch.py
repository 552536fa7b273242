"""Starting a server's process: its command, its environment, its log, and the certainty that it ends with us.

Every server runs under `processes/watchdog.py`, which ends it and all that it started when we close its input or die,
removes its temporary directory, and keeps what it writes to stderr within bounds.
"""

import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from tempfile import gettempdir, mkstemp
from typing import Literal
from urllib.parse import urlsplit

import anyio
from anyio.abc import Process

from mcp_rl.errors import ServerError
from mcp_rl.plugins.bundled import bundled_root
from mcp_rl.processes.marker import marking
from mcp_rl.processes.process_log import ProcessLog, opened_log
from mcp_rl.processes.spawn import basic_environment, end_process, under_watchdog
from mcp_rl.scenario import Launch, OneServer, StdioServer

_READY_POLL = 0.02
_COMES_WITH = {"node": "Node.js", "npx": "Node.js", "uvx": "uv", "docker": "Docker"}
"""Programs that servers are often started with, and what brings them."""
_ATTEMPTS = 3
"""At a free port, which somebody else may take before the server does."""
_open_logs: set[Path] = set()
_folders: set[str] = set()
"""Temporary directories that are the servers' own."""


@contextmanager
def server_log(name: str, log_dir: Path | None) -> Iterator[ProcessLog]:
    """A log of its own for each process that runs at one time; a temporary one where `log_dir` is None."""
    if log_dir is None:
        handle, temporary = mkstemp(prefix="mcp-rl-", suffix=".log")
        os.close(handle)
        path = Path(temporary)
    else:
        log_dir.mkdir(parents=True, exist_ok=True)
        path = _free_log(log_dir.resolve(), re.sub(r"[^\w.-]+", "-", name) or "server")
    _open_logs.add(path)
    try:
        with opened_log(path) as log:
            yield log
    finally:
        _open_logs.discard(path)
        if log_dir is None:
            path.unlink(missing_ok=True)


def _free_log(folder: Path, name: str) -> Path:
    path, number = folder / f"{name}.stderr.log", 2
    while path in _open_logs:
        path, number = folder / f"{name}.{number}.stderr.log", number + 1
    return path


def expand(text: str, *, whose: str = "The server", port: int | None = None) -> str:
    """Fill in `{python}`, `{bundled}`, `{port}`, and `{env:NAME}` from our environment; other braces stay.

    Raises ServerError that names a variable which is not set.
    """
    values = {"python": sys.executable, "bundled": str(bundled_root()), "port": str(port or "")}

    def value(match: re.Match[str]) -> str:
        return _variable(match[2], whose) if match[2] else values[match[1]]

    return re.sub(r"\{(?:(python|bundled|port)|env:(\w+))\}", value, text)


def expand_variables(values: Mapping[str, str], *, whose: str) -> dict[str, str]:
    """Fill in `${NAME}` from our environment. Raises ServerError that names a variable which is not set."""
    return {
        name: re.sub(r"\$\{(\w+)\}", lambda match: _variable(match[1], whose), text) for name, text in values.items()
    }


def _variable(name: str, whose: str) -> str:
    if name not in os.environ:
        raise ServerError(f"{whose} needs the environment variable {name}, which is not set.")
    return os.environ[name]


def working_folder(launch: Launch, *, whose: str) -> str | None:
    """Where the process runs; None for here. Raises ServerError that names a variable which is not set."""
    return None if launch.cwd is None else expand(launch.cwd, whose=whose)


def minimal_environment(launch: Launch, *, whose: str) -> dict[str, str]:
    """What a server gets to see of our environment, and what it is given by name."""
    return basic_environment() | marking("tool server", None) | expand_variables(launch.env, whose=whose)


@contextmanager
def own_folder(params: OneServer, *, wanted: bool) -> Iterator[OneServer]:
    """For one life of a server that we start: a temporary directory of its own, where that is wanted or it has a use
    for `{tmp}`; else the parameters as they are.

    It is there when the process begins, it is what `{tmp}` and TMPDIR say, and the watchdog removes it.
    """
    launch = params if isinstance(params, StdioServer) else params.launch
    if launch is None or not (wanted or _mentions_folder(launch)):
        yield params
        return
    folder = str(Path(gettempdir()) / f"mcp-rl-{secrets.token_hex(8)}")
    given = {name: text.replace("{tmp}", folder) for name, text in launch.env.items()}
    fields = {
        "args": tuple(word.replace("{tmp}", folder) for word in launch.args),
        "env": dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder) | given,
        "cwd": launch.cwd and launch.cwd.replace("{tmp}", folder),
    }
    _folders.add(folder)
    try:
        if isinstance(params, StdioServer):
            yield params.model_copy(update=fields)
        else:
            yield params.model_copy(update={"launch": launch.model_copy(update=fields)})
    finally:
        _folders.discard(folder)
        if Path(folder).exists():  # the watchdog was killed, so nobody has cleaned up
            shutil.rmtree(folder, ignore_errors=True)


def _mentions_folder(launch: Launch) -> bool:
    return any("{tmp}" in text for text in (*launch.args, *launch.env.values(), launch.cwd or ""))


def command_line(
    launch: Launch, *, whose: str, port: int | None = None, stdin: Literal["null", "pass"] = "null"
) -> list[str]:
    """The command under the watchdog. Raises ServerError where there is no such program."""
    command, *args = (expand(word, whose=whose, port=port) for word in (launch.command, *launch.args))
    own = next((path for path in launch.env.values() if path in _folders), "")
    if own:
        Path(own).mkdir(mode=0o700, exist_ok=True)
    cwd = working_folder(launch, whose=whose)
    folder = Path(cwd or ".")
    if shutil.which(command) is None and not (folder / command).is_file():
        hint = f" Install {_COMES_WITH[command]}." if command in _COMES_WITH else ""
        raise ServerError(f"{whose} cannot start: there is no program {command!r} on the PATH.{hint}")
    if cwd is not None and not folder.is_dir():
        raise ServerError(f"{whose} cannot start: there is no folder {cwd}.")
    return under_watchdog([command, *args], stdin=stdin, folder=own)


@asynccontextmanager
async def launched(
    launch: Launch, url: str, *, whose: str, log: ProcessLog, deadline: float
) -> AsyncIterator[tuple[str, Process]]:
    """Run a network server for as long as the context is open; yields its URL once it takes connections.

    `url` and the command may hold `{port}`: a free one is chosen. Raises ServerError where the server exits at start
    or takes no connection within `deadline` seconds.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        port = _free_port()
        process = await start(launch, whose=whose, log=log, port=port)
        try:
            target = expand(url, whose=whose, port=port)
            await _ready(process, target, whose=whose, log=log, deadline=deadline)
        except ServerError:
            await end_process(process)
            if attempt < _ATTEMPTS and re.search(r"address already in use|EADDRINUSE", log.tail()):
                continue
            raise
        except BaseException:
            await end_process(process)
            raise
        break
    try:
        yield target, process
    finally:
        await end_process(process)


async def start(
    launch: Launch, *, whose: str, log: ProcessLog, port: int | None = None, stdin: Literal["null", "pass"] = "null"
) -> Process:
    """Run a server. "pass": its input and output are pipes of ours; "null": it has no input, and its output is logged.

    Raises ServerError where it cannot be started.
    """
    return await anyio.open_process(
        command_line(launch, whose=whose, port=port, stdin=stdin),
        stdin=PIPE,
        stdout=PIPE if stdin == "pass" else log.file,
        stderr=log.file,
        env=minimal_environment(launch, whose=whose),
        cwd=working_folder(launch, whose=whose),
        start_new_session=True,
    )


async def _ready(process: Process, url: str, *, whose: str, log: ProcessLog, deadline: float) -> None:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    with anyio.move_on_after(deadline):
        while process.returncode is None:
            with suppress(OSError):
                await (await anyio.connect_tcp(host, port)).aclose()
                return
            await anyio.sleep(_READY_POLL)
        raise ServerError(exited(whose, log))
    raise ServerError(f"{whose} took no connection at {url} within {deadline:g} s.{said(log)}")


def exited(whose: str, log: ProcessLog) -> str:
    return f"{whose} exited at start.{said(log)}"


def said(log: ProcessLog) -> str:
    """The end of a sentence about a server that failed: its last words."""
    tail = log.tail()
    return f" Its last lines: {tail}" if tail else " It wrote nothing to stderr."


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
