"""The backend of this machine: a learner, a sampler of its policy, and the checks between them.

The learner host (in process, child, distributed) and the sampler host (in-process engine, vLLM) are protocols here;
`make_hosts.py` chooses them. Torch is not imported.
"""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from mcp_rl.backends.hosts import (
    BackendSettings,
    CheckpointExtras,
    HostsToMake,
    LearnerHost,
    LocalSettings,
    OpenedLearner,
    SamplerHost,
)
from mcp_rl.backends.make_hosts import BegunHosts
from mcp_rl.backends.plan.choices import Choices, resolve
from mcp_rl.config import TINY, ChatConfig, EngineConfig, PlacementConfig, RolloutConfig, TrainConfig, UnslothConfig
from mcp_rl.errors import CanaryError, ConfigError, EngineError, NothingLearned
from mcp_rl.inference.chat.chat_format import ChatFormat, recorded_chat
from mcp_rl.learning import canaries
from mcp_rl.learning.disk.checkpoint import tidy
from mcp_rl.model import TrainResult

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from mcp_rl.inference.engine import Engine
    from mcp_rl.learning.learner import Learner
    from mcp_rl.model import EpisodeRecipe, PlaysElsewhere, TrainableModel
    from mcp_rl.trajectory import TrajectoryGroup

T = TypeVar("T")
log = logging.getLogger(__name__)


_CLOSED = "The backend was closed while its model was loaded."


