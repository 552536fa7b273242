"""Starting a server's process: its command, its environment, its log, and a guarantee that it ends with us.

Every server runs under `system/processes/watchdog.py`. The watchdog ends it and everything that it started when we
close its input or die, removes its temporary directory, and bounds what it writes to stderr. Errors begin with the
argument `server`, such as "The server NAME".
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from subprocess import PIPE
from tempfile import gettempdir, mkstemp
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import anyio

from mcp_rl.errors import ServerError
from mcp_rl.scenario import Launch, OneServer, StdioServer
from mcp_rl.system.processes.inherited import basic_environment
from mcp_rl.system.processes.marker import marking
from mcp_rl.system.processes.process_log import ProcessLog, opened_log
from mcp_rl.system.processes.spawn import end_process, open_watched
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.known_secrets import redaction_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from anyio.abc import Process

    from mcp_rl.toolserver.sandbox.layer import Layer

_READY_POLL = 0.02
_COMES_WITH = {"node": "Node.js", "npx": "Node.js", "uvx": "uv", "docker": "Docker"}
"""Programs that often start servers, and the product that provides each."""
_BY_NPX = re.compile(r".*/_npx/[0-9a-f]{8,}(?=/)")
"""Folder of npm's cache into which npx installs a package."""
_FOR_MCP_1 = re.compile(
    r"'Server' object has no attribute '\w+'|No module named 'mcp\.server\.fastmcp|cannot import name '\w+' from 'mcp\b"
)
"""Errors of servers for version 1 of the SDK under version 2."""
_ATTEMPTS = 3
"""Attempts to start at a free port, which another process may take before the server does."""
_open_logs: set[Path] = set()
_folders: set[str] = set()
"""Temporary directories of single servers."""


@contextmanager
def server_log(name: str, log_dir: Path | None) -> Iterator[ProcessLog]:
    """Open a log that no other running process uses; a temporary one if `log_dir` is None."""
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


def expand(text: str, *, server: str = "The server", port: int | None = None) -> str:
    """Fill in `{python}`, `{bundled}`, `{port}`, and `{env:NAME}` from our environment; other braces stay.

    Raises ServerError that names a variable that is not set.
    """
    values = {"python": sys.executable, "bundled": str(bundled_root()), "port": str(port or "")}

    def value(match: re.Match[str]) -> str:
        return _variable(match[2], server) if match[2] else values[match[1]]

    return re.sub(r"\{(?:(python|bundled|port)|env:(\w+))\}", value, text)


def expand_variables(values: Mapping[str, str], *, server: str) -> dict[str, str]:
    """Fill in `${NAME}` from our environment. Raises ServerError that names a variable that is not set."""
    return {
        name: re.sub(r"\$\{(\w+)\}", lambda match: _variable(match[1], server), text) for name, text in values.items()
    }


def _variable(name: str, server: str) -> str:
    if name not in os.environ:
        raise ServerError(f"{server} needs the environment variable {name}, which is not set.")
    return os.environ[name]


def working_folder(launch: Launch, *, server: str) -> str | None:
    """Return the folder to run in; None means ours. Raises ServerError that names a variable that is not set."""
    return None if launch.cwd is None else expand(launch.cwd, server=server)


def minimal_environment(launch: Launch, *, server: str) -> dict[str, str]:
    """Return a server's environment: the basic part of ours, our marker, and the variables that `launch` names."""
    return basic_environment() | marking("tool server", None) | expand_variables(launch.env, server=server)


