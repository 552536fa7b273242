"""The backend of this machine: a learner, what samples its policy, and the checks between them.

Where the learner is (this process, a child, several) and what samples (the in-process engine, vLLM) is decided in
`hosts.py`; here both are protocols, and torch is not imported.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from mcp_rl.backends.choices import Choices, resolve
from mcp_rl.backends.hosts import LearnerHost, LocalSettings, Opened, SamplerHost, begin_sampler, make_hosts
from mcp_rl.backends.result import TrainResult
from mcp_rl.chat.ends import recorded_ends
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import EngineConfig, PlacementConfig, RolloutConfig, TrainConfig, UnslothConfig
from mcp_rl.errors import CanaryError, ConfigError, EngineError
from mcp_rl.inference.engine import Engine
from mcp_rl.learning import canaries
from mcp_rl.learning.checkpoint import tidy
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from mcp_rl.learning.step import Learner
    from mcp_rl.model import TrainableModel

T = TypeVar("T")
log = logging.getLogger(__name__)


_CLOSED = "The backend was closed while its model was loaded."


class LocalBackend:
    """Trains one model on this machine.

        async with LocalBackend() as backend:
            await model.register(backend)

    Without `async with`, call `close` in the end, from the task that registered.
    """

    def __init__(
        self,
        *,
        in_process: bool | None = None,
        config: TrainConfig | None = None,
        seed: int = 0,
        temperature: float = 1.0,
        keep: int | None = None,
        max_context: int | None = None,
        init: Path | None = None,
        engine: EngineConfig | None = None,
        placement: PlacementConfig | None = None,
        unsloth: UnslothConfig | None = None,
        rollout: RolloutConfig | None = None,
    ) -> None:
        """`in_process` keeps the learner in the caller's process (True) or in a child (False); None: on a CPU in the
        caller's. `temperature` is that of the rollouts; `keep` is how many checkpoints stay on disk, by default as many
        as `config` says; `init` is the run or the checkpoint with whose weights a new run begins; `rollout` holds the
        limits by which the memory of a GPU is planned."""
        self.config = config or TrainConfig()
        self.placement = placement or PlacementConfig()
        if in_process is not None:
            self.placement = self.placement.model_copy(update={"in_process": in_process})
        self.engine_config, self.unsloth = engine or EngineConfig(), unsloth or UnslothConfig()
        self.seed, self.temperature, self.max_context, self.init = seed, temperature, max_context, init
        self.keep = self.config.keep_checkpoints if keep is None else keep
        self._rollout = rollout
        self._choices: Choices | None = None
        self._asked: LocalSettings | None = None
        """What `_choices` were made of."""
        self._protected: int | None = None
        self._settings: LocalSettings | None = None
        self._opened: Opened | None = None
        self._learner: LearnerHost | None = None
        self._sampler: SamplerHost | None = None
        self._begun: tuple[LocalSettings, SamplerHost | None] | None = None
        """What `begin` did, and for which settings; until `register` takes it."""
        self._closes = 0
        """How often it was closed."""
        self._chat: ChatFormat | None = None

    @property
    def engine(self) -> Engine:
        """Samples the newest policy."""
        return _registered(self._sampler).engine

    @property
    def learner(self) -> "Learner":
        """The learner itself, where it is in this process. Raises ConfigError where it is in another."""
        learner = getattr(_registered(self._learner), "learner", None)
        if learner is None:
            raise ConfigError("The learner is in a process of its own: make the backend with in_process=True.")
        return learner  # type: ignore[no-any-return]

    @property
    def step(self) -> int:
        """Training steps that the learner has taken."""
        return _registered(self._learner).step

    @property
    def chat(self) -> ChatFormat:
        """The chat format of the base model's tokenizer."""
        return _registered(self._chat)

    @property
    def frontier(self) -> Mapping[str, Any]:
        """What the caller stored with the checkpoint that was continued; empty for a new run."""
        return self._opened.frontier if self._opened else {}

    @property
    def skipped(self) -> list[str]:
        """One sentence for each damaged checkpoint that was passed over, and one for other versions of packages."""
        return self._opened.skipped if self._opened else []

    @property
    def loaded(self) -> Mapping[str, Any]:
        """What was loaded, and how."""
        return self._opened.loaded if self._opened else {}

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the engine and the learner. Everything that was saved stays. A second time it does nothing."""
        self._closes += 1
        sampler, learner = self._sampler, self._learner
        self._sampler = self._learner = None
        await _close(sampler, learner)
        await self._end_begun()

    async def _end_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and begun[1] is not None:
            await begun[1].close()

    async def choose(self, model: "TrainableModel[Any]") -> list[str]:
        """Look at the machine and decide what the settings leave open; returns sentences that say what. `register` does
        it too, where nobody has. The machine is looked at once: what was begun since has some of its memory."""
        asked = LocalSettings(
            base_model=model.base_model,
            run=model.path,
            title=f"{model.project}/{model.name}",
            train=self.config,
            engine=self.engine_config,
            placement=self.placement,
            unsloth=self.unsloth,
            seed=self.seed,
            temperature=self.temperature,
            max_context=self.max_context,
            init=self.init,
        )
        if self._begun is not None and self._choices is not None and asked == self._asked:
            return self._choices.said
        self._choices = await anyio.to_thread.run_sync(resolve, asked, self._rollout)
        self._asked = asked
        self._settings = self._choices.settings
        return self._choices.said

    async def begin(self, model: "TrainableModel[Any]") -> None:
        """Begin what takes long and needs no learner, in the background: vLLM's server, where it shares no device with
        one. `register` goes on with it, and does it too, where nobody has."""
        if self._settings is None or self._settings.run != model.path:
            await self.choose(model)
        settings = _registered(self._settings)
        if self._begun is None or self._begun[0] != settings:
            await self._end_begun()
            self._begun = settings, await begin_sampler(settings)

    async def register(self, model: "TrainableModel[Any]") -> None:
        """Load the base, continue from the newest whole checkpoint or write the initial one, start the engine. Raises
        ConfigError or EngineStop where the backend is closed meanwhile."""
        if self._learner is not None:
            raise ConfigError(f"This backend already trains a model; {model.name!r} needs a backend of its own.")
        closes = self._closes
        await self.begin(model)
        if self._closes != closes or self._begun is None:
            await self._end_begun()
            raise ConfigError(_CLOSED)
        settings, begun = self._begun
        self.config = settings.train
        learner, sampler = make_hosts(settings, begun)
        self._learner, self._sampler, self._begun = learner, sampler, None
        try:
            self._opened = await learner.open()
            self._check_not_closed(learner)
            for sentence in self.skipped:
                log.warning(sentence)
            told: ChatFormat | None = getattr(learner, "chat", None)
            if told is None:
                told = await anyio.to_thread.run_sync(_chat_format, settings, self._opened.loaded)
            self._chat = chat = told
            await sampler.open(learner, chat)
            await sampler.take(learner, self.step)
            if self._opened.checkpoint is None:
                await self.save(model)
            self._check_not_closed(learner)
        except BaseException:
            if self._learner is learner:
                self._learner = self._sampler = None
            with anyio.CancelScope(shield=True):  # also where `close` came while they were half there
                await _close(sampler, learner)
            raise

    def _check_not_closed(self, learner: LearnerHost) -> None:
        if self._learner is not learner:
            raise ConfigError(_CLOSED)

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
        learner, sampler = _registered(self._learner), _registered(self._sampler)
        if config is not None:
            self.config = self._choices.train(config) if self._choices else config
        canaries.check_version(sampler.engine.version, self.step)
        canaries.check_once(trajectory for group in groups for trajectory in group)
        for reward in (trajectory.reward for group in groups for trajectory in group):
            canaries.check_finite("reward", 0.0 if reward is None else reward)
        if self.config.max_staleness == 0:  # else the learner drops and corrects what is older
            canaries.check_sampled_versions(_versions(groups), self.step)
        alone = self.config.max_staleness == 0  # else rollouts go on meanwhile
        if alone:
            await sampler.rest()
        try:
            metrics = await learner.update(groups, self.config)
        except (CanaryError, ConfigError):  # the learner is as it was, and the caller may go on
            if alone:
                with suppress(EngineError):
                    await sampler.wake()
            raise
        swapped = time.perf_counter()
        if alone:
            await sampler.wake()
        await sampler.take(learner, self.step)
        metrics["swap_seconds"] = time.perf_counter() - swapped
        metrics["save_seconds"] = 0.0
        if save or (save is None and self.step % self.config.checkpoint_every == 0):
            began = time.perf_counter()
            await self.save(model, metrics=metrics, frontier=frontier)
            metrics["save_seconds"] = time.perf_counter() - began
        return TrainResult(self.step, metrics)

    async def save(
        self,
        model: "TrainableModel[Any]",
        *,
        metrics: Mapping[str, float] | None = None,
        frontier: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Write the checkpoint of the step that the learner is at; returns its folder. Raises CheckpointError."""
        return await _registered(self._learner).save(
            metrics=metrics, frontier=frontier, files=dict(files or {}), keep=self.keep, protect=self._kept_steps
        )

    def protect(self, step: int | None) -> None:
        """Keep the checkpoint of this step, and of no other, beside the newest ones; None: only those."""
        self._protected = step
        if self._settings is not None:
            tidy(self._settings.checkpoints, self.keep, self._kept_steps)

    @property
    def _kept_steps(self) -> tuple[int, ...]:
        return () if self._protected is None else (self._protected,)

    def kept(self, name: str) -> bytes | None:
        """A file that the caller stored with the checkpoint that was continued; None where there is none."""
        folder = self._opened.checkpoint if self._opened else None
        return (folder / name).read_bytes() if folder is not None and (folder / name).is_file() else None


def _chat_format(settings: LocalSettings, loaded: Mapping[str, Any]) -> ChatFormat:
    """Of the base as the learner has loaded it."""
    from mcp_rl.backends.base_model import load_tokenizer
    from mcp_rl.backends.loading.options import token_of

    unsloth = settings.unsloth
    revision = None if unsloth.model_name else unsloth.revision or loaded.get("revision")
    code = unsloth.trust_remote_code
    tokenizer = load_tokenizer(settings.base_model, revision=revision, token=token_of(unsloth), trust_remote_code=code)
    return ChatFormat(tokenizer, recorded_ends(loaded))


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


async def _close(sampler: SamplerHost | None, learner: LearnerHost | None) -> None:
    try:
        if sampler is not None:
            await sampler.close()
    finally:
        if learner is not None:
            await learner.close()


def _registered(part: T | None) -> T:
    if part is None:
        raise ConfigError("The backend has no model yet, or was closed: call `await model.register(backend)` first.")
    return part