class LocalBackend:
    """Trains one model on this machine.

        async with LocalBackend() as backend:
            await model.register(backend)

    Without `async with`, call `close` at the end, from the task that called `register`.
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
        chat: ChatConfig | None = None,
        rollout: RolloutConfig | None = None,
    ) -> None:
        """`in_process` puts the learner into the caller's process (True) or a child (False); None: on a CPU into the
        caller's. `temperature` is that of the rollouts; `keep` is the number of checkpoints that stay on disk, by
        default `config.keep_checkpoints`; `init` is the run or checkpoint whose weights a new run begins with;
        `rollout` holds the limits by which a GPU's memory is planned."""
        placement = placement or PlacementConfig()
        if in_process is not None:
            placement = placement.model_copy(update={"in_process": in_process})
        self.settings = BackendSettings(
            train=config or TrainConfig(),
            engine=engine or EngineConfig(),
            placement=placement,
            unsloth=unsloth or UnslothConfig(),
            chat=chat or ChatConfig(),
            rollout=rollout or RolloutConfig(),
            seed=seed,
            temperature=temperature,
            max_context=max_context,
            init=init,
            keep=keep,
        )
        """The settings as the caller gave them."""
        self.config = self.settings.train
        """The settings of the next step."""
        self._asked: LocalSettings | None = None
        """The settings that `_choices` completes."""
        self._choices: Choices | None = None
        self._begun: HostsToMake | None = None
        """Started by `begin`, taken by `register`."""
        self._protected: tuple[int, ...] = ()
        self._opened: OpenedLearner | None = None
        self._learner: LearnerHost | None = None
        self._sampler: SamplerHost | None = None
        self._closes = 0
        """Number of calls of `close`."""
        self._chat: ChatFormat | None = None

    @property
    def engine(self) -> Engine:
        """The engine that samples the newest policy."""
        return _registered(self._sampler).engine

    @property
    def learner(self) -> Learner:
        """The learner itself. Raises ConfigError if it is in another process."""
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
        """The caller's data stored with the checkpoint that was continued; empty for a new run."""
        return self._opened.frontier if self._opened else {}

    @property
    def skipped(self) -> list[str]:
        """Warnings about what was loaded, one sentence each; `OpenedLearner.skipped` names the kinds."""
        return self._opened.skipped if self._opened else []

    @property
    def loaded(self) -> Mapping[str, Any]:
        """The base model as it was loaded, for model.json."""
        return self._opened.loaded if self._opened else {}

    async def __aenter__(self) -> LocalBackend:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the engine and the learner; saved files stay. A second call does nothing."""
        self._closes += 1
        sampler, learner = self._sampler, self._learner
        self._sampler = self._learner = None
        await _close(sampler, learner)
        await self._end_begun()

    async def _end_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            await begun.close()

    async def choose(self, model: TrainableModel[Any]) -> list[str]:
        """Look at the machine, decide what the settings leave open, and return sentences that say what was decided.

        `register` calls it if the caller has not. The machine is inspected once, before anything uses its memory.
        """
        asked = self.settings.for_run(model.base_model, model.path, f"{model.project}/{model.name}")
        if self._begun is None or self._choices is None or asked != self._asked:
            chat = await anyio.to_thread.run_sync(_chat_of_files, asked)
            self._choices = await self._resolve(asked)
            self._choices.said.extend(chat)
            self._asked = asked
        return self._choices.said

    async def begin(self, model: TrainableModel[Any]) -> None:
        """Start in the background what takes long: the learner's process or imports, and vLLM's server if it shares no
        device with the learner. `register` goes on with it, and calls this if the caller has not."""
        if self._choices is None or self._choices.settings.run != model.path:
            await self.choose(model)
        settings = _registered(self._choices).settings
        if self._begun is None or self._begun.settings != settings:
            await self._end_begun()
            self._begun = await self._begin_hosts(settings)

    async def _resolve(self, asked: LocalSettings) -> Choices:
        """Decide what the settings leave open, by the machine that learns."""
        return await anyio.to_thread.run_sync(resolve, asked)

    async def _begin_hosts(self, settings: LocalSettings) -> HostsToMake:
        """Start what takes long."""
        return await BegunHosts.begin(settings)

    async def register(self, model: TrainableModel[Any]) -> None:
        """Load the base, continue from the newest whole checkpoint or write the initial one, start the engine. Raises
        ConfigError or EngineStop if the backend is closed meanwhile."""
        if self._learner is not None:
            raise ConfigError(f"This backend already trains a model; {model.name!r} needs a backend of its own.")
        closes = self._closes
        await self.begin(model)
        if self._begun is not None:
            await self._begun.prepared()
        if self._closes != closes or self._begun is None:
            await self._end_begun()
            raise ConfigError(_CLOSED)
        begun, settings = self._begun, self._begun.settings
        self.config = settings.train
        learner, sampler = begun.make()
        self._learner, self._sampler, self._begun = learner, sampler, None
        try:
            self._opened = await learner.open()
            self._check_not_closed(learner)
            for sentence in self.skipped:
                log.warning(sentence)
            chat = learner.chat
            if chat is None:
                chat = await anyio.to_thread.run_sync(loaded_chat, settings, self._opened.loaded)
            self._chat = chat
            await self._open_sampler(learner, sampler, chat)
            if self._opened.checkpoint is None:
                await self.save(model)
            self._check_not_closed(learner)
        except BaseException:
            if self._learner is learner:
                self._learner = self._sampler = None
            with anyio.CancelScope(shield=True):  # also if `close` was called while they were opening
                await _close(sampler, learner)
            raise

    async def _open_sampler(self, learner: LearnerHost, sampler: SamplerHost, chat: ChatFormat) -> None:
        """Open the sampler of a learner; if they use one device in turn, as in every later step."""
        await learner.rest()
        await sampler.open(learner, chat)
        if self._offloads:
            await sampler.rest()
            await learner.wake()
            await self._hand_over(learner, sampler)
        else:
            await sampler.take(learner, self.step)

    async def _hand_over(self, learner: LearnerHost, sampler: SamplerHost) -> dict[str, float]:
        """Let the learner rest and the sampler, which rests, take its policy; return the time of the move."""
        await sampler.prepare(learner, self.step)
        moved = await learner.rest()
        await sampler.wake()
        await sampler.take(learner, self.step)
        return moved

    def _check_not_closed(self, learner: LearnerHost) -> None:
        if self._learner is not learner:
            raise ConfigError(_CLOSED)

    async def train(
        self,
        model: TrainableModel[Any],
        groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        *,
        frontier: Mapping[str, Any] | None = None,
        save: bool | None = None,
    ) -> TrainResult:
        """Take one step: update the weights, sample with them from now on, and save if `save`, or if it is due (None).

        `frontier` is JSON that comes back as `self.frontier` when the run is continued. Raises ConfigError for groups
        that nothing has scored, and CanaryError if a check of the loop fails; nothing is learned then. Warns with
        NothingLearned where no group had tries with different rewards.
        """
        groups = list(groups)
        learner, sampler = _registered(self._learner), _registered(self._sampler)
        _check_scored(groups)
        if config is not None:
            self.config = self._choices.train(config) if self._choices else config
        canaries.check_version(sampler.engine.version, self.step)
        canaries.check_once(trajectory for group in groups for trajectory in group)
        for reward in (trajectory.reward for group in groups for trajectory in group):
            canaries.check_finite("reward", 0.0 if reward is None else reward)
        if self.config.max_staleness == 0:  # else the learner drops or corrects older tokens
            played = [group for group in groups if not group.demonstrates]  # no policy samples a demonstration
            canaries.check_sampled_versions(_versions(played), self.step)
        alone = self.config.max_staleness == 0  # else rollouts continue during the update
        if alone:
            await sampler.rest()
        try:
            metrics = await learner.update(groups, self.config)  # it wakes by itself
        except (CanaryError, ConfigError):  # the learner is as it was, and the caller may go on
            if alone:
                with suppress(EngineError):
                    await learner.rest()
                    await sampler.wake()
            raise
        if not metrics["trajectories_trained"]:
            warnings.warn(_nothing_learned(self.step, groups), NothingLearned, stacklevel=2)
        swapped = time.perf_counter()
        if alone and self._offloads:
            metrics |= await self._hand_over(learner, sampler)
        else:
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
        model: TrainableModel[Any],
        *,
        metrics: Mapping[str, float] | None = None,
        frontier: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Write the checkpoint of the current step and return its folder. Raises CheckpointError."""
        extras = CheckpointExtras(
            metrics=None if metrics is None else dict(metrics),
            frontier=None if frontier is None else dict(frontier),
            files=dict(files or {}),
            protect=self._protected,
        )
        return await _registered(self._learner).save(extras)

    async def play_elsewhere(self, recipe: EpisodeRecipe) -> PlaysElsewhere | None:
        """Return None: episodes are played in this process."""
        return None

    def protect(self, steps: Collection[int]) -> None:
        """Keep the checkpoints of these steps on disk, beside the newest ones and in place of those protected
        before."""
        self._protected = tuple(steps)
        if self._choices is not None:
            settings = self._choices.settings
            tidy(settings.checkpoints, settings.kept_checkpoints, self._protected)

    @property
    def _offloads(self) -> bool:
        """True if the learner rests while vLLM samples."""
        return _registered(self._choices).settings.train.offload_while_sampling == "host"

    def kept(self, name: str) -> bytes | None:
        """Return a file that the caller stored with the checkpoint that was continued; None if it has none."""
        folder = self._opened.checkpoint if self._opened else None
        return (folder / name).read_bytes() if folder is not None and (folder / name).is_file() else None


