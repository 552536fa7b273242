"""Starting a process of ours under the watchdog, so that it and all that it starts end when we do, however we do."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Literal

import anyio
import psutil
from anyio.abc import Process

from mcp_rl.boundary import is_secret_name
from mcp_rl.processes.marker import marking
from mcp_rl.processes.process_log import ProcessLog, opened_log

INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_COMPUTING = (
    *(
        "CUDA",
        "NVIDIA_",
        "NCCL_",
        "ROCM",
        "HIP_",
        "OMP_",
        "KMP_",
        "MKL_",
        "GOMP_",
        "OPENBLAS_",
        "GLOO_",
        "LD_",
        "DYLD_",
        "CUBLAS_",
        "CUDNN_",
        "FLASHINFER_",
        "BNB_",
    ),
    *("TORCH", "PYTORCH_", "TRITON_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "VLLM_", "UNSLOTH_", "IMPORT_", "XDG_"),
    *("PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("ALL_PROXY", "all_proxy"),
)
"""How the names of variables begin that say how and where models are loaded and computed."""
_COMPILERS = ("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "MAX_JOBS")
"""Triton and torch compile kernels with what these name; in a conda environment there is no other compiler."""
_LAUNCHERS = "TORCHELASTIC_"
"""What torchrun tells its workers is not for what they start."""
_TRACKER = "multiprocessing.resource_tracker"
_WATCHDOG = Path(__file__).with_name("watchdog.py")
_POLL = 0.02
_ASK_SECONDS = 1.0
_STOP_SECONDS = 3.0
"""For the watchdog to end everything; it needs about one. After the first it is asked aloud."""


class Child:
    """A process that was started by `spawned`."""

    def __init__(self, process: Process, pid: int, role: str, log: ProcessLog) -> None:
        self.process = process
        """The watchdog's, whose pipes are the command's."""
        self.pid = pid
        """The command's own."""
        self.role = role
        self.log = log

    @property
    def returncode(self) -> int | None:
        """None while it runs; -9 where SIGKILL ended it, and so on, as in `subprocess`."""
        code = self.process.returncode
        return code - 256 if code is not None and code > 256 - 65 else code

    @property
    def ending(self) -> str:
        """How it ended, for a sentence: "exited with status 1", "was killed by SIGSEGV"."""
        code = self.returncode
        if code is None:
            return "runs"
        if code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"

    async def wait(self) -> int:
        """Until it and all that it started have ended; its return code."""
        while (code := self.returncode) is None:  # noqa: ASYNC110
            await anyio.sleep(_POLL)
        return code

    def tail(self, lines: int = 5, characters: int = 600) -> str:
        """The last lines of its log, " | " between them; empty where it wrote nothing."""
        return self.log.tail(lines, characters)

    def kill(self) -> None:
        """SIGKILL to it and all that it started, but for what removes their shared memory once they are gone."""
        if self.process.returncode is not None:  # somebody else may have the watchdog's id by now
            return
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if not any(_TRACKER in word for word in process.cmdline()):
                        process.kill()


def under_watchdog(command: Sequence[str], *, stdin: Literal["null", "pass"], folder: str = "") -> list[str]:
    """The command line that runs a command under the watchdog, which says what its arguments mean."""
    return [sys.executable, "-I", "-S", str(_WATCHDOG), stdin, folder, *command]


def basic_environment() -> dict[str, str]:
    """What any process gets to see of our environment."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def computing_environment() -> dict[str, str]:
    """`basic_environment`, and what says how models are loaded and computed; nothing whose name is a secret's."""
    wanted = {name: v for name, v in os.environ.items() if name.startswith(_COMPUTING) or name in _COMPILERS}
    left_out = {name for name in wanted if is_secret_name(name) or name.startswith(_LAUNCHERS)}
    return basic_environment() | {name: value for name, value in wanted.items() if name not in left_out}


@asynccontextmanager
async def spawned(
    command: Sequence[str],
    *,
    role: str,
    run: Path | None,
    log: Path,
    environment: Mapping[str, str] | None = None,
    channel: bool = False,
    cwd: Path | None = None,
    folder: Path | None = None,
) -> AsyncIterator[Child]:
    """Run a command for as long as the context is open; all of it is ended in the end, whatever it does.

    It sees of our environment what `computing_environment` lets through, a marker with `role` and the folder of the
    run, and `environment`. What it writes to stderr (and to stdout) goes to `log`, within bounds. With `channel` its
    standard input and output are pipes of ours, `child.process.stdin` and `.stdout`; when the input ends it has a
    moment to go by itself. `folder` is removed when all of it has ended, however we end. Raises OSError where it
    cannot be started at all.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with opened_log(log) as file:
        process = await anyio.open_process(
            under_watchdog(command, stdin="pass" if channel else "null", folder=str(folder or "")),
            stdin=PIPE,
            stdout=PIPE if channel else file.file,
            stderr=file.file,
            env=computing_environment() | marking(role, run) | dict(environment or {}),
            cwd=cwd,
            start_new_session=True,
        )
        command_pid: int | None = None
        try:
            command_pid = await _pid_of_command(process)
            yield Child(process, command_pid, role, file)
        finally:
            await end_process(process, command_pid)


async def _pid_of_command(process: Process) -> int:
    """The watchdog's only child; the watchdog's own where the command has ended before it was seen."""
    while process.returncode is None:
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children():
                return child.pid
        await anyio.sleep(_POLL / 4)
    return process.pid


async def end_process(process: Process, command: int | None = None) -> None:
    """End what runs under a watchdog: its lifeline is cut, and the watchdog does the rest. `command` is the process id
    of what runs there, where it is known: without a /proc it has a group of its own that outlives a killed watchdog."""
    with anyio.CancelScope(shield=True):
        if process.stdin:
            with suppress(OSError, anyio.BrokenResourceError):
                await process.stdin.aclose()
        # Where the command reads nothing, what we sent keeps the pipe and so the lifeline open: then it is asked aloud.
        if not await _ended(process, _ASK_SECONDS):
            process.terminate()
            if not await _ended(process, _STOP_SECONDS):
                below = _below(process.pid)
                process.kill()
                for left in below:
                    with suppress(psutil.Error):
                        left.kill()
                await _ended(process, _STOP_SECONDS)
        if process.returncode == -signal.SIGKILL:  # the watchdog was killed, so nobody has cleaned up
            own = [] if command is None or await anyio.Path("/proc").is_dir() else [command]
            for group in (process.pid, *own):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        with anyio.move_on_after(_STOP_SECONDS):
            await process.aclose()


def _below(pid: int) -> list[psutil.Process]:
    """What descends from a process."""
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


async def _ended(process: Process, seconds: float) -> bool:
    """Whether it ends in time. What it wrote and nobody read does not count, as it does for `process.wait`."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(_POLL)
    return process.returncode is not None
