"""The backend that trains and samples in this process, with transformers and PEFT, on the CPU or one GPU.

Base weights are in memory once: the learner's adapter is computed on top of them, and the engine samples a second view
of them with the adapter merged in. After every update the engine gets the new weights, and their hash as sampled must
be the hash as learned.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from mcp_rl.backends.initial import check_initial, find_initial
from mcp_rl.backends.result import TrainResult
from mcp_rl.backends.weights import sampled_weights
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import TINY, TrainConfig
from mcp_rl.durable import write_atomically
from mcp_rl.errors import CanaryError, ConfigError
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.low_rank import LowRank
from mcp_rl.inference.policy import fingerprint_of
from mcp_rl.learning import canaries
from mcp_rl.learning.adapter import add_adapter, full_copy
from mcp_rl.learning.checkpoint import Checkpoint, newest_checkpoint, tidy
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.state import load_weights, other_versions, restore, save_learner, tokenizer_files
from mcp_rl.learning.step import Learner
from mcp_rl.learning.tensors import batch_file
from mcp_rl.learning.tree_attention import use_tree_attention
from mcp_rl.run_directory import typed_errors
from mcp_rl.tiny import weights_path
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from mcp_rl.model import TrainableModel

T = TypeVar("T")
log = logging.getLogger(__name__)


def base_location(name: str) -> str:
    """What `from_pretrained` needs for a base model's name: the shipped folder for `mcp-rl/tiny`, else the name."""
    return str(weights_path()) if name == TINY else name


