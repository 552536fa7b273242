"""Ends of a turn: a stop token, or a token that completes a stop text.

A stop text may begin and end inside tokens. After each sampled token, the last tokens of the turn are decoded: enough
of them to contain any stop text that ends in the newest token, taking each token for at least one byte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from mcp_rl.errors import EngineError

if TYPE_CHECKING:
    from mcp_rl.inference.engine import Sampling

Decode = Callable[[Sequence[int]], str]
"""Turns ids into text."""

SLACK = 8
"""Tokens to decode beyond the longest stop text, for tokens without text and a character cut at the front."""


class StopRule:
    """The rule that ends one turn. Raises EngineError for stop texts without `decode`."""

    def __init__(self, sampling: Sampling, stop_token_ids: Collection[int], decode: Decode | None) -> None:
        if sampling.stop and decode is None:
            raise EngineError(f"This engine cannot stop at {sampling.stop[0]!r}: it was made without `decode`.")
        self._ids = frozenset(sampling.stop_token_ids).union(stop_token_ids)
        self._texts, self._decode = sampling.stop, decode
        self._window = max((len(text.encode()) for text in sampling.stop), default=0) + SLACK

    def kept(self, sampled: Sequence[int], new: Sequence[int]) -> tuple[int, bool]:
        """Return how many of the new ids, behind those sampled before, belong to the turn, and whether the last of them
        ends it."""
        if not self._texts and self._ids.isdisjoint(new):
            return len(new), False
        sampled = list(sampled)
        for count, token in enumerate(new, 1):
            sampled.append(token)
            if token in self._ids or (self._texts and self._completes(sampled)):
                return count, True
        return len(new), False

    def _completes(self, sampled: Sequence[int]) -> bool:
        assert self._decode is not None
        tail = self._decode(sampled[-self._window :])
        return any(text in tail for text in self._texts)
