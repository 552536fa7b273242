"""Guess the next ids of an episode from what was sampled before, so that one forward pass checks several.

Tool calls repeat: the brackets and names around the arguments, and in a group the arguments too. A pass over the
newest id and a guess yields the logits after each, and from these every id is drawn with the number that it would have
been drawn with anyway; the first id that differs from the guess ends it. So the samples are those of one id at a time
(Leviathan et al., 2023, sample from the difference of two distributions instead; prompt lookup: Saxena, 2023), and bit
by bit the same where given ids get the bits of sampled ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT = 4
"""Ids that a guess depends on."""
MOST = 8
"""Most ids of one guess."""
SURE = 2
"""Times that an id followed its context, less twice the times that another one did, from which on it is guessed. In
`benchmarks.guesses` 7 to 8 of 10 guessed ids were then right."""
STEADY = 4
"""Most that is counted, so that a policy that changes is followed."""
LOGITS = 1 << 24
"""Most logits of a pass that checks guesses: 64 MiB."""
TRIES = 32
"""Passes after which the slower of both ways is tried again."""
SIZE = 1 << 17
"""Contexts that are kept; then all are forgotten."""


class Drafts:
    """Which id follows which context, from all samples so far."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], tuple[int, int]] = {}

    def learn(self, ids: Sequence[int]) -> None:
        """Take in that the last of `ids` was sampled after the others."""
        context, token = tuple(ids[-CONTEXT - 1 : -1]), ids[-1]
        known, count = self._next.get(context, (token, 0))
        if known == token:
            count = min(count + 1, STEADY)
        elif count <= SURE:
            known, count = token, 1
        else:
            count -= SURE
        if len(self._next) >= SIZE:
            self._next.clear()
        self._next[context] = known, count

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """Return up to `most` ids that may follow `ids`."""
        found: list[int] = []
        context = tuple(ids[-CONTEXT:])
        while len(found) < most:
            token, count = self._next.get(context, (0, 0))
            if count < SURE:
                break
            found.append(token)
            context = (*context[1:], token)
        return found


class Pace:
    """Decides whether guessing pays, by the measured seconds per sampled id of passes with guesses and without.

    Each power of two of rows is measured by itself: a pass over few rows costs about the same with guesses as without,
    but one over many costs more with every token.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bool], float] = {}
        self._passes: dict[int, int] = {}

    def guesses(self, rows: int) -> bool:
        """Return whether the next pass over so many rows should check guesses."""
        size = rows.bit_length()
        self._passes[size] = count = self._passes.get(size, 0) + 1
        guessed, plain = self._seconds.get((size, True)), self._seconds.get((size, False))
        if guessed is None or plain is None:
            return guessed is None
        return (guessed < plain) != (count % TRIES == 0)

    def took(self, rows: int, guessed: bool, seconds: float) -> None:
        """Take in the seconds per sampled id of a pass."""
        key = rows.bit_length(), guessed
        self._seconds[key] = 0.8 * self._seconds.get(key, seconds) + 0.2 * seconds
