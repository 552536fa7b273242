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

    @property
    def ended(self) -> bool:
        """True once a token was added that ends the current turn, or its last one."""
        assert self.turn is not None
        return bool(self.turn.finish)

    def extend(self, tokens: list[int], logprobs: list[float], top: Sequence[Sequence[tuple[int, float]]] = ()) -> int:
        """Add sampled tokens, with the most likely ones in the place of each, up to one that ends the turn; return how
        many were added."""
        turn = self.turn
        assert turn is not None
        kept, stops = turn.stops.kept(turn.ids, tokens)
        self.ids += tokens[:kept]
        turn.ids += tokens[:kept]
        turn.logprobs += logprobs[:kept]
        if wanted := turn.sampling.top_logprobs:
            turn.top += [list(most_likely[:wanted]) for most_likely in top[:kept]]
        turn.finish = "stop" if stops else "length" if len(turn.ids) >= turn.limit else ""
        return kept
