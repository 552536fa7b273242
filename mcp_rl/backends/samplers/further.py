"""A further engine, in a child process, that samples the same policy as the one beside the learner.

A decoding step of a small model is one thread's work, most of it Python's, so a second processor is of use in a second
process only. Imports no torch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mcp_rl.backends.processes.child import ChildEngine, ChildKind, ChildProcess
from mcp_rl.backends.processes.environment import learner_environment

if TYPE_CHECKING:
    from mcp_rl.backends.hosts import LocalSettings


class FurtherEngine:
    """The process, which loads the base at once. Made by `start`; `close` ends it."""

    def __init__(self, process: ChildProcess, settings: LocalSettings) -> None:
        self._process = process
        self.engine = ChildEngine(process)
        told = settings.model_dump_json()
        self._opening = asyncio.create_task(process.ask("engine_alone", abandon=True, settings=told))

    @classmethod
    async def start(cls, settings: LocalSettings, number: int) -> FurtherEngine:
        """Start the process; `number` counts the processes that sample, from 1. Raises ConfigError if it cannot
        start."""
        environment = learner_environment(settings.unsloth, sampling=True)
        child = ChildKind(f"sampler-{number}", f"Sampler {number}", f"Set engine.processes={number - 1}")
        return cls(await ChildProcess.start(settings.run, environment, child), settings)

    async def opened(self) -> str | None:
        """Wait until it can sample; return its signature, None if what it samples depends on the batch."""
        signature, _ = await self._opening
        self._process.ready = True
        return None if signature is None else str(signature)

    async def load(self, file: bytes, version: int) -> str:
        """Sample the weights in a safetensors file from now on; return the fingerprint of what is sampled."""
        fingerprint, _ = await self._process.ask("load", [file], version=version)
        return str(fingerprint)

    async def close(self) -> None:
        """End the process."""
        await self._process.close()  # ends a request that waits, with EngineStop
        await asyncio.gather(self._opening, return_exceptions=True)  # it may have been cancelled by who waited for it
