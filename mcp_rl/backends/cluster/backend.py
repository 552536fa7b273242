"""The backend of a Ray cluster: `LocalBackend`, whose learner and sampler live in actors.

All checks between learner and sampler are LocalBackend's own. What differs is where the parts are, that the learner's
machine and not this one decides what the settings leave open, and that rollouts are played on tool nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mcp_rl.backends.cluster.asking import ask
from mcp_rl.backends.cluster.connection import RayCluster
from mcp_rl.backends.cluster.crew import Crew, CrewKind
from mcp_rl.backends.cluster.engine_actor import EngineActor
from mcp_rl.backends.cluster.faults import FaultLog
from mcp_rl.backends.cluster.learner_host import RayLearner
from mcp_rl.backends.cluster.players import NodePlayers
from mcp_rl.backends.cluster.sampler_host import RaySampler
from mcp_rl.backends.cluster.tool_node import ToolNode
from mcp_rl.backends.local import LocalBackend
from mcp_rl.backends.plan.choices import Choices, engine_kind
from mcp_rl.config import PlacementConfig
from mcp_rl.errors import ConfigError, EngineStop

if TYPE_CHECKING:
    from mcp_rl.backends.cluster.crew import Member
    from mcp_rl.backends.hosts import LearnerHost, LocalSettings, SamplerHost
    from mcp_rl.config import RunConfig
    from mcp_rl.model import EpisodeRecipe

_EVERY_NODE = 10_000
"""Most tool nodes: every node that offers the resource."""


class RayBackend(LocalBackend):
    """Trains one model on a Ray cluster. Made by `backend = "ray"`."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(
            config=config.train,
            seed=config.seed,
            temperature=config.rollout.temperature,
            init=config.init,
            engine=config.engine,
            placement=config.placement,
            unsloth=config.unsloth,
            chat=config.chat,
            rollout=config.rollout,
        )
        self._run_config = config
        self._parts: ClusterHosts | None = None

    async def _begin_hosts(self, settings: LocalSettings) -> ClusterHosts:
        parts = self._parts
        assert parts is not None  # `choose` made it
        parts.begin(settings)
        return parts

    async def _resolve(self, asked: LocalSettings) -> Choices:
        if self._parts is None:
            self._parts = await ClusterHosts.start(self._run_config, asked)
        return await self._parts.resolve(asked)

    async def play_elsewhere(self, recipe: EpisodeRecipe) -> NodePlayers | None:
        """Return a player on the tool nodes; None if the settings have none, or if what plays must be on this machine:
        an agent program, opponents, or a recording."""
        parts, config = self._parts, recipe.config
        if parts is None or parts.nodes is None or plays_here(config) is not None:
            return None
        return await parts.players(recipe)

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        try:
            await super().close()
        finally:
            if parts is not None:
                await parts.end()


def plays_here(config: RunConfig) -> str | None:
    """Return why episodes are played on the driver's machine, as a clause; None if they can be played elsewhere."""
    if config.rollout.agent is not None:
        return "an agent program plays the episodes"
    if config.rollout.user_model is not None:
        return "users are played for the whole run, with one limit on what they cost"
    if config.rollout.opponents:
        return "opponents speak in the episodes"
    if config.tools.record is not None or config.tools.replay is not None:
        return "tool calls are recorded or replayed"
    return None


