"""Starts and builds the learner host and the sampler host that the settings ask for. Imports no torch."""

from __future__ import annotations

import importlib
import os
import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio

from mcp_rl.backends.processes.compiled_ahead import Compiling, Pass
from mcp_rl.config import TINY
from mcp_rl.system.collector import collector_paused
from mcp_rl.system.threads import take_turns

if TYPE_CHECKING:
    from mcp_rl.backends.hosts import LearnerHost, LocalSettings, SamplerHost
    from mcp_rl.backends.processes.child import ChildLearner
    from mcp_rl.backends.samplers.vllm_sampler import VllmSampler


class BegunHosts:
    """The hosts of some settings, not opened yet, while everything that takes long and needs no learner starts."""

    def __init__(self, settings: LocalSettings) -> None:
        from mcp_rl.backends.plan.choices import engine_kind, in_process

        self.settings = settings
        self._vllm = engine_kind(settings.engine) == "vllm"
        self._in_process = in_process(settings.placement)
        self._sampler: VllmSampler | None = None
        self._child: ChildLearner | None = None
        self._imports: threading.Thread | None = None
        self._compiling: dict[Pass, Compiling] = {}

    @classmethod
    async def begin(cls, settings: LocalSettings) -> BegunHosts:
        """Start vLLM's server if it shares no device with the learner, and the learner's process; a learner in this
        process has its imports started in a thread, and the built-in model's passes are compiled in processes. Raises
        ConfigError for what this machine cannot do."""
        begun = cls(settings)
        try:
            await begun._begin()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await begun.close()
            raise
        return begun

    async def _begin(self) -> None:
        if self._vllm:
            from mcp_rl.backends.samplers.vllm_sampler import VllmSampler

            self._sampler = VllmSampler(self.settings)
            await self._sampler.begin()
        if self._in_process:
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of vLLM and nvidia-smi, before torch
            if not self._vllm or find_spec("unsloth") is None:  # Unsloth is imported first, and not in a thread
                take_turns()
                self._imports = threading.Thread(target=_import_learner, name="mcp-rl-import", daemon=True)
                self._imports.start()
            if not self._vllm and self.settings.base_model == TINY:
                self._compiling = {"sampling": Compiling("sampling"), "update": Compiling("update")}
                for compiling in self._compiling.values():
                    await compiling.begin(self.settings.run)
        else:
            from mcp_rl.backends.processes.child import ChildLearner

            self._child = ChildLearner(self.settings, sampling=not self._vllm)
            await self._child.begin()

    async def prepared(self) -> None:
        """Wait for the imports in this process, and for the sampler to be compiled."""
        if self._imports is not None:
            await anyio.to_thread.run_sync(self._imports.join, abandon_on_cancel=True)
        if "sampling" in self._compiling:
            await self._compiling["sampling"].finished()

    def make(self) -> tuple[LearnerHost, SamplerHost]:
        """Return both hosts, to be opened and closed by the caller from now on."""
        if self._child is not None:
            from mcp_rl.backends.processes.child import ChildSampler

            return self._child, self._sampler or ChildSampler(self._child)
        if self._vllm:
            from mcp_rl.backends.base.first import import_first

            import_first(self.settings.unsloth.use)  # before transformers and PEFT, which the next import brings
        from mcp_rl.backends.processes.distributed import make_learner_host
        from mcp_rl.backends.processes.in_process import InProcessSampler

        if self._sampler is not None:
            return make_learner_host(self.settings), self._sampler
        sampler = InProcessSampler(self.settings)
        learner = make_learner_host(self.settings, on_base=sampler.build)
        learner.compiling = self._compiling.get("update")
        return learner, sampler

    async def close(self) -> None:
        """End what was started, unless `make` gave it away."""
        try:
            if self._sampler is not None:
                await self._sampler.close()
        finally:
            try:
                for compiling in self._compiling.values():
                    await compiling.close()
            finally:
                if self._child is not None:
                    await self._child.close()


def _import_learner() -> None:
    """Errors are left to `make`, which imports the same modules."""
    with collector_paused(), suppress(Exception):
        importlib.import_module("mcp_rl.backends.processes.distributed")
