"""Samples the learner's policy with vLLM.

With an adapter, every version is written to a folder of its own, loaded under a name of its own (`run@step`) and
requested by that name: running turns end under their own version, and no cache of one version can serve another. In
full fine-tuning all weights are written and loaded in place, between turns, and the prefix cache is emptied. After each
swap `SwapProbe` checks that the learner's policy is sampled. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import logging
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.backends.base.options import loaded_before
from mcp_rl.backends.plan.choices import ranks
from mcp_rl.backends.samplers.swap_probe import SwapProbe, probe_ids
from mcp_rl.config import TINY, EngineConfig, PlacementConfig
from mcp_rl.config.engine_arguments import argument_name
from mcp_rl.errors import ConfigError, EngineError
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion, VllmEngine
from mcp_rl.learning import canaries
from mcp_rl.system.processes.held_folder import HeldFolder
from mcp_rl.system.processes.memory import machine_memory
from mcp_rl.tiny import weights_path

if TYPE_CHECKING:
    from mcp_rl.backends.hosts import LearnerHost, LocalSettings
    from mcp_rl.inference.chat.chat_format import ChatFormat

log = logging.getLogger(__name__)
ADAPTERS = "adapters"
"""Folder in the run directory with the versions that are being sampled."""
IN_MEMORY = "mcp_rl_weights_"
"""Beginning of the names of folders in the machine's memory."""
_FORGET_SECONDS = 10.0
"""Time for a server that we did not start to unload our adapters."""


@dataclass(frozen=True)
class Swap:
    """Durations of the parts of a swap, in seconds."""

    write: float
    load: float
    probe: float


