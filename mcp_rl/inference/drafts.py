"""Guess the next ids of an episode from what was sampled before, so that one forward pass checks several.

Tool calls repeat: the brackets and names around the arguments, and in a group the arguments too. A pass over the
newest id and a guess yields the logits after each, and from these every id is drawn with the number that it would have
been drawn with anyway; the first id that differs from the guess ends it. So the samples are those of one id at a time
(Leviathan et al., 2023, sample from the difference of two distributions instead; prompt lookup: Saxena, 2023), and bit
by bit the same where given ids get the bits of sampled ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mcp_rl.inference.native.compiling import NONE
from mcp_rl.inference.native.guesses import CONTEXT, Followers, guess, learn, learn_all

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 8
"""Most ids of one guess."""
LOGITS = 1 << 24
"""Most logits of a pass that checks guesses: 64 MiB."""
TRIES = 32
"""Calls after which the slower of both ways is tried again."""
CALL = 0.02
"""Seconds that the passes of one call should take: turns that end within it are answered after it."""
PASSES = 16
"""Most passes of one call."""


def last_ids(ids: Sequence[int]) -> list[int]:
    """Return the ids on which a guess of the next one depends, the newest last."""
    tail = list(ids[-CONTEXT:])
    return tail if len(tail) == CONTEXT else [NONE] * (CONTEXT - len(tail)) + tail


class Drafts:
    """Which id follows which context, from all samples so far."""

    def __init__(self) -> None:
        self.followers = Followers.none()

    def learn(self, ids: Sequence[int]) -> None:
        """Take in that the last of `ids` was sampled after the others."""
        learn(self.followers, np.array([*last_ids(ids[:-1]), ids[-1]]), CONTEXT, CONTEXT + 1)

    def take_in(self, ids: Any, counts: Any) -> None:
        """Take in what native decoding sampled: the first `counts` int64 [rows] of ids [rows, CONTEXT + most] behind
        their context."""
        learn_all(self.followers, ids, counts)

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """Return up to `most` ids that may follow `ids`."""
        room = np.array(last_ids(ids) + [NONE] * most)
        count: int = guess(self.followers, room, CONTEXT, most)
        found: list[int] = room[CONTEXT : CONTEXT + count].tolist()
        return found


class Pace:
    """Decides whether guessing pays, by the measured seconds per sampled id of calls with guesses and without, and how
    many passes one call has.

    Each power of two of rows is measured by itself: a pass over few rows costs about the same with guesses as without,
    but one over many costs more with every token.
    """

    def __init__(self) -> None:
        self._per_id: dict[tuple[int, bool], float] = {}
        self._per_pass: dict[tuple[int, bool], float] = {}
        self._calls: dict[int, int] = {}

    def guesses(self, rows: int) -> bool:
        """Return whether the next call over so many rows should check guesses."""
        size = rows.bit_length()
        self._calls[size] = count = self._calls.get(size, 0) + 1
        guessed, plain = self._per_id.get((size, True)), self._per_id.get((size, False))
        if guessed is None or plain is None:
            return guessed is None
        return (guessed < plain) != (count % TRIES == 0)

    def passes(self, rows: int, guessed: bool) -> int:
        """Return the number of passes that take about `CALL` seconds."""
        seconds = self._per_pass.get((rows.bit_length(), guessed), CALL)
        return max(1, min(PASSES, round(CALL / seconds)))

    def took(self, rows: int, guessed: bool, seconds: float, ids: int, passes: int) -> None:
        """Take in the seconds of a call, with the ids that it sampled and its passes."""
        key = rows.bit_length(), guessed
        self._per_id[key] = 0.8 * self._per_id.get(key, seconds / ids) + 0.2 * seconds / ids
        self._per_pass[key] = seconds / passes  # of the last call alone: the next batch may have far shorter rows
