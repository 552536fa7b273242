"""The engine's side of an episode: its ids, how much of them is computed, and the current turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.inference.cache import Trunk
    from mcp_rl.inference.engine import Sampling
    from mcp_rl.inference.sampler import Draws
    from mcp_rl.inference.stops import StopRule


@dataclass(eq=False)
class RowTurn:
    """A turn to sample, and what has been sampled so far."""

    sampling: Sampling
    limit: int
    stops: StopRule
    draws: Draws | None = None
    """The turn's own stream of random numbers; None takes the episode's."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    """The most likely tokens for each id, if some were asked for."""
    finish: str = ""


@dataclass(eq=False)
class Row:
    """An episode in the engine."""

    order: int
    draws: Draws
    ids: list[int] = field(default_factory=list)
    opening: int = 0
    """Number of ids that it began with. Its trunk lies within them, even when everything is recomputed."""
    computed: int = 0
    """Number of ids, from the first on, whose keys and values are computed."""
    copied: int = 0
    """Number of ids whose keys and values the current turn copied instead of computing them."""
    given: int = 0
    """Number of ids, from the first on, that were forwarded as given ids, not as sampled ones."""
    version: int = -1
    trunk: Trunk | None = None
    slot: int = -1
    turn: RowTurn | None = None

    @property
    def start(self) -> int:
        """Absolute position of the first token in the row's slot: the end of its trunk."""
        return self.trunk.length if self.trunk else 0

    @property
    def root(self) -> tuple[int, ...]:
        """Ids of its trunk: the root of its own ids in the prefix tree."""
        return self.trunk.ids if self.trunk else ()

    @property
    def sampling(self) -> Sampling:
        """How the current turn is sampled."""
        assert self.turn is not None
        return self.turn.sampling

    @property
    def left(self) -> int:
        """Most tokens that the current turn still gets."""
        assert self.turn is not None
        return self.turn.limit - len(self.turn.ids)

    @property
    def randomness(self) -> Draws:
        """The stream of the random numbers of the current turn's tokens."""
        assert self.turn is not None
        return self.turn.draws or self.draws

    def append(self, token: int, logprob: float, top: Sequence[tuple[int, float]] = ()) -> bool:
        """Add a sampled token, with the most likely ones in its place; return True if it ends the turn."""
        turn = self.turn
        assert turn is not None
        self.ids.append(token)
        turn.ids.append(token)
        turn.logprobs.append(logprob)
        if wanted := turn.sampling.top_logprobs:
            turn.top.append(list(top[:wanted]))
        turn.finish = "stop" if turn.stops.ends(turn.ids) else "length" if len(turn.ids) >= turn.limit else ""
        return bool(turn.finish)