class ClusterHosts:
    """The connection of one run, its learner, its engines and its tool nodes."""

    def __init__(self, config: RunConfig, cluster: RayCluster, faults: FaultLog) -> None:
        self._config, self._cluster = config.ray, cluster
        shape = cluster.shape
        self.learner = RayLearner(cluster, faults)
        most = max(config.ray.most_engines or 0, config.ray.engines)
        self._engines = Crew(cluster, CrewKind("engine", EngineActor, shape.engines[0], most), faults)
        self.nodes: Crew | None = None
        if shape.tool_nodes:
            self.nodes = Crew(cluster, CrewKind("tool node", ToolNode, shape.tool_nodes[0], _EVERY_NODE), faults)
        self._settings: LocalSettings | None = None
        gpus = all(part.get("GPU", 0) for part in (shape.learners[0], shape.engines[0]))
        self._sampler = RaySampler(self._engines, self.learner, config.ray, faults, gpus=gpus)
        self._run_config = config
        self.learner.on_loss = self._stop_all
        cluster.on_loss = self._end_all

    @classmethod
    async def start(cls, config: RunConfig, asked: LocalSettings) -> ClusterHosts:
        """Connect, place and start all actors, and check their machines. Raises ClusterError or ConfigError."""
        cluster = RayCluster(config.ray)
        try:
            await cluster.connect()
            await cluster.place()
            hosts = cls(config, cluster, FaultLog(asked.run / "logs"))
            await hosts._start()
        except BaseException:
            await cluster.close()
            raise
        return hosts

    def _end_all(self, lost: EngineStop) -> None:
        """Break off everything, since nothing can be started any more."""
        self.learner.break_off(lost)
        self._stop_all(lost)

    def _stop_all(self, lost: EngineStop) -> None:
        """Break off what is in flight, since the step cannot be learned."""
        for crew in (self._engines, *(() if self.nodes is None else (self.nodes,))):
            crew.stop(lost)

    async def _start(self) -> None:
        learners = len(self._cluster.shape.learners)
        self.learner.begin()
        self._engines.begin(self._config.engines, learners)
        if self.nodes is not None:
            self.nodes.begin(self._config.tool_nodes, learners + self._config.engines)
        await self.learner.started()
        await self._engines.started()
        if self.nodes is not None:
            await self.nodes.started(None if plays_here(self._run_config) else self._check_node)

    async def _check_node(self, member: Member) -> None:
        answer = member.actor.check.remote(self._run_config)
        await ask(member.name, answer, self._config.patience, "look for the server's command")

    async def resolve(self, asked: LocalSettings) -> Choices:
        """Decide what the settings leave open by the learner's machine, and say where the parts are."""
        found = await self.learner.resolve(asked)
        own = {"sharing": asked.engine.sharing, "memory_share": asked.engine.memory_share}
        settings = found.settings.model_copy(
            update={
                "run": asked.run,
                "engine": found.settings.engine.model_copy(update=own),
                "placement": PlacementConfig(in_process=True),
            }
        )
        if settings.train.offload_while_sampling == "host":  # the learner shares its GPU with nobody here
            train = settings.train.model_copy(update={"offload_while_sampling": "keep"})
            settings = settings.model_copy(update={"train": train})
        return Choices(settings, found.plan, [*self._where(), *found.said])

    def _where(self) -> list[str]:
        nodes = [] if self.nodes is None else self.nodes.members
        parts = [
            f"{count} {name}{'' if count == 1 else 's'}"
            for count, name in (
                (len(self._cluster.shape.learners), "learner"),
                (len(self._engines.members), "engine"),
                (len(nodes), "tool node"),
            )
            if count
        ]
        here = plays_here(self._run_config)
        why = f" Episodes are played on this machine, since {here}." if here and nodes else ""
        return [f"Ray cluster: {', '.join(parts)}.{why}"]

    def begin(self, settings: LocalSettings) -> None:
        """Take the settings of the run."""
        self._settings = settings
        kind = engine_kind(settings.engine)
        self.learner.settings, self.learner.sampled = settings, kind != "vllm"
        number = int(self._cluster.shape.engines[0].get("GPU", 0))
        apart = PlacementConfig(engine_gpus=tuple(range(number)), learner_gpus=(number,) if number else ())
        engine = settings.engine.model_copy(update={"kind": kind})
        self._sampler.settings = settings.model_copy(update={"placement": apart, "engine": engine})

    @property
    def settings(self) -> LocalSettings:
        """The settings of the run. Raises ConfigError before `begin`."""
        if self._settings is None:
            raise ConfigError("The cluster's parts have no settings yet: call `begin` first.")
        return self._settings

    async def prepared(self) -> None:
        """Nothing is imported on this machine."""

    def make(self) -> tuple[LearnerHost, SamplerHost]:
        """Return both hosts, to be opened and closed by the caller from now on."""
        return self.learner, self._sampler

    async def players(self, recipe: EpisodeRecipe) -> NodePlayers:
        """Open the sessions of the tool nodes."""
        chat = self.learner.recipe
        if self.nodes is None or chat is None:
            raise ConfigError("The tool nodes can be opened once the model is registered.")
        players = NodePlayers(self.nodes, self._sampler.engine, self._engines, self._config)
        await players.open(recipe, chat)
        return players

    async def close(self) -> None:
        """Leave everything to `end`: the hosts are closed by whoever made them."""

    async def end(self) -> None:
        """End all actors and the connection."""
        with anyio.CancelScope(shield=True):
            if self.nodes is not None:
                await self.nodes.close(self._config.close_seconds)
            await self._engines.close(self._config.close_seconds)
            await self.learner.close()
            await self._cluster.close()
