"""Actors without a model: an engine that says the turns of a script, and a tool node that plays one episode for all."""

from collections.abc import Sequence
from typing import Any

import anyio

from mcp_rl.backends.cluster.actor import ClusterActor
from mcp_rl.backends.cluster.asking import answering
from mcp_rl.backends.cluster.tool_node import PlayedEpisode, ToolNode
from mcp_rl.inference.engine import Completion, Sampling


class ScriptedEngine(ClusterActor):
    """Says the same turns in each episode."""

    turns: Sequence[list[int]] = ()
    seconds = 0.0

    async def script(self, turns: Sequence[list[int]], seconds: float) -> None:
        """Set the turns, as token ids, and the time of each."""
        self.turns, self.seconds = turns, seconds
        self.at: dict[str, int] = {}

    @answering
    async def generate(
        self, episode: str, seed: int, begins: bool, new_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        """Return the next turn of the episode."""
        if self.seconds:
            await anyio.sleep(self.seconds)
        place = self.at.get(episode, 0)
        self.at[episode] = place + 1
        ids = self.turns[min(place, len(self.turns) - 1)]
        return Completion(ids, [-0.5] * len(ids), 0, "stop")

    async def end(self, episode: str) -> None:
        """Forget an episode."""
        self.at.pop(episode, None)

    @answering
    async def close(self) -> None:
        """Nothing is open."""


class ScriptedNode(ToolNode):
    """Plays its first episode on a server and an engine, and answers each further one with a copy after a given time: a
    node of any number of sessions, as the driver sees it."""

    seconds = 0.0
    played: PlayedEpisode | None = None

    async def takes(self, seconds: float) -> None:
        """Set the time of an episode."""
        self.seconds = seconds

    @answering
    async def play(self, scenario: Any, seed: int, temperature: float, engine: Any) -> PlayedEpisode:
        """Return the episode."""
        if self.played is None:
            answer = await super().play(scenario, seed, temperature, engine)
            self.played = answer.get()
        await anyio.sleep(self.seconds)
        return self.played
