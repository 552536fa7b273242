"""The interface between rollouts and engines.

An episode is one growing sequence of token ids. The engine keeps what it has computed for it between turns. Every
sampled token comes back as its id and its log-probability under the distribution that it was drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mcp_rl.errors import ContextOverflow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager


ATTENTION = frozenset(("full_attention", "sliding_attention"))
"""Types of layers that the in-process engine samples: it keeps keys and values, and no other state."""


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling. No top_p, top_k or penalty: they would bias the importance ratio."""

    temperature: float = 1.0
    """0 is greedy; logprobs are then those at temperature 1."""
    max_tokens: int = 256
    """Most sampled tokens in one turn."""
    stop: tuple[str, ...] = ()
    """Texts that end the turn, across token boundaries; the token that completes one is the last sampled."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the turn, besides the engine's own."""
    top_logprobs: int = 0
    """Number of most likely tokens to return beside each sampled one."""
    seed: int | None = None
    """Draw this turn from a random stream of its own; None: continue the episode's stream."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop must be a tuple of non-empty texts, not {self.stop!r}.")
        if self.top_logprobs < 0:
            raise ValueError(f"top_logprobs must be at least 0, not {self.top_logprobs}.")
        if self.max_tokens < 1 or not 0 <= self.temperature < float("inf"):
            raise ValueError(f"max_tokens must be at least 1 and temperature finite and at least 0: {self}.")


@dataclass(frozen=True)
class Completion:
    """A sampled turn."""

    token_ids: list[int]
    """Sampled ids, with the stop token if it was sampled."""
    logprobs: list[float]
    """Natural-log probability of each id."""
    version: int
    """Policy version that sampled all of them."""
    finish: str
    """"stop" (a stop token or a stop text was sampled) or "length" (max_tokens or the context's end was reached)."""
    cached_tokens: int = field(default=0, compare=False)
    """Prompt ids of an episode's first turn that the engine had computed before."""
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    """The most likely tokens for each id under the distribution that it was drawn from, in descending order; empty if
    none were asked for."""


def room_left(max_context: int, held: int, new: int) -> int:
    """Return how many tokens a turn can sample, given the episode's tokens and new ones. Raises ContextOverflow."""
    room = max_context - held - new
    if room < 1:
        raise ContextOverflow(
            f"The context of {max_context} tokens has no room for {held} tokens, {new} new ones and one to sample."
        )
    return room


class Episode(Protocol):
    """A growing sequence: given tokens, sampled tokens, given tokens, …"""

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Append `new_ids`, then sample until a stop token, a stop text or the limit.

        Raises ContextOverflow if the sequence would outgrow the context, EngineError if sampling fails.
        """
        ...


class Engine(Protocol):
    """Samples for many episodes at once."""

    @property
    def version(self) -> int:
        """The policy version being sampled: the training step of its adapter."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens of an episode."""
        ...

    def episode(self, *, seed: int) -> AbstractAsyncContextManager[Episode]:
        """Open an episode. Its random numbers depend on `seed` alone, not on the rest of the batch."""
        ...
