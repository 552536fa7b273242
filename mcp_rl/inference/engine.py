"""What a rollout needs from whatever samples tokens.

An episode is one growing sequence of token ids. The engine keeps what it has computed for it between turns. Every
sampled token comes back as its id and its log-probability under the distribution that it was drawn from.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. There is no top_p, top_k or penalty: they would bias the importance ratio."""

    temperature: float = 1.0
    """0 is greedy; logprobs are then those at temperature 1."""
    max_tokens: int = 256
    """Sampled tokens in one turn."""
    stop: tuple[str, ...] = ()
    """Texts that end the turn, wherever tokens begin and end; the token that completes one is the last sampled."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the turn, besides the engine's own."""
    top_logprobs: int = 0
    """So many of the likeliest tokens come back beside each sampled one."""
    seed: int | None = None
    """Draw this turn's tokens from a stream of its own, from its start; None goes on with the episode's."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop is a tuple of texts that are not empty, not {self.stop!r}.")
        if self.top_logprobs < 0:
            raise ValueError(f"top_logprobs is 0 or more, not {self.top_logprobs}.")
        if self.max_tokens < 1 or not 0 <= self.temperature < float("inf"):
            raise ValueError(f"A turn samples at least one token, at a temperature of 0 or more: {self}.")


@dataclass(frozen=True)
class Completion:
    """One sampled turn."""

    token_ids: list[int]
    """Sampled ids, the stop token included where it was sampled."""
    logprobs: list[float]
    """One for each id, natural logarithm."""
    version: int
    """Policy version that sampled all of them."""
    finish: str
    """"stop" (a stop token or a stop text was sampled) or "length" (max_tokens or the context's end was reached)."""
    cached_tokens: int = field(default=0, compare=False)
    """Ids up to the first sampled one that the engine had computed before; of an episode's first turn."""
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    """For each id the likeliest tokens under the distribution that it was drawn from, the likeliest first; empty where
    none were asked for."""


class Episode(Protocol):
    """One sequence that grows: given tokens, sampled tokens, given tokens, …"""

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Append `new_ids`, then sample until a stop token, a stop text or the limit.

        Raises ContextOverflow where the sequence would outgrow the context, EngineError where sampling failed.
        """
        ...


class Engine(Protocol):
    """Samples for many episodes at once."""

    @property
    def version(self) -> int:
        """Policy version that is being sampled now: the training step of its adapter."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens that one episode may hold."""
        ...

    def episode(self, *, seed: int) -> AbstractAsyncContextManager[Episode]:
        """Open an episode. Its random numbers depend on `seed` alone, not on what else is in the batch."""
        ...
