"""An engine actor without a model: it says the turns of a script, each after a given time."""

from collections.abc import Sequence

import anyio

from mcp_rl.backends.cluster.actor import ClusterActor
from mcp_rl.backends.cluster.asking import answering
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
