"""Learner and engine in this process, on the CPU or one GPU.

Base weights are in memory once: the learner's adapter is computed on top of them, and the engine samples a second view
of them with the adapter merged in or added. After every update the engine gets the new weights, and the hash of the
sampled weights must equal that of the learned ones.
"""

from __future__ import annotations

import functools
import gc
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import torch
from peft import PeftModel
from torch import Tensor

from mcp_rl.backends.base.base_model import make_learner, open_base, with_chat
from mcp_rl.backends.base.options import base_location, loaded_before, plan_loading
from mcp_rl.backends.hosts import CheckpointExtras, LearnerHost, LocalSettings, OpenedLearner, SamplerHost
from mcp_rl.backends.initial import find_initial
from mcp_rl.backends.plan.detect import MOVES
from mcp_rl.backends.processes.failures import failed, out_of_memory
from mcp_rl.backends.samplers.weights import sampled_weights
from mcp_rl.errors import CanaryError, ConfigError, EngineError
from mcp_rl.inference.chat.chat_format import ChatFormat, recorded_chat
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.policy import fingerprint_of
from mcp_rl.learning import canaries
from mcp_rl.learning.adapter import base_of
from mcp_rl.learning.disk.checkpoint import newest_checkpoint
from mcp_rl.learning.disk.state import ModelCard, other_versions, restore, save_learner, tokenizer_files, write_weights
from mcp_rl.learning.disk.tensors import batch_file
from mcp_rl.learning.forward.attention import stock_attention
from mcp_rl.learning.host_memory import HostMemory
from mcp_rl.learning.step import update
from mcp_rl.learning.targets import describe_adapted
from mcp_rl.run_directory import typed_errors
from mcp_rl.system.boundary import first_line
from mcp_rl.system.durable import write_atomically
from mcp_rl.system.measured import remember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from mcp_rl.backends.base.base_model import Base
    from mcp_rl.backends.base.options import LoadPlan
    from mcp_rl.backends.processes.compiled_ahead import Compiling
    from mcp_rl.config import TrainConfig
    from mcp_rl.inference.low_rank import LowRank
    from mcp_rl.learning.disk.checkpoint import Checkpoint
    from mcp_rl.learning.learner import Learner
    from mcp_rl.learning.samples import Sample
    from mcp_rl.trajectory import TrajectoryGroup

log = logging.getLogger(__name__)
T = TypeVar("T")
_ROWS = 64
"""Tokens whose float32 probabilities over the vocabulary are in memory at once, beside vLLM's on the same GPU."""


class InProcessLearner(LearnerHost):
    """A learner in this process; it works in threads, off the event loop."""

    def __init__(
        self, settings: LocalSettings, *, on_base: Callable[[PreTrainedModel, ChatFormat], None] | None = None
    ) -> None:
        """`on_base` is called with the base before an adapter is put on it."""
        self.settings = settings
        self.compiling: Compiling | None = None
        """The process that compiles the update, if one does: the first update waits for it."""
        self._on_base = on_base
        self._learner: Learner | None = None
        self._memory: HostMemory | None = None
        self.chat: ChatFormat | None = None

    @property
    def learner(self) -> Learner:
        if self._learner is None:
            raise ConfigError("The learner is not loaded yet: call `await model.register(backend)` first.")
        return self._learner

    @property
    def step(self) -> int:
        return self.learner.step

    async def open(self) -> OpenedLearner:
        return await in_thread(self._open)

    def _open(self) -> OpenedLearner:
        settings = self.settings
        checkpoint = newest_checkpoint(settings.checkpoints)
        plan, base = _loaded(settings, checkpoint, unsloth_allowed=self._on_base is None)
        self._tokenizer_files = tokenizer_files(base.tokenizer)
        self.chat = recorded_chat(base.tokenizer, base.loaded)
        if self._on_base is not None:
            self._on_base(base.model, self.chat)
        init = settings.init if checkpoint is None else None
        notes: list[str] = []
        self._learner = make_learner(
            base.model,
            settings.base_model,
            settings.train,
            seed=settings.seed,
            temperature=settings.temperature,
            init=init,
            plan=plan,
            say=notes.append,
        )
        loaded = base.loaded
        if isinstance(self._learner.model, PeftModel):
            loaded = {**loaded, "adapted": describe_adapted(self._learner.model)}
        if checkpoint is None:
            self._made(self._learner)
            free_cached()
            return OpenedLearner(
                skipped=[*notes, *find_initial(init).skipped] if init is not None else notes, loaded=loaded
            )
        frontier = restore(self._learner, checkpoint)
        self._made(self._learner)
        free_cached()
        return OpenedLearner(
            checkpoint=checkpoint.path,
            frontier=dict(frontier),
            skipped=[*notes, *checkpoint.skipped, *filter(None, [other_versions(checkpoint)])],
            loaded=loaded,
        )

    def _made(self, learner: Learner) -> None:
        """Hook for distributed learners, called when the learner has its first weights."""

    async def in_one_piece(self, *, optimizer: bool = False) -> Learner:
        """Return a learner with undivided weights, to be sampled or saved; with `optimizer`, its state too."""
        return self.learner

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        if self.compiling is not None:
            await self.compiling.finished()
        moved = await self.wake()
        self.learner.config = config
        return await in_thread(update, self.learner, groups) | moved

    async def save(self, extras: CheckpointExtras) -> Path:
        settings, learner = self.settings, await self.in_one_piece(optimizer=True)
        write = functools.partial(
            save_learner,
            card=ModelCard(settings.title, base_location(settings.base_model), extras.metrics or {}),
            frontier=extras.frontier,
            keep=settings.kept_checkpoints,
            protect=extras.protect,
        )
        await in_thread(_write_batch, settings.run / "tensors" / "batch.safetensors", learner.batch)
        return (await in_thread(write, settings.checkpoints, learner, self._tokenizer_files | extras.files)).path

    async def write_policy(self, folder: Path) -> None:
        policy = await self.in_one_piece()
        await in_thread(functools.partial(write_weights, dtype=policy.compute), policy.model, folder)

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        self._check_awake()
        return await in_thread(token_logprobs, self.learner, sequences)

    def _check_awake(self) -> None:
        if self._memory is not None and self._memory.at_rest:
            raise EngineError("The learner is in the machine's memory while vLLM samples: call `wake` first.")

    @property
    def _offloads(self) -> bool:
        """True if the learner gives its device up while vLLM samples; the in-process engine samples its base."""
        return self.settings.train.offload_while_sampling == "host" and self._on_base is None

    async def rest(self) -> dict[str, float]:
        return await in_thread(self.move, False) if self._offloads else {}

    async def wake(self) -> dict[str, float]:
        return await in_thread(self.move, True) if self._offloads else {}

    def move(self, to_device: bool) -> dict[str, float]:
        """Move the learner between its device and the host; return the time of the move, if there was one."""
        if self._memory is None:
            self._memory = HostMemory(self.learner)
        if self._memory.at_rest is not to_device:
            return {}
        self._memory.wake() if to_device else self._memory.rest()
        if to_device and self.learner.device.type == "cuda":
            rate = self._memory.bytes / self._memory.seconds
            remember(MOVES, {"gpu": torch.cuda.get_device_name()}, {"bytes_per_second": rate})
        return {"to_device_seconds" if to_device else "to_host_seconds": self._memory.seconds}

    async def close(self) -> None:
        """Free all memory, the GPU's too."""
        if self.compiling is not None:
            await self.compiling.close()
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        self._learner = self._on_base = None
        await in_thread(_give_back)