class VllmSampler:
    """A vLLM server, started here or running already, and the policies in it."""

    def __init__(self, settings: LocalSettings, server: Any = None) -> None:
        """`server` is a VllmServer or RemoteServer; None: the one that the settings ask for."""
        self._settings = settings
        self.server = make_server(settings) if server is None else server
        self.swap: Swap | None = None
        """Durations of the newest swap."""
        self._client: VllmClient | None = None
        self._engine: VllmEngine | None = None
        self._probe: SwapProbe | None = None
        self._newest: PolicyVersion | None = None
        self._prepared: tuple[PolicyVersion, float] | None = None
        """A policy that was written ahead of `take`, and the seconds that this took."""
        self._folder = settings.run.absolute() / ADAPTERS
        self._memory: HeldFolder | None = None
        """A folder in the machine's memory, for whole models that a vLLM of ours takes from here."""

    @property
    def engine(self) -> VllmEngine:
        if self._engine is None:
            raise ConfigError("The engine is not open yet: call `await model.register(backend)` first.")
        return self._engine

    @property
    def probe(self) -> SwapProbe:
        assert self._probe is not None
        return self._probe

    async def begin(self) -> None:
        """Start a server of our own, without waiting for it, if that takes nothing from the learner: not on a GPU that
        both use, whose free memory vLLM measures when it starts."""
        own = self._settings.engine.url is None
        if own and not self._unties and (self.server.vllm.cpu or not _shares(self._settings)):
            await self.server.start()

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a killed run
        if self._unties:
            served = self._folder / "served"
            await self._write_to(learner, served)
            self.server = make_server(self._settings, served)
        await self.server.start()
        await self.server.ready()
        self._client = VllmClient(self.server)
        base = self.server.served_name
        limits = [self._settings.max_context, self._settings.engine.max_context, self.server.max_context]
        context = min(limit for limit in limits if limit is not None)
        self._engine = VllmEngine(
            self._client,
            stop_token_ids=chat.stop_token_ids,
            decode=chat.decode,
            max_context=context,
            seeds=getattr(self.server, "seeds", True),
        )
        untrained = learner.step == 0 and self._settings.init is None  # then the policy is the base
        adapter = self._settings.train.method == "lora" and not untrained
        block = await self._client.block_size()
        ids = probe_ids(chat, context - 2, block=block)
        self._probe = SwapProbe(self._client, ids, base=base if adapter else None, block=block)
        if not self._probe.reads_cache:
            log.warning(
                "The blocks of vLLM's prefix cache hold %d tokens, more than what swaps are checked with: that nothing "
                "in it is of an older policy is not checked.",
                block,
            )

    async def prepare(self, learner: LearnerHost, step: int) -> None:
        """Write the policy of this step, and let the learner compute its side of the probe."""
        began = time.perf_counter()
        policy = await self._write(learner, step)
        await self.probe.prepare(learner)
        self._prepared = policy, time.perf_counter() - began

    async def take(self, learner: LearnerHost, step: int) -> None:
        """Sample turns that begin from now on with the policy of this step."""
        engine = self.engine
        (policy, writing), self._prepared = self._prepared or (None, 0.0), None
        began = time.perf_counter()
        if policy is None or policy.version != step:
            self.probe.forget()
            policy = await self._write(learner, step)
        written = time.perf_counter()
        if policy.whole:
            await engine.pause()
        loaded = written

        async def load() -> None:
            nonlocal loaded
            await engine.load(policy)
            loaded = time.perf_counter()

        await self.probe.check(learner, policy, load)
        engine.switch(policy)
        before, self._newest = self._newest, policy
        if before is not None and before.whole:
            await _remove(before)
        engine.resume()
        canaries.check_version(engine.version, step)
        self.swap = Swap(writing + written - began, loaded - written, time.perf_counter() - loaded)
        await self._forget_unused()

    async def rest(self) -> None:
        """Free the GPU that the learner shares, keys and values included."""
        await self.server.sleep()

    async def wake(self) -> None:
        await self.server.wake()

    async def close(self) -> None:
        """End the server, or unload our adapters from one that we did not start; also if the caller is cancelled."""
        engine, self._engine = self._engine, None
        with anyio.CancelScope(shield=True):
            try:
                if engine is not None and self._settings.engine.url is not None:  # the server goes on without us
                    with anyio.move_on_after(_FORGET_SECONDS), suppress(EngineError):
                        for policy in engine.held:
                            await engine.forget(policy)
                if self._client is not None:
                    await self._client.aclose()
            finally:
                await self.server.close()
                shutil.rmtree(self._folder, ignore_errors=True)
                if self._memory is not None:
                    self._memory.close()

    async def _write(self, learner: LearnerHost, step: int) -> PolicyVersion:
        """Write the policy to a folder that no other version ever had, since vLLM knows cached prefixes by an adapter's
        name and folder."""
        folder = self._place() / f"{step:04d}-{secrets.token_hex(3)}"
        await self._write_to(learner, folder)
        if self._settings.train.method == "full":
            if self._memory is None and self._settings.engine.url is None:  # the first shows what one weighs
                self._memory = await anyio.to_thread.run_sync(memory_folder, folder)
            return PolicyVersion(step, self.server.served_name, folder, whole=True)
        name = f"{self._settings.run.name}@{step}"
        ours = self._settings.engine.url is None
        if not ours or any(held.model == name for held in self.engine.held):  # the same step again, or another run
            name += folder.name.removeprefix(f"{step:04d}")
        return PolicyVersion(step, name, folder)

    def _place(self) -> Path:
        return self._folder if self._memory is None else self._memory.path

    async def _write_to(self, learner: LearnerHost, folder: Path) -> None:
        unfinished = folder.with_name(f".{folder.name}")
        await anyio.to_thread.run_sync(functools.partial(unfinished.mkdir, parents=True, exist_ok=True))
        await learner.write_policy(unfinished)
        if self._unties:
            from mcp_rl.inference.vllm.compat.untied import untie  # imports torch

            await anyio.to_thread.run_sync(untie, unfinished)
        unfinished.rename(folder)

    @property
    def _unties(self) -> bool:
        """True if vLLM needs whole models with an output layer of their own; see `untied.py`."""
        vllm = getattr(self.server, "vllm", None)
        return self._settings.train.method == "full" and vllm is not None and bool(vllm.cpu)

    async def _forget_unused(self) -> None:
        """Unload the versions that no running turn uses any more."""
        engine = self.engine
        for policy in engine.held:
            if policy is not engine.policy and not policy.turns:
                await engine.forget(policy)
                await _remove(policy)