def _chat_of_files(settings: LocalSettings) -> list[str]:
    """Check the base's chat format before anything is loaded; return a note for the user. Raises ConfigError."""
    from mcp_rl.backends.base.chat_files import chat_of_files

    if settings.base_model == TINY:
        return []
    chat = chat_of_files(settings.base_model, settings.chat.model_dump(), settings.unsloth.revision)
    return [] if chat is None else chat.notes


def loaded_chat(settings: LocalSettings, loaded: Mapping[str, Any]) -> ChatFormat:
    """Return the chat format of the base as the learner has loaded it."""
    from mcp_rl.backends.base.base_model import load_tokenizer
    from mcp_rl.backends.base.options import token_of

    unsloth = settings.unsloth
    revision = None if unsloth.model_name else unsloth.revision or loaded.get("revision")
    code = unsloth.trust_remote_code
    tokenizer = load_tokenizer(settings.base_model, revision=revision, token=token_of(unsloth), trust_remote_code=code)
    return recorded_chat(tokenizer, loaded)


def _check_scored(groups: Iterable[TrajectoryGroup]) -> None:
    """Raise ConfigError for a group whose finished rollouts have no reward, unless its `exceptions` say why."""
    for group in groups:
        finished = [trajectory for trajectory in group if trajectory.stop_reason.trainable]
        if finished and not group.rewards and not group.exceptions:
            raise ConfigError(
                f"The group of scenario {group.scenario.id!r} has {len(finished)} finished rollouts and no reward, so "
                "there is nothing to learn from: score each group before training, with "
                "gather_trajectory_groups(…, after_each=verify_group) for the scenarios' own verifiers, "
                "ruler_score_group(group, judge) for a judge, or trajectory.reward = … for a score of your own."
            )


def _nothing_learned(step: int, groups: Collection[TrajectoryGroup]) -> str:
    rewards = sorted({reward for group in groups for reward in group.rewards})
    span = f" ({rewards[0]:g} to {rewards[-1]:g})" if len(rewards) > 1 else f" ({rewards[0]:g})" if rewards else ""
    return (
        f"Step {step} taught nothing: in none of its {len(groups)} groups one try had a better reward than another"
        f"{span}. Take tasks that the model solves now and then, take more tries for each, or look at each "
        "`trajectory.explanation`."
    )


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