class InProcessSampler(SamplerHost):
    """The in-process engine on the learner's own base."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._made: LocalEngine | None = None
        self._opened: LocalEngine | None = None

    def build(self, base: PreTrainedModel, chat: ChatFormat) -> None:
        """Make the engine around the base, before an adapter is put on it."""
        limits = [n for n in (self._settings.max_context, self._settings.engine.max_context) if n is not None]
        self._made = LocalEngine(
            base,
            stop_token_ids=chat.stop_token_ids,
            decode=chat.decode,
            max_context=min(limits) if limits else None,
            max_rows=self._settings.engine.max_rows,
        )

    @property
    def engine(self) -> LocalEngine:
        """The engine. Raises ConfigError before it is open."""
        if self._opened is None:
            raise ConfigError("The engine is not open yet: call `await model.register(backend)` first.")
        return self._opened

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        assert self._made is not None
        self._opened = await self._made.__aenter__()

    async def take(self, learner: LearnerHost, step: int) -> None:
        assert isinstance(learner, InProcessLearner)
        policy = await learner.in_one_piece()
        weights: Mapping[str, Tensor | LowRank] = await in_thread(sampled_weights, policy.model, policy.reference)
        await self.engine.load_policy(weights, step)
        canaries.check_version(self.engine.version, step)
        if self.engine.fingerprint != fingerprint_of(weights):
            raise CanaryError(
                f"The engine says that it samples policy version {step}, but its weights are not the learner's, so the "
                "run stops before it samples from the wrong policy."
            )

    async def close(self) -> None:
        engine, self._opened, self._made = self._opened, None, None
        if engine is not None:
            await engine.__aexit__(None, None, None)


def _loaded(settings: LocalSettings, checkpoint: Checkpoint | None, *, unsloth_allowed: bool) -> tuple[LoadPlan, Base]:
    """Load the base as the settings say, and as the run had it before, if it has a checkpoint."""
    before = loaded_before(settings.run) if checkpoint is not None else None
    if checkpoint is not None and checkpoint.step == 0 and not before:
        before = None  # the run was killed before it recorded what it had loaded
    plan = plan_loading(
        settings.base_model,
        settings.unsloth,
        settings.train,
        max_seq_length=settings.engine.max_context or settings.max_context,
        seed=settings.seed,
        before=before,
        unsloth_allowed=unsloth_allowed,
    )
    return plan, with_chat(open_base(plan, before), settings.chat)


@torch.no_grad()
def token_logprobs(learner: Learner, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return `LearnerHost.token_logprobs` by the model's own forward pass, which is independent of the code that it
    checks."""
    model: Any = learner.model
    base: Any = base_of(model)
    found = []
    with stock_attention(base), learner.precision():
        for sequence in sequences:
            ids = torch.tensor([list(sequence)], device=learner.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
            own: list[float] = []
            for rows, targets in zip(torch.split(logits, _ROWS), torch.split(ids[0, 1:], _ROWS), strict=True):
                own += rows.float().log_softmax(-1).gather(1, targets[:, None])[:, 0].tolist()
            found.append(own)
    free_cached()
    return found


def free_cached() -> None:
    """Return the memory that torch keeps in its cache to the GPU, which an engine in another process may share."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _give_back() -> None:
    """Free models, which refer to each other in circles, and torch's cache."""
    gc.collect()
    free_cached()


def _write_batch(path: Path, batch: Sequence[Sample]) -> None:
    """Write the last batch as tensors, for inspection."""
    if batch:
        with typed_errors(path):
            write_atomically(path, batch_file(batch))


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Run torch's work in a thread. It is not abandoned when cancelled, so nothing is left half done. Raises EngineStop
    if memory runs out."""
    try:
        return await anyio.to_thread.run_sync(functools.partial(function, *args))
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        kind, said = type(error).__name__, first_line(error)
        if not out_of_memory(kind, said):
            raise
        raise failed(kind, said, getattr(function, "__name__", "").strip("_")) from error
