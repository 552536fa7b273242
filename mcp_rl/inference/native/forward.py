"""The native forward pass: all layers of a model of Llama's shape over packed tokens, in one compiled function.

It needs no Python between its products and releases the interpreter's lock. Every token is computed as if it were
alone: the sums of a product run over its inputs one by one, those of attention over its trunk and its own row, whatever
else is in the batch.
"""

from __future__ import annotations

import functools

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
    hold,
)
from mcp_rl.inference.native.layers import normalised, product, turned
from mcp_rl.inference.native.vectors import PANEL, WIDE, at, copied, gated, scattered, start

TOKENS = 96
"""Tokens that pass through a layer's products together: what they need stays in the processor's cache."""


@compiled
def _normalised_lines(x, width, gain, weights, count, out):
    """Write lines of x [count, width], normalised, to out [count, hidden size]. x, out: pointers."""
    hidden = weights.embeddings.shape[1]
    for token in range(count):
        normalised(
            at(x, token * width), at(start(weights.numbers), gain), hidden, weights.floor, at(out, token * hidden)
        )


@compiled
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
        turned(line, (heads + part) * dim, turn, np.float32(1), key, 0)
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


@compiled
def forward(weights, rotations, cache, packed, keep, out):
    """Store the keys and values of packed tokens; write the logits of those in the places `keep` to out [len(keep),
    outputs of the head]."""
    numbers, products, norms = weights.numbers, weights.products, weights.norms
    hidden, of_heads = weights.embeddings.shape[1], weights.heads * weights.dim
    layers, count = len(products), len(packed.ids)
    width = -(-hidden // PANEL) * PANEL
    x = np.zeros((count, width), np.float32)
    for token in range(count):
        copied(start(weights.embeddings[packed.ids[token]]), hidden, start(x[token]))
    most = min(TOKENS, max(count, len(keep)))
    in_step, wide, inner = products[0, INWARD, OUTPUTS], products[0, GATES, OUTPUTS], products[0, DOWN, INPUTS]
    queries, normal = np.empty(count * of_heads, np.float32), np.empty(most * hidden, np.float32)
    inward, attended = np.empty(most * in_step, np.float32), np.empty(most * of_heads, np.float32)
    gates, between = np.empty(most * wide, np.float32), np.empty(most * inner, np.float32)
    tokens = np.arange(count)
    for layer in range(layers):
        for block in range(0, count, TOKENS):
            some = min(TOKENS, count - block)
            _normalised_lines(at(start(x), block * width), width, norms[layer, BEFORE], weights, some, start(normal))
            product(numbers, products[layer, INWARD], start(normal), some, (start(inward), in_step), False)
            for token in range(some):
                line = inward[token * in_step : (token + 1) * in_step]
                _store(weights, rotations, cache, packed, layer, block + token, line, queries)
        if layer == layers - 1:  # only the logits wanted depend on the rest
            tokens, everything = keep, x
            x = np.empty((len(keep), width), np.float32)
            for token in range(len(keep)):
                copied(start(everything[keep[token]]), width, start(x[token]))
        for block in range(0, len(tokens), TOKENS):
            some = min(TOKENS, len(tokens) - block)
            here = at(start(x), block * width)
            attend(weights, cache, packed, layer, queries, tokens[block : block + some], attended)
            product(numbers, products[layer, OUTWARD], start(attended), some, (here, width), True)
            _normalised_lines(here, width, norms[layer, AFTER], weights, some, start(normal))
            product(numbers, products[layer, GATES], start(normal), some, (start(gates), wide), False)
            for token in range(some):
                gate = at(start(gates), token * wide)
                gated(gate, at(gate, inner), inner // WIDE, at(start(between), token * inner))
            product(numbers, products[layer, DOWN], start(between), some, (here, width), True)
    columns = out.shape[1]
    for block in range(0, len(keep), TOKENS):
        some = min(TOKENS, len(keep) - block)
        _normalised_lines(at(start(x), block * width), width, weights.head[0], weights, some, start(normal))
        product(numbers, weights.head[1:], start(normal), some, (at(start(out), block * columns), columns), False)
