"""Compiles the built-in model's passes in processes of their own, while tasks are made.

    python -m mcp_rl.backends.processes.compiled_ahead sampling|update

The code is kept on disk (Numba's cache), where the run finds it. Without these processes, or if one fails, the run
compiles the same when it first samples and learns, which takes 10 to 30 seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import anyio

from mcp_rl.system.measured import recall, remember
from mcp_rl.system.processes.spawn import python_path, spawned

if TYPE_CHECKING:
    from mcp_rl.learning.samples import Sample

Pass = Literal["sampling", "update"]
PACKAGE = Path(__file__).resolve().parents[2]
_SOURCES = ("inference/cache.py", "inference/native/*.py", "learning/native/*.py")
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
    """Sample or learn a little with the built-in model."""
    import numpy as np

    from mcp_rl.backends.base.base_model import make_learner, open_base
    from mcp_rl.backends.base.options import plan_loading
    from mcp_rl.config import TINY, TrainConfig, UnslothConfig
    from mcp_rl.inference.drafts import Drafts
    from mcp_rl.inference.native.guesses import CONTEXT
    from mcp_rl.inference.policy import Policy
    from mcp_rl.inference.probe import decodes_as_it_prefills
    from mcp_rl.learning.measure import forward_and_back

    config = TrainConfig()
    base = open_base(plan_loading(TINY, UnslothConfig(use=False), config))
    if what == "sampling":
        decodes_as_it_prefills(Policy(base.model))
        Drafts().take_in(np.zeros((1, CONTEXT), np.int64), np.zeros(1, np.int64))
    else:
        learner = make_learner(base.model, TINY, config, plan=base.plan)
        forward_and_back(learner, _samples())()


def _samples() -> list[Sample]:
    """Return two episodes that share their beginning."""
    import numpy as np

    from mcp_rl.learning.samples import Sample

    made = []
    for own in (3, 4):
        tokens, at = [*range(40), *[own] * 5], np.arange(39, 44)
        numbers = np.ones(len(at), np.float32)
        targets = np.full(len(at), own, np.int64)
        made.append(
            Sample(tokens=tokens, at=at, targets=targets, logprobs=-numbers, weights=numbers, advantage=1.0, group=0)
        )
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compile a pass of the built-in model.")
    parser.add_argument("what", choices=get_args(Pass))
    asked = parser.parse_args().what
    with suppress(AttributeError, OSError):  # a system without it
        os.nice(_NICENESS)
    compile_pass(asked)
    remember(_KEPT, _key(asked), {})
