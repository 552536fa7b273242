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
    for line, row in enumerate(rows):
        ids[line, :CONTEXT] = last_ids(row.ids)
        uniforms[line, : limits[line]] = row.randomness.take(limits[line])
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


def take_in(rows: Sequence[Row], turns: TurnArrays) -> list[Row]:
    """Append to rows what was sampled for them, up to the end of their turn; return those that ended."""
    ended = []
    columns = (turns.ids[:, CONTEXT:], turns.logprobs, turns.uniforms, turns.counts, turns.limits)
    for row, ids, logprobs, uniforms, count, limit in zip(rows, *(each.tolist() for each in columns), strict=True):
        kept = 0
        while kept < count:
            kept += 1
            if row.append(ids[kept - 1], logprobs[kept - 1]):
                ended.append(row)
                break
        row.computed += kept
        row.randomness.give_back(uniforms[kept:limit])
    return ended
