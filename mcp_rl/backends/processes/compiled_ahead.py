"""Compiles the built-in model's passes in processes of their own, while tasks are made.

    python -m mcp_rl.backends.processes.compiled_ahead sampling|update

The code is kept on disk (Numba's cache), where the run finds it. Without these processes, or if one fails, the run
compiles the same when it first samples and learns, which takes about 20 seconds each time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import anyio

from mcp_rl.system.measured import recall, remember
from mcp_rl.system.processes.spawn import python_path, spawned

Pass = Literal["sampling", "update"]
PACKAGE = Path(__file__).resolve().parents[2]
_SOURCES = ("inference/native/*.py", "learning/native/*.py")
_KEPT = "compiled"
_SECONDS = 120.0
"""Most seconds that a run waits for the process."""
_NICENESS = 10
"""Niceness of the process: the run comes first, since it needs the code only once it samples."""


class Compiling:
    """A process that compiles a pass, if there is anything to compile."""

    def __init__(self, what: Pass) -> None:
        self._what = what
        self._stack = AsyncExitStack()
        self._child: Any = None

    async def begin(self, run: Path) -> None:
        """Start it, unless the same was compiled before."""
        if recall(_KEPT, _key(self._what)) is not None:
            return
        command = [sys.executable, "-P", "-m", "mcp_rl.backends.processes.compiled_ahead", self._what]
        log, here = run / "logs" / f"compiling.{self._what}.log", {"PYTHONPATH": python_path()}
        child = spawned(command, role="compiler", run=run, log=log, environment=here)
        with suppress(OSError):  # the run compiles by itself
            self._child = await self._stack.enter_async_context(child)

    async def finished(self) -> None:
        """Wait until it has compiled everything, then end it; so too where it takes too long."""
        if self._child is not None:
            with anyio.move_on_after(_SECONDS):
                await self._child.wait()
        await self.close()

    async def close(self) -> None:
        """End it."""
        await self._stack.aclose()


def _key(what: Pass) -> dict[str, str]:
    """Return what decides whether the code on disk is up to date, but for the processor, which Numba looks at."""
    files = sorted(file for pattern in _SOURCES for file in PACKAGE.glob(pattern))
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    folder = os.environ.get("NUMBA_CACHE_DIR", str(PACKAGE))
    return {"pass": what, "code": code, "folder": folder, "numba": version("numba"), "python": sys.version}


def compile_pass(what: Pass) -> None:
    """Compile what sampling or an update calls."""
    if what == "sampling":
        from mcp_rl.inference.native.ahead import compile_sampling

        compile_sampling()
    else:
        from mcp_rl.learning.native.ahead import compile_update

        compile_update()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compile a pass of the built-in model.")
    parser.add_argument("what", choices=get_args(Pass))
    asked = parser.parse_args().what
    with suppress(AttributeError, OSError):  # a system without it
        os.nice(_NICENESS)
    compile_pass(asked)
    remember(_KEPT, _key(asked), {})
