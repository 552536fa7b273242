"""The actors that sample: each owns a vLLM server, or the in-process engine on a base of its own.

An engine is told the policy as bytes, loads it under the version's own name, and proves that it samples it, by the
probe of the sampler that it has. It holds nothing else, so an engine that starts anew needs only the newest policy.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.backends.cluster.actor import ClusterActor
from mcp_rl.backends.cluster.asking import ActorAnswer, answering, ask
from mcp_rl.backends.cluster.broadcast import Membership, in_group
from mcp_rl.backends.cluster.files import Files, write_folder
from mcp_rl.backends.hosts import LearnerHost
from mcp_rl.errors import CanaryError, ConfigError, EngineStop, PartLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.backends.base.plain_tokenizer import Description
    from mcp_rl.backends.hosts import CheckpointExtras, LocalSettings, OpenedLearner, SamplerHost
    from mcp_rl.config import TrainConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Completion, Episode, Sampling
    from mcp_rl.trajectory import TrajectoryGroup

PROBE_SECONDS = 600.0
"""Time for the learner to compute its side of a probe: it may be busy with a save."""
_NOT_HERE = "An engine's actor only reads the learner's policy."


@dataclass(frozen=True)
class ClusterPolicy:
    """A version of the policy, as it is handed to engines."""

    step: int
    fingerprint: str | None
    """Fingerprint of the weights that the in-process engine must sample; None for vLLM, which is probed."""


@dataclass(frozen=True)
class EngineState:
    """The state of an engine."""

    version: int
    max_context: int
    cached_tokens: int


@dataclass(frozen=True)
class ChatRecipe:
    """All that another process needs to make the policy's chat format."""

    settings: LocalSettings
    loaded: Mapping[str, Any]
    description: str | None

    def make(self) -> ChatFormat:
        """Make the chat format; imports transformers only if the tokenizer has no description."""
        from mcp_rl.backends.base.plain_tokenizer import Description, PlainTokenizer
        from mcp_rl.backends.local import loaded_chat
        from mcp_rl.inference.chat.chat_format import recorded_chat

        if self.description is None:
            return loaded_chat(self.settings, self.loaded)
        described: Description = Description.model_validate_json(self.description)
        return recorded_chat(PlainTokenizer(described), self.loaded)


class DistantLearner(LearnerHost):
    """The learner as an engine's sampler sees it: the policy's files, and log-probabilities over the network."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.version = 0
        self.files: Files = {}
        """The policy, if it came as bytes."""
        self.folder: Path | None = None
        """The policy, if it came by a broadcast."""

    @property
    def step(self) -> int:
        return self.version

    async def open(self) -> OpenedLearner:
        raise ConfigError(_NOT_HERE)

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        raise ConfigError(_NOT_HERE)

    async def save(self, extras: CheckpointExtras) -> Path:
        raise ConfigError(_NOT_HERE)

    async def close(self) -> None:
        """The learner is another actor, and ends by itself."""

    async def write_policy(self, folder: Path) -> None:
        await anyio.to_thread.run_sync(write_folder, folder, self.files)
        if self.folder is not None:
            again = functools.partial(shutil.copytree, copy_function=_linked, dirs_exist_ok=True)
            await anyio.to_thread.run_sync(again, self.folder, folder)

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        answer = self._actor.token_logprobs.remote(sequences)
        found: list[list[float]] = await ask("The learner", answer, PROBE_SECONDS, "answer a probe")
        return found


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk
        shutil.copyfile(source, target)


class OwnBaseSampler:
    """The in-process engine, with a base of its own and a copy of the policy on it."""

    def __init__(self, settings: LocalSettings) -> None:
        from mcp_rl.backends.processes.in_process import InProcessLearner, InProcessSampler

        self._sampler = InProcessSampler(settings)
        self._copy = InProcessLearner(settings, on_base=self._sampler.build)
        self.fingerprint: str | None = None
        """Fingerprint that the learner gave for the policy to be taken."""
        self._folder = settings.run / "policy"

    @property
    def engine(self) -> Any:
        return self._sampler.engine

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        await self._copy.open()
        assert self._copy.chat is not None
        await self._sampler.open(self._copy, self._copy.chat)

    async def take(self, learner: LearnerHost, step: int) -> None:
        """Sample the policy of this step. Raises CanaryError if its weights are not the learner's."""
        from mcp_rl.backends.processes.in_process import in_thread
        from mcp_rl.learning.disk.state import load_weights

        await learner.write_policy(self._folder)
        await in_thread(load_weights, self._copy.learner.model, self._folder)
        await self._sampler.take(self._copy, step)
        await anyio.to_thread.run_sync(functools.partial(shutil.rmtree, self._folder, ignore_errors=True))
        if self.fingerprint is not None and self.engine.fingerprint != self.fingerprint:
            raise CanaryError(
                f"An engine of the cluster says that it samples policy version {step}, but its weights are not the "
                "learner's, so the run stops before it samples from the wrong policy."
            )

    async def close(self) -> None:
        await self._sampler.close()
        await self._copy.close()


