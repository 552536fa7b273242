"""Plays episodes on the tool nodes of a cluster: each on one node and one engine, and again if either is lost.

An episode keeps its seed when it is played again, so its tokens are those of an undisturbed run, and the run takes it
in once, from the driver's one call. A fault of a tool server is none of this: it is a faulted trajectory, as on one
machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.backends.cluster.asking import ask
from mcp_rl.backends.cluster.tool_node import NOT_OPEN
from mcp_rl.errors import EngineStop, PartLost
from mcp_rl.system.activity import Activity, during

if TYPE_CHECKING:
    from mcp_rl.backends.cluster.crew import Crew, Member
    from mcp_rl.backends.cluster.engine_actor import ChatRecipe
    from mcp_rl.backends.cluster.sampler_host import ClusterEngine
    from mcp_rl.backends.cluster.tool_node import PlayedEpisode
    from mcp_rl.config import RayConfig
    from mcp_rl.model import EpisodeRecipe
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory

MOST_TIMES = 20
"""Times that one episode is played because its actors were lost; then the cluster is at fault, and not luck."""
_MARGIN = 60.0
"""Seconds for an episode beyond its own limit: for its lease of a session, and for the way."""


class NodePlayers:
    """Plays scenarios: `await players(scenario, seed, temperature)` is the unscored trajectory."""

    def __init__(self, nodes: Crew, engine: ClusterEngine, engines: Crew, config: RayConfig) -> None:
        self.nodes, self._engine, self._engines, self._config = nodes, engine, engines, config
        self._seconds = 0.0

    async def open(self, recipe: EpisodeRecipe, chat: ChatRecipe) -> None:
        """Open the sessions of all nodes; those that come back or join later are opened as they do."""
        self._seconds = recipe.config.rollout.deadline + _MARGIN

        async def prepare(member: Member) -> None:
            answer = member.actor.open.remote(recipe, chat)
            await ask(member.name, answer, self._config.start_seconds, "open its tool servers")

        await self.nodes.make_ready(prepare)

    async def __call__(self, scenario: McpScenario, seed: int, temperature: float) -> Trajectory:
        with during(Activity.SAMPLING):
            for _ in range(MOST_TIMES):
                trajectory = await self._once(scenario, seed, temperature)
                if trajectory is not None:
                    return trajectory
        raise EngineStop(
            f"The episode of scenario {scenario.id} lost its engine or its tool node {MOST_TIMES} times; "
            "logs/cluster.jsonl says which and how, and the same command continues from the last whole step."
        )

    async def _once(self, scenario: McpScenario, seed: int, temperature: float) -> Trajectory | None:
        """Play the episode; return None if its engine or its node was lost."""
        node = await self.nodes.pick()
        played: PlayedEpisode | None = None
        async with self._engine.lent() as (engine, remote):
            with node.episode():
                answer = node.actor.play.remote(scenario, seed, temperature, remote)
                try:
                    played = await ask(node.name, answer, self._seconds, "play an episode")
                except PartLost as lost:
                    self.nodes.lost(node, lost)
            if played is None:
                engine.actor.end.remote(f"{remote.episode}.0")
        if played is None:
            return None
        if played.lost is None:
            return played.trajectory
        if played.lost == NOT_OPEN:
            self.nodes.lost(node, played.lost)
        else:
            self._engines.lost(engine, played.lost)
        return None
