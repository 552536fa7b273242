"""Decoding: several passes over rows being sampled, and the draws between them, in one compiled function.

No Python runs between two passes, and threads do not wait for each other: each decodes its own rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mcp_rl.inference.native.compiling import NONE, OUTPUTS, TokenArrays, compiled, compiled_inner
from mcp_rl.inference.native.draws import draw_one
from mcp_rl.inference.native.forward import embedded, into, logits_of, out_of, room_for
from mcp_rl.inference.native.guesses import CONTEXT, guess
from mcp_rl.inference.native.vectors import BLOCK


class TurnArrays(NamedTuple):
    """Turns of rows: arrays with one entry for each row, int64 unless said otherwise."""

    slots: Any
    """The row of the cache."""
    starts: Any
    """The position at which the row begins."""
    trunk_of: Any
    """The trunk that it attends to, or `NONE`."""
    positions: Any
    """The position of its newest id."""
    limits: Any
    """Most ids to sample."""
    temperatures: Any
    """float64"""
    uniforms: Any
    """float64 [rows, most]: the numbers with which ids are drawn."""
    ids: Any
    """[rows, CONTEXT + most]: its last ids, then those that are sampled."""
    logprobs: Any
    """float32 [rows, most]: natural-log probabilities of sampled ids."""
    counts: Any
    """Number of sampled ids."""
    passes: Any
    """Passes that the row was in."""
    guessed: Any
    """Number of guessed ids."""


@compiled_inner
def _is_in(token, some):
    found = False
    for each in some:
        found = found or each == token
    return found


@compiled_inner
def _packed(turns, row, followers, most, packed, total):
    """Pack the newest id of a row, and what may follow it, from a place on; return one past the last place."""
    count = turns.counts[row]
    end = CONTEXT + count
    guesses = guess(followers, turns.ids[row], end, min(most, turns.limits[row] - count - 1))
    for at in range(1 + guesses):
        place, position = total + at, turns.positions[row] + count + at
        packed.ids[place] = turns.ids[row, end - 1 + at]
        packed.positions[place], packed.own[place] = position, position - turns.starts[row]
        packed.slots[place], packed.trunk_of[place] = turns.slots[row], turns.trunk_of[row]
    turns.guessed[row] += guesses
    return total + 1 + guesses


@compiled
def decode(weights, rotations, cache, followers, stops, passes, most, turns):
    """Sample ids of rows in so many passes, each over a row's newest id and up to `most` guessed ones.

    Sampling goes on behind a guess that is drawn, and ends at a stop id or at the limit. When half of the rows have
    ended, the passes do.
    """
    rows = len(turns.slots)
    out = np.empty((rows * (1 + most), weights.head[1 + OUTPUTS]), np.float32)
    blocks = -(-out.shape[1] // BLOCK)
    room, powers = np.empty(blocks * BLOCK, np.float32), np.empty(blocks * BLOCK, np.float32)
    sums = np.empty(blocks, np.float32)
    lines = np.empty((5, len(out)), np.int64)
    packed = TokenArrays(lines[0], lines[1], lines[2], lines[3], lines[4])
    scratch, every = room_for(weights, len(out)), np.arange(len(out))
    queries = np.empty(len(out) * weights.heads * weights.dim, np.float32)
    live, alive, ends = np.arange(rows), rows, np.empty(rows, np.int64)
    for _ in range(passes):
        total = np.int64(0)
        for place in range(alive):
            total = _packed(turns, live[place], followers, most, packed, total)
            ends[place] = total
        some = TokenArrays(
            packed.ids[:total],
            packed.positions[:total],
            packed.slots[:total],
            packed.own[:total],
            packed.trunk_of[:total],
        )
        x = embedded(weights, some.ids)
        for layer in range(len(weights.products)):
            into(weights, rotations, cache, some, layer, (x, queries), scratch, (np.int64(0), total))
            out_of(weights, cache, some, layer, queries, every[:total], x, scratch)
        logits_of(weights, x, scratch, out[:total])
        first = staying = 0
        for place in range(alive):
            row, going = live[place], True
            turns.passes[row] += 1
            for at in range(first, ends[place]):
                count = turns.counts[row]
                wanted = turns.ids[row, CONTEXT + count] if at + 1 < ends[place] else NONE
                temperature, uniform = turns.temperatures[row], turns.uniforms[row, count]
                token, logprob = draw_one(out[at], temperature, uniform, room, powers, sums)
                turns.ids[row, CONTEXT + count], turns.logprobs[row, count] = token, logprob
                turns.counts[row] = count + 1
                going = count + 1 < turns.limits[row] and not _is_in(token, stops)
                if not going or token != wanted:
                    break
            first = ends[place]
            if going:
                live[staying] = row
                staying += 1
        alive = staying
        if 2 * alive <= rows:
            break
