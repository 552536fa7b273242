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

    def ends(self, sampled: Sequence[int]) -> bool:
        """Return whether the newest sampled id ends the turn."""
        return sampled[-1] in self._ids or (bool(self._texts) and self._completes(sampled))

    def _completes(self, sampled: Sequence[int]) -> bool:
        assert self._decode is not None
        tail = self._decode(sampled[-self._window :])
        return any(text in tail for text in self._texts)