@contextmanager
def own_folder(params: OneServer, *, wanted: bool) -> Iterator[OneServer]:
    """Give a server that we start its own temporary directory, if that is wanted or its parameters use `{tmp}`.

    Gives the parameters with `{tmp}` and TMPDIR filled in, or unchanged. The directory is created just before the
    process starts, and the watchdog removes it.
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
        if Path(folder).exists():  # the watchdog was killed before it could clean up
            shutil.rmtree(folder, ignore_errors=True)


def folder_of(params: OneServer) -> Path:
    """Return the temporary directory of its own that `own_folder` gave a server, made now if need be."""
    launch = params if isinstance(params, StdioServer) else params.launch
    assert launch is not None
    folder = Path(_own(launch))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _own(launch: Launch) -> str:
    return next((path for path in launch.env.values() if path in _folders), "")


def _mentions_folder(launch: Launch) -> bool:
    return any("{tmp}" in text for text in (*launch.args, *launch.env.values(), launch.cwd or ""))


def command_line(launch: Launch, *, server: str, port: int | None = None) -> tuple[list[str], str]:
    """Return the command, and its own temporary directory or "". Raises ServerError if the program or the folder does
    not exist."""
    command, *args = (expand(word, server=server, port=port) for word in (launch.command, *launch.args))
    own = _own(launch)
    if own:
        Path(own).mkdir(mode=0o700, exist_ok=True)
    cwd = working_folder(launch, server=server)
    folder = Path(cwd or ".")
    if shutil.which(command) is None and not (folder / command).is_file():
        hint = f" Install {_COMES_WITH[command]}." if command in _COMES_WITH else ""
        missing = "does not exist" if os.sep in command else "is not on the PATH"
        raise ServerError(f"{server} cannot start: the program {command!r} {missing}.{hint}")
    if cwd is not None and not folder.is_dir():
        raise ServerError(f"{server} cannot start: the folder {cwd} does not exist.")
    return [command, *args], own


@asynccontextmanager
async def launched(
    launch: Launch, url: str, *, server: str, log: ProcessLog, deadline: float, layer: Layer | None = None
) -> AsyncIterator[tuple[str, Process]]:
    """Run a network server while the context is open; give its URL once it accepts connections.

    A free port replaces `{port}` in `url` and the command. Raises ServerError if the server exits at start or accepts
    no connection within `deadline` seconds.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        port = _free_port()
        process = await start(launch, server=server, log=log, port=port, layer=layer)
        try:
            target = expand(url, server=server, port=port)
            await _ready(process, target, launch=launch, server=server, log=log, deadline=deadline)
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
    launch: Launch,
    *,
    server: str,
    log: ProcessLog,
    port: int | None = None,
    stdin: Literal["null", "pass"] = "null",
    layer: Layer | None = None,
) -> Process:
    """Start a server; with a `layer`, in a sandbox. With `stdin` "pass", its input and output are our pipes; with
    "null", it has no input and its output is logged.

    Raises ServerError if it cannot be started.
    """
    cwd = working_folder(launch, server=server)
    command, own = command_line(launch, server=server, port=port)
    with layer.descriptor(cwd) if layer is not None else nullcontext() as sandbox:
        return await open_watched(
            command,
            stdin=stdin,
            folder=own,
            sandbox=sandbox,
            redaction=redaction_for(launch),
            stdout=PIPE if stdin == "pass" else log.file,
            stderr=log.file,
            env=minimal_environment(launch, server=server),
            cwd=cwd,
        )


async def _ready(process: Process, url: str, *, launch: Launch, server: str, log: ProcessLog, deadline: float) -> None:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    with anyio.move_on_after(deadline):
        while process.returncode is None:
            with suppress(OSError):
                await (await anyio.connect_tcp(host, port)).aclose()
                return
            await anyio.sleep(_READY_POLL)
        raise exited(server, log, launch)
    raise ServerError(f"{server} accepted no connection at {url} within {deadline:g} s.{last_lines(log)}")


class WrittenForMcp1(ServerError):
    """A Python server that needs version 1 of the package mcp and was started beside a newer one."""


def exited(server: str, log: ProcessLog, launch: Launch) -> ServerError:
    """Return the error for a server that exited at start, with advice for two common causes.

    npm considers a package installed once its own files are there, even without its dependencies, so a stopped npx
    leaves a server that cannot start. Python servers of the first version of the SDK fail with the second one.
    """
    said = last_lines(log)
    if _FOR_MCP_1.search(log.tail(30, 4000)):
        return WrittenForMcp1(
            f"{server} exited at start, since it was written for version 1 of the Python package mcp: install 'mcp<2' "
            f"where it is installed, or start it by uvx --with 'mcp<2'.{said}"
        )
    folder = next((found[0] for arg in launch.args if (found := _BY_NPX.match(arg))), None)
    if folder is None or "MODULE_NOT_FOUND" not in log.tail(30, 4000):
        return ServerError(f"{server} exited at start.{said}")
    return ServerError(
        f"{server} exited at start, since npx has not installed all of it: remove {folder} and start again.{said}"
    )


def last_lines(log: ProcessLog) -> str:
    """Return a sentence with the last lines that a server wrote, to append to an error."""
    tail = log.tail()
    return f" Its last lines: {tail}" if tail else " It wrote nothing to stderr."


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