def load_base(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A base model and its tokenizer, float32 on a CPU. Raises ConfigError where there is none of that name."""
    location, cuda = base_location(name), torch.cuda.is_available()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # where its reader has gone, tqdm hangs at exit
    try:
        tokenizer = AutoTokenizer.from_pretrained(location)
        model: Any = AutoModelForCausalLM.from_pretrained(location, dtype="auto" if cuda else torch.float32)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"Cannot load the base model {name!r}: {reason}") from error
    return model.to("cuda") if cuda else model, tokenizer


def load_learner(
    base_model: str, config: TrainConfig, *, seed: int = 0, temperature: float = 1.0, init: Path | None = None
) -> Learner:
    """A learner alone, with no engine: a fresh adapter (or copy of the weights), or what `init` holds.

    Raises ConfigError where there is no such base, or where `init` does not fit it.
    """
    return make_learner(load_base(base_model)[0], base_model, config, seed=seed, temperature=temperature, init=init)


def make_learner(
    base: PreTrainedModel,
    base_model: str,
    config: TrainConfig,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    init: Path | None = None,
) -> Learner:
    """`load_learner` for a base that is loaded already. With method "lora" its modules become part of the learner;
    with "full" it is left alone, as the reference of the KL, and a copy of it is trained."""
    initial = check_initial(init, config, base_model) if init is not None else None
    use_tree_attention(base)
    if config.method == "full":
        learner = Learner(full_copy(base), config, seed=seed, temperature=temperature, reference=base)
    else:
        lora, name = config.lora, base_location(base_model)
        adapted = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name=name, seed=seed)
        learner = Learner(adapted, config, seed=seed, temperature=temperature)
    if initial is not None:
        load_weights(learner.model, initial.folder)
    return learner


class LocalBackend:
    """Trains one model in this process.

        async with LocalBackend() as backend:
            await model.register(backend)

    Without `async with`, call `close` in the end, from the task that registered.
    """

    def __init__(
        self,
        *,
        in_process: bool = True,
        config: TrainConfig | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        keep: int | None = None,
        max_context: int | None = None,
        init: Path | None = None,
    ) -> None:
        """`temperature` is that of the rollouts; `keep` is how many checkpoints stay on disk, by default as many as
        `config` says; `init` is the run or the checkpoint with whose weights a new run begins."""
        if not in_process:
            raise ConfigError("LocalBackend trains in this process only: leave in_process as it is.")
        self.config = config or TrainConfig()
        self.seed, self.temperature, self.max_context, self.init = seed, temperature, max_context, init
        self.keep = self.config.keep_checkpoints if keep is None else keep
        self.frontier: Mapping[str, Any] = {}
        """What the caller stored with the checkpoint that was continued; empty for a new run."""
        self.skipped: list[str] = []
        """One sentence for each damaged checkpoint that was passed over, and one for other versions of packages."""
        self._protected: int | None = None
        self._folder: Path | None = None
        """Of the checkpoints."""
        self._checkpoint: Checkpoint | None = None
        """The one that was continued."""
        self._engine: LocalEngine | None = None
        self._learner: Learner | None = None
        self._chat: ChatFormat | None = None

    @property
    def engine(self) -> LocalEngine:
        """Samples the newest policy."""
        return _registered(self._engine)

    @property
    def learner(self) -> Learner:
        return _registered(self._learner)

    @property
    def step(self) -> int:
        """Training steps that the learner has taken."""
        return self.learner.step

    @property
    def chat(self) -> ChatFormat:
        """The chat format of the base model's tokenizer."""
        return _registered(self._chat)

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the engine. Everything that was saved stays."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.__aexit__(None, None, None)

    async def register(self, model: "TrainableModel[Any]") -> None:
        """Load the base, continue from the newest whole checkpoint or write the initial one, start the engine."""
        if self._engine is not None:
            raise ConfigError(f"This backend already trains a model; {model.name!r} needs a backend of its own.")
        self._folder = model.path / "checkpoints"
        checkpoint = newest_checkpoint(self._folder)
        base, tokenizer = await _in_thread(load_base, model.base_model)
        self._chat = ChatFormat(tokenizer)
        self._tokenizer_files = tokenizer_files(tokenizer)
        chat = self._chat
        engine = LocalEngine(base, stop_token_ids=chat.stop_token_ids, decode=chat.decode, max_context=self.max_context)
        init = self.init if checkpoint is None else None
        make = functools.partial(make_learner, seed=self.seed, temperature=self.temperature, init=init)
        self._learner = await _in_thread(make, base, model.base_model, self.config)
        if init is not None:
            self.skipped = [*(await _in_thread(find_initial, init)).skipped]
        if checkpoint is not None:
            self.frontier = await _in_thread(restore, self._learner, checkpoint)
            self.skipped = [*checkpoint.skipped, *filter(None, [other_versions(checkpoint)])]
            self._checkpoint = checkpoint
        for sentence in self.skipped:
            log.warning(sentence)
        self._engine = await engine.__aenter__()
        try:
            await self._sample_newest()
            if checkpoint is None:
                await self.save(model)
        except BaseException:
            await self.close()
            raise

    async def train(
        self,
        model: "TrainableModel[Any]",
        groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        *,
        frontier: Mapping[str, Any] | None = None,
        save: bool | None = None,
    ) -> TrainResult:
        """One step: update the adapter, sample with it from now on, save where `save`, or the step is due (None).

        `frontier` is JSON that comes back as `self.frontier` when the run is continued. Raises CanaryError, with
        nothing learned, where a check of the loop fails.
        """
        groups = list(groups)
        learner, engine = self.learner, self.engine
        if config is not None:
            learner.config = config
        canaries.check_version(engine.version, learner.step)
        canaries.check_once(trajectory for group in groups for trajectory in group)
        if learner.config.max_staleness == 0:  # else the learner drops and corrects what is older
            canaries.check_sampled_versions(_versions(groups), learner.step)
        metrics = await _in_thread(learner.update, groups)
        swapped = time.perf_counter()
        await self._sample_newest()
        metrics["swap_seconds"] = time.perf_counter() - swapped
        metrics["save_seconds"] = 0.0
        if save or (save is None and learner.step % learner.config.checkpoint_every == 0):
            began = time.perf_counter()
            await self.save(model, metrics=metrics, frontier=frontier)
            metrics["save_seconds"] = time.perf_counter() - began
        return TrainResult(learner.step, metrics)

    async def save(
        self,
        model: "TrainableModel[Any]",
        *,
        metrics: Mapping[str, float] | None = None,
        frontier: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Write the checkpoint of the step that the learner is at; returns its folder. Raises CheckpointError."""

        write = functools.partial(
            save_learner,
            base_name=base_location(model.base_model),
            title=f"{model.project}/{model.name}",
            metrics=metrics,
            frontier=frontier,
            keep=self.keep,
            protect=self._kept_steps,
        )
        contents = self._tokenizer_files | dict(files or {})
        await _in_thread(_write_batch, model.path / "tensors" / "batch.safetensors", self.learner.batch)
        return (await _in_thread(write, model.path / "checkpoints", self.learner, contents)).path

    def protect(self, step: int | None) -> None:
        """Keep the checkpoint of this step, and of no other, beside the newest ones; None: only those."""
        self._protected = step
        if self._folder is not None:
            tidy(self._folder, self.keep, self._kept_steps)

    @property
    def _kept_steps(self) -> tuple[int, ...]:
        return () if self._protected is None else (self._protected,)

    def kept(self, name: str) -> bytes | None:
        """A file that the caller stored with the checkpoint that was continued; None where there is none."""
        found = self._checkpoint
        return found.read(name) if found is not None and (found.path / name).is_file() else None

    async def _sample_newest(self) -> None:
        """Give the engine the learner's weights and see that these are what it samples."""
        learner, step = self.learner, self.learner.step
        if isinstance(learner.model, PeftModel):
            weights: Mapping[str, Tensor | LowRank] = await _in_thread(sampled_weights, learner.model)
        else:
            weights = await _in_thread(learner.sampled_weights)
        await self.engine.load_policy(weights, step)
        canaries.check_version(self.engine.version, step)
        if self.engine.fingerprint != fingerprint_of(weights):
            raise CanaryError(
                f"The engine says that it samples policy version {step}, but its weights are not the learner's, so the "
                "run stops before it samples from the wrong policy."
            )


def _write_batch(path: Path, batch: Sequence[Sample]) -> None:
    """The last batch as tensors, for whoever wants to look at it."""
    if batch:
        with typed_errors(path):
            write_atomically(path, batch_file(batch))


def _versions(groups: Iterable[TrajectoryGroup]) -> Iterable[int]:
    return (
        version
        for group in groups
        for trajectory in group
        if trajectory.trainable
        for segment in trajectory.segments
        for version, sampled in zip(segment.versions, segment.sampled, strict=True)
        if sampled
    )


def _registered(part: T | None) -> T:
    if part is None:
        raise ConfigError("The backend has no model yet: call `await model.register(backend)` first.")
    return part


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    """Torch work, off the event loop. It is not abandoned when cancelled, so that nothing is left half done."""
    return await anyio.to_thread.run_sync(functools.partial(function, *args))
