"""The native forward pass: all layers of a model of Llama's shape over packed tokens, in compiled functions.

They need no Python between their products and release the interpreter's lock. Sampled tokens pass all layers in one
call (`decoding`). Given ones, often a single long row, pass layer by layer, so that threads share them: each takes some
tokens out of one layer and into the next, whose keys and values are then all stored. Every token is computed as if it
were alone: the sums of a product run over its inputs one by one, those of attention over its trunk and its own row,
whatever else is in the batch.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from mcp_rl.inference.native.attending import attend
from mcp_rl.inference.native.compiling import (
    AFTER,
    BEFORE,
    DOWN,
    GATES,
    INPUTS,
    INWARD,
    KEY,
    NONE,
    OUTPUTS,
    OUTWARD,
    QUERY,
    compiled,
    compiled_inner,
    hold,
)
from mcp_rl.inference.native.layers import ADDED, WRITTEN, normalised, product, turned
from mcp_rl.inference.native.vectors import PANEL, WIDE, at, copied, gated, scattered, start

TOKENS = 96
"""Tokens that pass through a layer's products together: what they need stays in the processor's cache."""


@compiled_inner
def _normalised_lines(x, width, gain, weights, count, out):
    """Write lines of x [count, width], normalised, to out [count, hidden size]. x, out: pointers."""
    hidden = weights.embeddings.shape[1]
    for token in range(count):
        normalised(
            at(x, token * width), at(start(weights.numbers), gain), hidden, weights.floor, at(out, token * hidden)
        )


@compiled_inner
def _store(weights, rotations, cache, packed, layer, token, line, queries):
    """Store a token's keys and values, and write its scaled queries. line: all three, each [heads, dim]."""
    heads, shared, dim = weights.heads, weights.shared, weights.dim
    if weights.norms[layer, QUERY] != NONE:
        for part in range(heads + shared):
            gain = weights.norms[layer, QUERY if part < heads else KEY]
            place = at(start(line), part * dim)
            normalised(place, at(start(weights.numbers), gain), dim, weights.floor, place)
    turn = rotations.cos[packed.positions[token]], rotations.sin[packed.positions[token]]
    for part in range(heads):
        turned(line, part * dim, turn, weights.scaling, queries, (token * heads + part) * dim)
    key, own, room = np.empty(dim, np.float32), packed.own[token], cache.capacity * dim
    numbers = start(cache.numbers)
    first = layer * 2 * cache.rows * shared * room
    for part in range(shared):
        turned(line, (heads + part) * dim, turn, np.float32(1), key, np.int64(0))
        row = first + (packed.slots[token] * shared + part) * room
        panel = row + own // WIDE * WIDE * dim + own % WIDE
        scattered(start(key), dim, at(numbers, panel), np.int64(WIDE))
        target = row + cache.rows * shared * room + own * dim
        copied(at(start(line), (heads + shared + part) * dim), dim, at(numbers, target))
    hold(key)


@functools.partial(compiled, brief=True)
def out_of_bounds(packed, vocabulary, rows, capacity):
    """Return the first token whose id is not in the vocabulary or whose place is not in the cache, or `NONE`."""
    for token in range(len(packed.ids)):
        if not 0 <= packed.ids[token] < vocabulary:
            return token
        if not (0 <= packed.slots[token] < rows and 0 <= packed.own[token] < capacity):
            return token
    return NONE


class Room(NamedTuple):
    """Scratch arrays of one thread, flat, for at most `TOKENS` tokens: the inputs and outputs of a layer's products."""

    normal: Any
    inward: Any
    attended: Any
    gates: Any
    between: Any


@compiled
def room_for(weights, count):
    """Return the room that so many tokens need."""
    products, most = weights.products, min(TOKENS, count)
    return Room(
        np.empty(most * weights.embeddings.shape[1], np.float32),
        np.empty(most * products[0, INWARD, OUTPUTS], np.float32),
        np.empty(most * weights.heads * weights.dim, np.float32),
        np.empty(most * products[0, GATES, OUTPUTS], np.float32),
        np.empty(most * products[0, DOWN, INPUTS], np.float32),
    )


@compiled
def embedded(weights, ids):
    """Return the embeddings of tokens [tokens, width], with zeros up to a whole panel."""
    hidden = weights.embeddings.shape[1]
    x = np.zeros((len(ids), -(-hidden // PANEL) * PANEL), np.float32)
    for token in range(len(ids)):
        copied(start(weights.embeddings[ids[token]]), hidden, start(x[token]))
    return x


@compiled
def into(weights, rotations, cache, packed, layer, lines, room, span):
    """Store a layer's keys and values of a span of the packed tokens, and write their queries. lines: x [tokens, width]
    and the queries of all; span: the first token and one past the last."""
    (x, queries), (begin, end) = lines, span
    width, step = x.shape[1], weights.products[0, INWARD, OUTPUTS]
    normal, inward = room.normal, room.inward
    for block in range(begin, end, TOKENS):
        some = min(TOKENS, end - block)
        here = at(start(x), block * width)
        _normalised_lines(here, width, weights.norms[layer, BEFORE], weights, some, start(normal))
        product(weights.numbers, weights.products[layer, INWARD], start(normal), some, (start(inward), step), WRITTEN)
        for token in range(some):
            line = inward[token * step : (token + 1) * step]
            _store(weights, rotations, cache, packed, layer, block + token, line, queries)


@compiled
def out_of(weights, cache, packed, layer, queries, tokens, x, room):
    """Replace x [len(tokens), width] by the layer's output for some of the packed tokens."""
    numbers, products, width = weights.numbers, weights.products, x.shape[1]
    wide, inner = products[0, GATES, OUTPUTS], products[0, DOWN, INPUTS]
    normal, attended, gates, between = room.normal, room.attended, room.gates, room.between
    for block in range(0, len(tokens), TOKENS):
        some = min(TOKENS, len(tokens) - block)
        here = at(start(x), block * width)
        attend(weights, cache, packed, layer, queries, tokens[block : block + some], attended)
        product(numbers, products[layer, OUTWARD], start(attended), some, (here, width), ADDED)
        _normalised_lines(here, width, weights.norms[layer, AFTER], weights, some, start(normal))
        product(numbers, products[layer, GATES], start(normal), some, (start(gates), wide), WRITTEN)
        for token in range(some):
            gate = at(start(gates), token * wide)
            gated(gate, at(gate, inner), inner // WIDE, at(start(between), token * inner))
        product(numbers, products[layer, DOWN], start(between), some, (here, width), ADDED)


@compiled
def logits_of(weights, x, room, out):
    """Write the logits of tokens to out [tokens, outputs of the head]. x: the last layer's output."""
    width, columns = x.shape[1], out.shape[1]
    for block in range(0, len(x), TOKENS):
        some = min(TOKENS, len(x) - block)
        here = at(start(x), block * width)
        _normalised_lines(here, width, weights.head[0], weights, some, start(room.normal))
        target = at(start(out), block * columns), columns
        product(weights.numbers, weights.head[1:], start(room.normal), some, target, WRITTEN)
