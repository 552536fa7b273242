"""The turns of the rows being sampled, as the arrays that native decoding reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mcp_rl.inference.drafts import last_ids
from mcp_rl.inference.native.decoding import TurnArrays
from mcp_rl.inference.native.guesses import CONTEXT
from mcp_rl.inference.native.model import TokenPlaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.inference.row import Row


class NativeTurns:
    """The turns of some rows, from one call to the next: made anew once rows come or go. Its arrays are those of rows
    that get ids from `take_in` alone."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.places = TokenPlaces.of([(row.slot, row.start, row.trunk) for row in rows])
        self.with_likeliest = any(row.sampling.top_logprobs for row in rows)
        """Whether a row wants the most likely tokens, which native decoding does not return."""
        self._newest = np.array([last_ids(row.ids) for row in rows])
        self._positions = np.array([len(row.ids) - 1 for row in rows])
        self._left = np.array([row.left for row in rows])
        self._temperatures = np.array([row.sampling.temperature for row in rows], float)
        self._streams = [row.randomness for row in rows]

    def arrays(self, most: int) -> TurnArrays:
        """Return the arrays of a call that samples at most so many ids of each row."""
        limits = np.minimum(self._left, most)
        count, most = len(limits), int(limits.max())
        ids, uniforms = np.zeros((count, CONTEXT + most), np.int64), np.zeros((count, most))
        ids[:, :CONTEXT] = self._newest
        for line, stream, limit in zip(uniforms, self._streams, limits.tolist(), strict=True):
            line[:limit] = stream.take(limit)
        return TurnArrays(
            slots=self.places.slots,
            starts=self.places.starts,
            trunk_of=self.places.trunk_of,
            positions=self._positions,
            limits=limits,
            temperatures=self._temperatures,
            uniforms=uniforms,
            ids=ids,
            logprobs=np.empty((count, most), np.float32),
            counts=np.zeros(count, np.int64),
            passes=np.zeros(count, np.int64),
            guessed=np.zeros(count, np.int64),
        )

    def take_in(self, turns: TurnArrays) -> tuple[list[Row], int]:
        """Append to the rows what was sampled for them, up to the end of their turn; return those that ended, and the
        number of appended ids."""
        ended, total = [], 0
        columns = (turns.ids[:, CONTEXT:], turns.logprobs, turns.counts, turns.limits)
        for row, stream, ids, logprobs, count, limit in zip(
            self.rows, self._streams, *(each.tolist() for each in columns), strict=True
        ):
            kept = row.extend(ids[:count], logprobs[:count])
            row.computed += kept
            stream.give_back(limit - kept)
            total += kept
            if row.ended:
                ended.append(row)
        self._newest = np.take_along_axis(turns.ids, turns.counts[:, None] + np.arange(CONTEXT), 1)
        self._positions = self._positions + turns.counts
        self._left = self._left - turns.counts
        return ended, total
