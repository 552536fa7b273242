"""The engine's side of one episode: its ids, what is computed of them, and the turn that is being sampled."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_rl.inference.cache import Trunk
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.sampler import Draws
from mcp_rl.inference.stops import StopRule


@dataclass(eq=False)
class Turn:
    """What a row is asked to sample now, and what it has sampled so far."""

    sampling: Sampling
    limit: int
    stops: StopRule
    draws: Draws | None = None
    """The turn's own stream of random numbers; None takes the episode's."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    """The likeliest tokens for each id, where some were asked for."""
    finish: str = ""


@dataclass(eq=False)
class Row:
    """The engine's side of one episode."""

    order: int
    draws: Draws
    ids: list[int] = field(default_factory=list)
    opening: int = 0
    """Ids that it began with: its trunk is among them, also when all is computed anew."""
    computed: int = 0
    copied: int = 0
    """Ids that were not computed for the turn that is being sampled, because somebody else held them."""
    given: int = 0
    """Of these, the first so many were forwarded as given ids, none as sampled ones."""
    version: int = -1
    trunk: Trunk | None = None
    slot: int = -1
    turn: Turn | None = None

    @property
    def start(self) -> int:
        """Absolute position of the first token in the row's own slot."""
        return self.trunk.length if self.trunk else 0

    @property
    def root(self) -> tuple[int, ...]:
        """Where its own ids begin in the prefix tree."""
        return self.trunk.ids if self.trunk else ()

    def uniform(self) -> float:
        """The random number of the next token."""
        assert self.turn is not None
        return (self.turn.draws or self.draws).next()

    def append(self, token: int, logprob: float, top: Sequence[tuple[int, float]] = ()) -> bool:
        """Take a sampled token, and the likeliest ones in its place; True where it ends the turn."""
        turn = self.turn
        assert turn is not None
        self.ids.append(token)
        turn.ids.append(token)
        turn.logprobs.append(logprob)
        if wanted := turn.sampling.top_logprobs:
            turn.top.append(list(top[:wanted]))
        turn.finish = "stop" if turn.stops.ends(turn.ids) else "length" if len(turn.ids) >= turn.limit else ""
        return bool(turn.finish)
