"""Turns being sampled, as the arrays that native decoding reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mcp_rl.inference.drafts import last_ids
from mcp_rl.inference.native.decoding import TurnArrays
from mcp_rl.inference.native.guesses import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.inference.native.model import TokenPlaces
    from mcp_rl.inference.row import Row


def turn_arrays(rows: Sequence[Row], places: TokenPlaces, most: int) -> TurnArrays:
    """Return the turns of some rows, of which at most so many ids are to be sampled."""
    limits = [min(row.left, most) for row in rows]
    count, most = len(rows), max(limits)
    ids, uniforms = np.zeros((count, CONTEXT + most), np.int64), np.zeros((count, most))
    ids[:, :CONTEXT] = [last_ids(row.ids) for row in rows]
    for line, (row, limit) in enumerate(zip(rows, limits, strict=True)):
        uniforms[line, :limit] = row.randomness.take(limit)
    return TurnArrays(
        slots=places.slots,
        starts=places.starts,
        trunk_of=places.trunk_of,
        positions=np.array([len(row.ids) - 1 for row in rows]),
        limits=np.array(limits),
        temperatures=np.array([row.sampling.temperature for row in rows], float),
        uniforms=uniforms,
        ids=ids,
        logprobs=np.empty((count, most), np.float32),
        counts=np.zeros(count, np.int64),
        passes=np.zeros(count, np.int64),
        guessed=np.zeros(count, np.int64),
    )


def take_in(rows: Sequence[Row], turns: TurnArrays) -> tuple[list[Row], int]:
    """Append to rows what was sampled for them, up to the end of their turn; return those that ended, and the number of
    appended ids."""
    ended, total = [], 0
    columns = (turns.ids[:, CONTEXT:], turns.logprobs, turns.counts, turns.limits)
    for row, ids, logprobs, count, limit in zip(rows, *(each.tolist() for each in columns), strict=True):
        kept = row.extend(ids[:count], logprobs[:count])
        row.computed += kept
        row.randomness.give_back(limit - kept)
        total += kept
        if row.ended:
            ended.append(row)
    return ended, total
