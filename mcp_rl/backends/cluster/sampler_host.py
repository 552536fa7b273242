"""The engines of a cluster, as the backend sees them: one sampler that takes a policy, and one Engine.

A step's policy goes to all engines at once. It counts as sampled when one engine has proven it; an engine that was lost
meanwhile is given the newest policy when it is back, and samples nothing before.
"""

from __future__ import annotations

import itertools
import time
from contextlib import asynccontextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.backends.cluster.asking import ask
from mcp_rl.backends.cluster.crossing import WeightsCrossing
from mcp_rl.backends.cluster.engine_actor import ClusterPolicy, EngineState
from mcp_rl.backends.cluster.remote_engine import EpisodeOnEngine, RemoteEngine, TurnsOnEngine
from mcp_rl.errors import ConfigError, PartLost
from mcp_rl.learning import canaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_rl.backends.cluster.crew import Crew, Member
    from mcp_rl.backends.cluster.faults import FaultLog
    from mcp_rl.backends.cluster.learner_host import RayLearner
    from mcp_rl.backends.hosts import LearnerHost, LocalSettings
    from mcp_rl.config import RayConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat


class _Published:
    """A policy that the learner has written."""

    def __init__(self, policy: ClusterPolicy, size: int, learner: RayLearner) -> None:
        self.policy, self.size, self._learner = policy, size, learner

    @cached_property
    def files(self) -> Any:
        """Reference to the files in the object store, into which they are put when this is first asked for."""
        return self._learner.policy(self.policy.step)


class RaySampler:
    """All engines of the cluster."""

    def __init__(self, crew: Crew, learner: RayLearner, config: RayConfig, faults: FaultLog, *, gpus: bool) -> None:
        """`gpus`: the learner and every engine has one."""
        self.crew, self._learner, self._config, self._faults, self._gpus = crew, learner, config, faults, gpus
        self._crossing: WeightsCrossing | None = None
        self._told = False
        self.settings: LocalSettings | None = None
        self._published: _Published | None = None
        self._engine: ClusterEngine | None = None
        self._opened: set[str] = set()
        """Incarnations of engines that are open."""

    @property
    def engine(self) -> ClusterEngine:
        if self._engine is None:
            raise ConfigError("The engines are not open yet: call `await model.register(backend)` first.")
        return self._engine

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        """Open all engines: the base, and the policy, which the backend then takes once more."""
        assert self.settings is not None
        self._engine = ClusterEngine(self.crew, self._config)
        asked, whole = self._config.whole_weights, self.settings.train.method == "full"
        if whole and (asked == "broadcast" or (asked == "auto" and self._gpus)):
            self._crossing = WeightsCrossing(self._learner, self._config, gpus=self._gpus)
        await self._publish()
        await self.crew.make_ready(self._prepare)

    async def prepare(self, learner: LearnerHost, step: int) -> None:
        """Nothing rests here, so `take` does it all."""

    async def _publish(self) -> None:
        fingerprint, size = await self._learner.publish()
        self._published = _Published(ClusterPolicy(self._learner.step, fingerprint), size, self._learner)

    async def _prepare(self, member: Member) -> None:
        """Open an engine, unless it is, and give it the newest policy, until that is the newest still."""
        recipe = self._learner.recipe
        assert recipe is not None and self.settings is not None
        needs_files = self.settings.train.method == "full" and not self._gpus and not self._learner.sampled
        assert self._published is not None
        files = self._published.files if needs_files else None
        answer = member.actor.open.remote(self.settings, self._learner.actor, recipe, files)
        await ask(member.name, answer, self._config.start_seconds, "load the base model")
        while (published := self._published) is not None:
            await self._give(member, published)
            if published is self._published:
                return

    async def _give(self, member: Member, published: _Published) -> None:
        answer = member.actor.take.remote(published.policy, published.files)
        state: EngineState = await ask(member.name, answer, self._config.update_seconds, "take the new policy")
        canaries.check_version(state.version, published.policy.step)
        self.engine.note(member, state)

    async def take(self, learner: LearnerHost, step: int) -> None:
        """Sample the learner's policy from now on. Raises CanaryError if an engine samples another one."""
        assert self._published is not None
        if self._published.policy.step != step:
            await self._publish()
        published = self._published
        due = [member for member in self.crew.ready if self.engine.version_of(member) != step]
        number, sent, began = len(due), 0, time.monotonic()
        if self._crossing is not None and due:
            for member, state in (await self._crossing.give(due, published.policy)).items():
                canaries.check_version(state.version, step)
                self.engine.note(member, state)
                due.remove(member)
            sent = number - len(due)
        async with anyio.create_task_group() as group:
            for member in due:
                group.start_soon(self._give_or_lose, member, published)
        await self.crew.wait_for_one()
        self.engine.version = step
        if number and self.settings is not None and self.settings.train.method == "full":
            self._tell(published.size, number, sent, time.monotonic() - began)

    def _tell(self, size: int, engines: int, sent: int, seconds: float) -> None:
        """Log what it costs to give all weights to the engines; tell the user the first time."""
        by = "the object store" if not sent else f"a broadcast ({'NCCL' if self._gpus else 'gloo'})"
        rest = f", the rest by the object store ({engines - sent})" if 0 < sent < engines else ""
        what = f"{size / 1e6:,.0f} MB reached {sent or engines} of {engines} engines by {by}{rest} in {seconds:.1f} s"
        self._faults.add("All weights", f"{what}, loaded and checked", told=not self._told)
        self._told = True

    async def _give_or_lose(self, member: Member, published: _Published) -> None:
        try:
            await self._give(member, published)
        except PartLost as lost:
            self.crew.lost(member, lost)

    async def rest(self) -> None:
        """Engines have machines of their own, and free nothing for the learner."""

    async def wake(self) -> None:
        """End `rest`."""

    async def close(self) -> None:
        self._engine = None
        await self.crew.close(self._config.close_seconds)


class ClusterEngine:
    """An Engine of several: each episode is sampled by one of them."""

    def __init__(self, crew: Crew, config: RayConfig) -> None:
        self._crew, self._config = crew, config
        self.version = 0
        self._names = itertools.count()
        self._states: dict[Member, EngineState] = {}

    def note(self, member: Member, state: EngineState) -> None:
        """Keep what an engine said of itself."""
        self._states[member] = state

    def version_of(self, member: Member) -> int | None:
        """Return the version that an engine said it samples."""
        state = self._states.get(member)
        return None if state is None else state.version

    @property
    def max_context(self) -> int:
        return min((state.max_context for state in self._states.values()), default=0)

    @property
    def stats(self) -> Any:
        """The engines' counters, as they were told when the newest policy was taken."""
        return SimpleNamespace(cached_tokens=sum(state.cached_tokens for state in self._states.values()))

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[tuple[Member, RemoteEngine]]:
        """Lend the engine with the fewest episodes to one episode."""
        member = await self._crew.pick()
        state = self._states[member]
        remote = RemoteEngine(
            member.actor,
            member.name,
            str(next(self._names)),
            state.version,
            state.max_context,
            self._config.turn_seconds,
        )
        with member.episode():
            yield member, remote

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[TurnsOnEngine]:
        """Open an episode that is played here, such as an agent program's."""
        async with self.lent() as (member, remote):
            on_engine = EpisodeOnEngine(remote)
            try:
                async with on_engine.episode(seed=seed) as episode:
                    yield episode
            finally:
                if on_engine.lost is not None:
                    self._crew.lost(member, on_engine.lost)