class EngineActor(ClusterActor):
    """An engine and the episodes that it samples."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self._sampler: SamplerHost | OwnBaseSampler | None = None
        self._learner: DistantLearner | None = None
        self._episodes: dict[str, tuple[Episode, AsyncExitStack]] = {}
        self._starts = itertools.count()
        self._membership = Membership()

    @answering
    async def open(
        self, settings: LocalSettings, learner: Any, chat: ChatRecipe, files: ActorAnswer | None = None
    ) -> None:
        """Load the base or start the server. `learner` is the handle of the actor whose policies it will sample;
        `files` are those of its policy, for a server that cannot start without."""
        async with self._opening:
            if self._sampler is not None:
                await self._shut()
            run = self.scratch / f"{next(self._starts)}" / settings.run.name
            run.mkdir(parents=True)
            settings = settings.model_copy(update={"run": run, "init": None})
            self._learner = DistantLearner(learner)
            self._sampler = _make_sampler(settings)
            self._learner.files = {} if files is None else files.get()
            await self._sampler.open(self._learner, await anyio.to_thread.run_sync(chat.make))
            self._learner.files = {}

    @answering
    async def take(self, policy: ClusterPolicy, files: ActorAnswer) -> EngineState:
        """Load a policy, prove that it is sampled, and sample it from now on."""
        return await self._take(policy, files=files.get())

    @answering
    async def join(self, name: str, at: tuple[str, int], rank: int, size: int, gpus: bool, seconds: float) -> None:
        """Join a group, in which policies come by broadcast. Raises PartLost if it does not come together."""
        address = (await self.about()).address
        await in_group(self._membership.join, name, at, rank, size, address, gpus, seconds)

    @answering
    async def take_sent(self, policy: ClusterPolicy, name: str) -> EngineState:
        """As `take`, with a policy that the group's sender sends now."""
        folder = self.scratch / "received"
        try:
            await in_group(self._membership.group(name).receive, folder)
            return await self._take(policy, folder=folder)
        finally:
            await anyio.to_thread.run_sync(functools.partial(shutil.rmtree, folder, ignore_errors=True))

    async def leave(self) -> None:
        """End the group."""
        await anyio.to_thread.run_sync(self._membership.leave)

    async def _take(self, policy: ClusterPolicy, files: Files | None = None, folder: Path | None = None) -> EngineState:
        if self._sampler is None or self._learner is None:
            raise PartLost("An engine that has started anew is not open yet")
        self._learner.version, self._learner.files, self._learner.folder = policy.step, files or {}, folder
        if isinstance(self._sampler, OwnBaseSampler):
            self._sampler.fingerprint = policy.fingerprint
        try:
            await self._sampler.take(self._learner, policy.step)
        finally:
            self._learner.files, self._learner.folder = {}, None
        return self._state()

    def _state(self) -> EngineState:
        assert self._sampler is not None
        engine = self._sampler.engine
        cached = getattr(getattr(engine, "stats", None), "cached_tokens", 0)
        return EngineState(engine.version, engine.max_context, cached)

    @answering
    async def state(self) -> EngineState:
        """Return the version that is sampled, and the engine's counters."""
        return self._state()

    @answering
    async def generate(
        self, episode: str, seed: int, begins: bool, new_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        """Sample a turn of an episode, which its first turn opens. Raises PartLost if this engine has forgotten it."""
        if begins:
            if self._sampler is None:
                raise PartLost("An engine that has started anew is not open yet")
            stack = AsyncExitStack()
            opened = await stack.enter_async_context(self._sampler.engine.episode(seed=seed))
            self._episodes[episode] = (opened, stack)
        if episode not in self._episodes:
            raise PartLost(f"An engine has started anew and forgotten the episode {episode}")
        try:
            return await self._episodes[episode][0].generate(new_ids, sampling)
        except EngineStop as stop:  # its server or its memory is gone, and it is opened anew
            self.incarnation = secrets.token_hex(4)
            raise PartLost(str(stop)) from stop

    async def end(self, episode: str) -> None:
        """Forget an episode; nothing happens if it is not known."""
        known = self._episodes.pop(episode, None)
        if known is not None:
            await known[1].aclose()

    @answering
    async def close(self) -> None:
        """End the engine."""
        async with self._opening:
            await self.leave()
            await self._shut()
            self.tidy()

    async def _shut(self) -> None:
        for episode in list(self._episodes):
            await self.end(episode)
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            await sampler.close()


def _make_sampler(settings: LocalSettings) -> SamplerHost | OwnBaseSampler:
    from mcp_rl.backends.plan.choices import engine_kind

    if engine_kind(settings.engine) != "vllm":
        return OwnBaseSampler(settings)
    from mcp_rl.backends.samplers.vllm_sampler import VllmSampler

    return VllmSampler(settings)
