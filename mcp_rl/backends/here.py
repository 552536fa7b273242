"""Learner and engine in this process, with transformers and PEFT, on the CPU or one GPU.

Base weights are in memory once: the learner's adapter is computed on top of them, and the engine samples a second view
of them with the adapter merged in or added. After every update the engine gets the new weights, and their hash as
sampled must be the hash as learned.
"""

import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.backends.base_model import base_location, make_learner, open_base
from mcp_rl.backends.failures import failed, out_of_memory
from mcp_rl.backends.hosts import LearnerHost, LocalSettings, Opened
from mcp_rl.backends.initial import find_initial
from mcp_rl.backends.loading.options import loaded_before, plan_loading
from mcp_rl.backends.weights import sampled_weights
from mcp_rl.boundary import first_line
from mcp_rl.chat.ends import recorded_ends
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import TrainConfig
from mcp_rl.durable import write_atomically
from mcp_rl.errors import CanaryError, ConfigError
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.low_rank import LowRank
from mcp_rl.inference.policy import fingerprint_of
from mcp_rl.learning import canaries
from mcp_rl.learning.attention import stock_attention
from mcp_rl.learning.checkpoint import newest_checkpoint
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.state import other_versions, restore, save_learner, tokenizer_files, write_weights
from mcp_rl.learning.step import Learner
from mcp_rl.learning.tensors import batch_file
from mcp_rl.run_directory import typed_errors
from mcp_rl.trajectory import TrajectoryGroup

T = TypeVar("T")
_ROWS = 64
"""Tokens whose probabilities over the vocabulary exist at once in float32, beside vLLM's memory on the same GPU."""


class LearnerHere:
    """A learner in this process; its work is done in threads, off the event loop."""

    def __init__(
        self, settings: LocalSettings, *, on_base: Callable[[PreTrainedModel, ChatFormat], None] | None = None
    ) -> None:
        """`on_base` gets the base before an adapter is put on it."""
        self.settings = settings
        self._on_base = on_base
        self._learner: Learner | None = None
        self.chat: ChatFormat | None = None
        """The chat format of the base as it was loaded, of its own revision; None before `open`."""

    @property
    def learner(self) -> Learner:
        if self._learner is None:
            raise ConfigError("The learner is not loaded yet: call `await model.register(backend)` first.")
        return self._learner

    @property
    def step(self) -> int:
        return self.learner.step

    async def open(self) -> Opened:
        return await in_thread(self._open)

    def _open(self) -> Opened:
        settings = self.settings
        checkpoint = newest_checkpoint(settings.checkpoints)
        before = loaded_before(settings.run) if checkpoint is not None else None
        if checkpoint is not None and checkpoint.step == 0 and not before:
            before = None  # it was killed before it wrote down what it had loaded
        plan = plan_loading(
            settings.base_model,
            settings.unsloth,
            settings.train,
            max_seq_length=settings.engine.max_context or settings.max_context,
            seed=settings.seed,
            before=before,
            unsloth_allowed=self._on_base is None,
        )
        base = open_base(plan, before)
        self._tokenizer_files = tokenizer_files(base.tokenizer)
        self.chat = ChatFormat(base.tokenizer, recorded_ends(base.loaded))
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
        if checkpoint is None:
            self._made(self._learner)
            free_cached()
            return Opened(skipped=[*notes, *find_initial(init).skipped] if init is not None else notes, loaded=loaded)
        frontier = restore(self._learner, checkpoint)
        self._made(self._learner)
        free_cached()
        return Opened(
            checkpoint=checkpoint.path,
            frontier=dict(frontier),
            skipped=[*notes, *checkpoint.skipped, *filter(None, [other_versions(checkpoint)])],
            loaded=loaded,
        )

    def _made(self, learner: Learner) -> None:
        """Called once the learner is what it begins with; nothing, where it is alone."""

    async def in_one_piece(self, *, optimizer: bool = False) -> Learner:
        """The learner, to be sampled, or saved with what its optimiser remembers."""
        return self.learner

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        self.learner.config = config
        return await in_thread(self.learner.update, groups)

    async def save(
        self,
        *,
        metrics: Mapping[str, float] | None,
        frontier: Mapping[str, Any] | None,
        files: Mapping[str, bytes],
        keep: int,
        protect: Sequence[int],
    ) -> Path:
        settings, learner = self.settings, await self.in_one_piece(optimizer=True)
        write = functools.partial(
            save_learner,
            base_name=base_location(settings.base_model),
            title=settings.title,
            metrics=metrics,
            frontier=frontier,
            keep=keep,
            protect=tuple(protect),
        )
        await in_thread(_write_batch, settings.run / "tensors" / "batch.safetensors", learner.batch)
        return (await in_thread(write, settings.checkpoints, learner, self._tokenizer_files | dict(files))).path

    async def write_policy(self, folder: Path) -> None:
        await in_thread(write_weights, (await self.in_one_piece()).model, folder)

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return await in_thread(token_logprobs, self.learner, sequences)

    async def close(self) -> None:
        """Give all memory back, that of the GPU too."""
        self._learner = self._on_base = None
        await in_thread(_give_back)


class LocalSampler:
    """The in-process engine on the learner's own base."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._made: LocalEngine | None = None
        self._engine: LocalEngine | None = None

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
        if self._engine is None:
            raise ConfigError("The engine is not open yet: call `await model.register(backend)` first.")
        return self._engine

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        assert self._made is not None
        self._engine = await self._made.__aenter__()

    async def take(self, learner: LearnerHost, step: int) -> None:
        assert isinstance(learner, LearnerHere)
        policy = await learner.in_one_piece()
        weights: Mapping[str, Tensor | LowRank] = await in_thread(sampled_weights, policy.model, policy.reference)
        await self.engine.load_policy(weights, step)
        canaries.check_version(self.engine.version, step)
        if self.engine.fingerprint != fingerprint_of(weights):
            raise CanaryError(
                f"The engine says that it samples policy version {step}, but its weights are not the learner's, so the "
                "run stops before it samples from the wrong policy."
            )

    async def rest(self) -> None:
        """Nothing: what it holds is the learner's own base, and a cache."""

    async def wake(self) -> None: ...

    async def close(self) -> None:
        engine, self._engine, self._made = self._engine, None, None
        if engine is not None:
            await engine.__aexit__(None, None, None)


@torch.no_grad()
def token_logprobs(learner: Learner, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """By the model's own forward pass, so that it is no part of what it checks."""
    model: Any = learner.model
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    found = []
    with stock_attention(base):
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
    """What torch has freed and keeps for itself goes back to the GPU, which an engine in another process may share."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _give_back() -> None:
    """Models hold each other in circles, and what is freed stays torch's own until it is told."""
    gc.collect()
    free_cached()


def _write_batch(path: Path, batch: Sequence[Sample]) -> None:
    """The last batch as tensors, for whoever wants to look at it."""
    if batch:
        with typed_errors(path):
            write_atomically(path, batch_file(batch))


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Torch work, off the event loop. It is not abandoned when cancelled, so that nothing is left half done. Raises
    EngineStop where memory runs out."""
    try:
        return await anyio.to_thread.run_sync(functools.partial(function, *args))
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        kind, said = type(error).__name__, first_line(error)
        if not out_of_memory(kind, said):
            raise
        raise failed(kind, said, getattr(function, "__name__", "").strip("_")) from error
