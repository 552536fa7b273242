"""The parts of a layer that treat each token alone, forward and backward: norms, linear layers and rotations."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import compiled, compiled_inner, hold
from mcp_rl.inference.native.layers import ADDED, WRITTEN, normalised, turned
from mcp_rl.inference.native.vectors import WIDE, added, at, copied, dot, gated, gated_back, start
from mcp_rl.learning.native.products import low_rank_gradients, through

TOKENS = 48
"""Tokens that pass through a layer's products together: what they need stays in the processor's cache."""
_QUERY, _KEY, _VALUE, _OUTWARD, _GATE, _UP, _DOWN = np.arange(7)
"""Rows of `LayerWeights.adapters`."""


@compiled_inner
def _norm_lines(x, begin, end, gain, floor, out):
    """Write lines of x [.., width], normalised, to out."""
    width = x.shape[1]
    for token in range(begin, end):
        normalised(start(x[token]), start(gain), width, floor, at(start(out), (token - begin) * width))


@compiled_inner
def _norm_back(x, gain, floor, of_out, out, add):
    """Write the gradient of x [width] to out, or add it, for that of x gain f with f = 1 / sqrt(mean(x²) + floor).

    It is f gain dy - f³ x mean(gain dy x).
    """
    width = len(gain)
    factor = np.float32(1) / np.sqrt(dot(start(x), start(x), width) / np.float32(width) + floor)
    through_gain = np.empty(width, np.float32)
    for number in range(width):
        through_gain[number] = of_out[number] * gain[number]
    pull = dot(start(through_gain), start(x), width) / np.float32(width) * factor * factor * factor
    if add:
        for number in range(width):
            out[number] += factor * through_gain[number] - pull * x[number]
    else:
        for number in range(width):
            out[number] = factor * through_gain[number] - pull * x[number]


@compiled
def inward(shape, layer, rotations, kept, span):
    """Write the queries, keys and values of some tokens to kept.qkv."""
    hidden, width, dim = kept.x.shape[1], kept.qkv.shape[1], shape.dim
    normal = np.empty(TOKENS * hidden, np.float32)
    for first in range(span[0], span[1], TOKENS):
        last = min(first + TOKENS, span[1])
        _norm_lines(kept.x, first, last, layer.before, shape.floor, normal)
        bias = start(layer.inward.bias), np.int64(0)
        out = start(kept.qkv[first]), width
        through(layer.inward.panels, start(normal), (last - first, hidden, width), bias, out)
        for token in range(first, last):
            line = kept.qkv[token]
            turn = rotations.cos[token], rotations.sin[token]
            for head in range(shape.heads + shape.shared):
                gain = layer.query if head < shape.heads else layer.key
                scaling = shape.scaling if head < shape.heads else np.float32(1)
                if len(gain):
                    place = at(start(line), head * dim)
                    copied(place, dim, at(start(kept.raw[token]), head * dim))
                    normalised(place, start(gain), dim, shape.floor, place)
                turned(line, head * dim, turn, scaling, line, head * dim)


@compiled
def outward(shape, layer, rows, kept, out, span):
    """Write what follows attention for some rows: kept.mid, kept.gates and the layer's output to out [R, H]."""
    hidden, inner = kept.x.shape[1], shape.inner
    of_heads, wide, still = kept.attended.shape[1], 2 * inner, np.int64(0)
    normal, between = np.empty(TOKENS * hidden, np.float32), np.empty(TOKENS * inner, np.float32)
    for first in range(span[0], span[1], TOKENS):
        last = min(first + TOKENS, span[1])
        some = last - first
        for row in range(first, last):
            copied(start(kept.x[rows[row]]), hidden, start(kept.mid[row]))
            added(start(layer.outward.bias), hidden, start(kept.mid[row]))
        mid = start(kept.mid[first]), hidden
        through(layer.outward.panels, start(kept.attended[first]), (some, of_heads, hidden), mid, mid)
        _norm_lines(kept.mid, first, last, layer.after, shape.floor, normal)
        gates = start(kept.gates[first]), wide
        through(layer.gates.panels, start(normal), (some, hidden, wide), (start(layer.gates.bias), still), gates)
        for row in range(some):
            gate = at(gates[0], row * wide)
            gated(gate, at(gate, inner), inner // WIDE, at(start(between), row * inner))
        for row in range(first, last):
            copied(start(kept.mid[row]), hidden, start(out[row]))
            added(start(layer.down.bias), hidden, start(out[row]))
        target = start(out[first]), hidden
        through(layer.down.panels, start(between), (some, inner, hidden), target, target)


@compiled
def outward_back(shape, layer, kept, of_out, of_attended, deltas, sums, span):
    """Turn the gradient of some rows' outputs into that of `kept.mid`, in place; write that of the attention's output,
    and its products with that output, head by head, to deltas [R, heads]; add the adapters' gradients to two sums."""
    hidden, inner = kept.x.shape[1], shape.inner
    of_heads, wide, still = kept.attended.shape[1], 2 * inner, np.int64(0)
    normal, of_normal = np.empty(TOKENS * hidden, np.float32), np.empty((TOKENS, hidden), np.float32)
    between, of_gates = np.empty(TOKENS * inner, np.float32), np.empty(TOKENS * wide, np.float32)
    zeros = np.zeros(max(hidden, inner, of_heads), np.float32)
    nothing = start(zeros), still
    for first in range(span[0], span[1], TOKENS):
        last = min(first + TOKENS, span[1])
        some = last - first
        gradient = start(of_out[first]), hidden
        through(layer.down.back, gradient[0], (some, hidden, inner), nothing, (start(between), inner))
        for row in range(some):
            gate, back = start(kept.gates[first + row]), at(start(of_gates), row * wide)
            here = at(start(between), row * inner)
            gated_back(gate, at(gate, inner), here, inner // WIDE, back, at(back, inner))
        low_rank_gradients(layer, _DOWN, start(between), gradient, (some, inner, hidden), sums)
        _norm_lines(kept.mid, first, last, layer.after, shape.floor, normal)
        for which, place in ((_GATE, 0), (_UP, inner)):
            half = at(start(of_gates), place), wide
            low_rank_gradients(layer, which, start(normal), half, (some, hidden, inner), sums)
        through(layer.gates.back, start(of_gates), (some, wide, hidden), nothing, (start(of_normal), hidden))
        for row in range(first, last):
            _norm_back(kept.mid[row], layer.after, shape.floor, of_normal[row - first], of_out[row], ADDED)
        through(
            layer.outward.back, gradient[0], (some, hidden, of_heads), nothing, (start(of_attended[first]), of_heads)
        )
        low_rank_gradients(layer, _OUTWARD, start(kept.attended[first]), gradient, (some, of_heads, hidden), sums)
        for row in range(first, last):
            for head in range(shape.heads):
                place = head * shape.dim
                output, back = at(start(kept.attended[row]), place), at(start(of_attended[row]), place)
                deltas[row, head] = dot(output, back, shape.dim)
    hold(zeros)


@compiled
def inward_back(shape, layer, rotations, kept, of_qkv, of_x, sums, span):
    """Add the gradient of some tokens' inputs to of_x, for that of their turned queries, keys and values, which is
    changed in place; add the adapters' gradients to two sums. rotations: back; of_x [0, H]: it is not wanted."""
    hidden, width, dim = kept.x.shape[1], kept.qkv.shape[1], shape.dim
    normal, of_normal = np.empty(TOKENS * hidden, np.float32), np.empty((TOKENS, hidden), np.float32)
    zeros, one = np.zeros(hidden, np.float32), np.float32(1)
    nothing = start(zeros), np.int64(0)
    for first in range(span[0], span[1], TOKENS):
        last = min(first + TOKENS, span[1])
        some = last - first
        for token in range(first, last):
            line, turn = of_qkv[token], (rotations.cos[token], rotations.sin[token])
            for head in range(shape.heads + shape.shared):
                scaling = shape.scaling if head < shape.heads else one
                turned(line, head * dim, turn, scaling, line, head * dim)
                gain = layer.query if head < shape.heads else layer.key
                if len(gain):
                    part = line[head * dim : (head + 1) * dim]
                    _norm_back(kept.raw[token, head * dim : (head + 1) * dim], gain, shape.floor, part, part, WRITTEN)
        _norm_lines(kept.x, first, last, layer.before, shape.floor, normal)
        column = 0
        for which, heads in ((_QUERY, shape.heads), (_KEY, shape.shared), (_VALUE, shape.shared)):
            part, size = (at(start(of_qkv[first]), column), width), (some, hidden, heads * dim)
            low_rank_gradients(layer, which, start(normal), part, size, sums)
            column += heads * dim
        if len(of_x):
            back = start(of_normal), hidden
            through(layer.inward.back, start(of_qkv[first]), (some, width, hidden), nothing, back)
            for token in range(first, last):
                _norm_back(kept.x[token], layer.before, shape.floor, of_normal[token - first], of_x[token], ADDED)
    hold(zeros)
