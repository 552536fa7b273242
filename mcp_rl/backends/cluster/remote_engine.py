"""The engine that an episode uses, in another actor: one engine for a whole episode, so that its cache is used."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.cluster.asking import ask
from mcp_rl.errors import PartLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp_rl.inference.engine import Completion, Sampling


@dataclass(frozen=True)
class RemoteEngine:
    """An engine, given to one episode."""

    actor: Any
    """Handle of an EngineActor."""
    name: str
    episode: str
    """The episode's name on the engine."""
    version: int
    max_context: int
    seconds: float
    """Time for a turn."""


class EpisodeOnEngine:
    """An Engine for one episode. It remembers if the engine was lost, since the episode then only shows a fault."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._opened = 0
        self.lost: str | None = None

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[TurnsOnEngine]:
        """Open an episode; with several seats, one for each."""
        name = f"{self._engine.episode}.{self._opened}"
        self._opened += 1
        try:
            yield TurnsOnEngine(self, name, seed)
        finally:
            self._engine.actor.end.remote(name)

    async def ask(
        self, episode: str, seed: int, begins: bool, new_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        """Sample a turn. Raises PartLost if the engine is gone."""
        engine = self._engine
        answer = engine.actor.generate.remote(episode, seed, begins, list(new_ids), sampling)
        try:
            completion: Completion = await ask(engine.name, answer, engine.seconds, "sample a turn")
        except PartLost as lost:
            self.lost = str(lost)
            raise
        return completion


class TurnsOnEngine:
    """A growing sequence in another actor."""

    def __init__(self, engine: EpisodeOnEngine, name: str, seed: int) -> None:
        self._engine, self._name, self._seed = engine, name, seed
        self._begins = True

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample a turn. Raises PartLost if the engine is gone or has forgotten the episode."""
        begins, self._begins = self._begins, False
        return await self._engine.ask(self._name, self._seed, begins, new_ids, sampling)