def memory_folder(like: Path, place: Path = Path("/dev/shm")) -> HeldFolder | None:
    """Return a folder in the machine's memory that no other user may enter, if it has room for two models like the one
    in a folder: the sampled one and the next. None if it has not."""
    size = sum(file.stat().st_size for file in like.rglob("*") if file.is_file())
    try:
        if 2 * size <= min(shutil.disk_usage(place).free, machine_memory()[1]):
            return HeldFolder(IN_MEMORY, place)
    except OSError:
        pass
    log.info("Swaps go through the disk: %s has no room for two models of %.1f GB.", place, size / 1e9)
    return None


async def _remove(policy: PolicyVersion) -> None:
    if policy.folder is not None:
        await anyio.to_thread.run_sync(functools.partial(shutil.rmtree, policy.folder, ignore_errors=True))


def make_server(settings: LocalSettings, folder: Path | None = None) -> Any:
    """Make the server that the settings ask for, not started yet. `folder` holds its model, if that is not the base
    itself. Raises ConfigError."""
    from mcp_rl.inference.vllm.arguments import ServingSpec
    from mcp_rl.inference.vllm.server import VllmServer

    train, unsloth = settings.train, settings.unsloth
    model = unsloth.model_name or settings.base_model
    model = str(folder or weights_path()) if folder or model == TINY else model
    rank = train.lora.rank if train.method == "lora" else None
    if settings.engine.url is not None:
        from mcp_rl.inference.vllm.remote import RemoteServer

        return RemoteServer(
            settings.engine.url,
            model=model,
            lora_rank=rank,
            adapters=settings.run.absolute() / ADAPTERS,
            max_context=settings.max_context,
        )
    served = ServingSpec(
        model,
        settings.base_model,
        gpus=engine_devices(settings.placement),
        lora_rank=rank,
        adapters=train.max_staleness + 2,
        max_context=settings.max_context,
        dtype=unsloth.dtype,
        revision=unsloth.revision or loaded_before(settings.run).get("revision"),
        trust_remote_code=unsloth.trust_remote_code,
        token=unsloth.token,
        seed=settings.seed % 2**31,
        sleep=_shares(settings) and settings.engine.sharing != "split" and train.max_staleness == 0,
        new_weights=train.method == "full",
    )
    config = with_quantisation(settings.engine, bool(unsloth.load_in_4bit))
    return VllmServer(served, config=config, log=settings.run / "logs" / "vllm.log", run=settings.run)


def engine_devices(placement: PlacementConfig) -> tuple[int, ...]:
    """Return the GPUs that sample: the named ones, else the learner's, or those of torchrun's learners; empty means the
    first GPU."""
    started = ranks()
    return placement.engine_gpus or placement.learner_gpus or (tuple(range(started)) if started > 1 else ())


def _shares(settings: LocalSettings) -> bool:
    """Return whether engine and learner share a device."""
    engine, learner = set(settings.placement.engine_gpus), set(settings.placement.learner_gpus) or {0}
    return not engine or bool(engine & learner)


def with_quantisation(engine: EngineConfig, in_4bit: bool) -> EngineConfig:
    """Return the settings with which vLLM computes with a 4-bit base if the learner does, since it would sample another
    policy otherwise."""
    if not in_4bit or any(argument_name(name) == "quantization" for name in engine.args):
        return engine
    return engine.model_copy(update={"args": {**engine.args, "quantization": "bitsandbytes"}})
