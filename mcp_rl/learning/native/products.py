"""Matrix products of a training pass. Matrices are pointers with the numbers from one row to the next."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import compiled, hold
from mcp_rl.inference.native.vectors import TALL, WIDE, at, flat, low, start, tall
from mcp_rl.learning.native.records import LOW_A, LOW_B, RANK, ROOM


@compiled
def multiply(x, weights, sizes, base, out):
    """Write base + x W to out [rows, outputs]; `base` may be `out`, and its step 0 for a bias.

    x: a pointer, and the numbers from one row and from one input to the next. weights: a pointer, and the numbers from
    one panel of `WIDE` outputs and from one input to the next. sizes: rows, inputs and outputs, a multiple of `WIDE`.
    """
    (x, x_row, x_step), (weights, panel_step, weight_row), (rows, inputs, outputs) = x, weights, sizes
    (base, base_row), (out, out_row) = base, out
    for panel in range(outputs // WIDE):
        weight = at(weights, panel * panel_step), weight_row
        first, target = at(base, panel * WIDE), at(out, panel * WIDE)
        row = 0
        while row < rows:
            line = at(x, row * x_row), x_row, x_step
            begin, end = (at(first, row * base_row), base_row), (at(target, row * out_row), out_row)
            if row + TALL <= rows:
                tall(line, weight, inputs, begin, end)
                row += TALL
            elif row + 4 <= rows:
                low(line, weight, inputs, begin, end)
                row += 4
            else:
                flat(line, weight, inputs, begin, end)
                row += 1


@compiled
def through(panels, x, sizes, base, out):
    """Write base + x W to out for a weight in packed panels, with x [rows, inputs] without gaps."""
    inputs = sizes[1]
    multiply((x, inputs, np.int64(1)), (start(panels), inputs * WIDE, np.int64(WIDE)), sizes, base, out)


@compiled
def low_rank_gradients(layer, which, x, gradient, sizes, sums):
    """Add the gradients of an adapter's A and B, without its scale in that of B, to two sums.

    With y = x (W + s B A)ᵀ they are dA = s (dy B)ᵀ x and dB = s dyᵀ (x Aᵀ) (Hu et al., LoRA, 2021). x: [rows, inputs];
    gradient: dy with the numbers from one row to the next; sizes: rows, inputs and outputs.
    """
    (rows, inputs, outputs), (dy, dy_row), (out_a, out_b), one = sizes, gradient, sums, np.int64(1)
    rank, room = layer.adapters[which, RANK], layer.adapters[which, ROOM]
    if rank == 0:
        return
    zeros, narrow, width = np.zeros(room, np.float32), np.empty(rows * room, np.float32), np.int64(WIDE)
    nothing, low = (start(zeros), np.int64(0)), start(narrow)
    a, b = layer.adapters[which, LOW_A], layer.adapters[which, LOW_B]
    of_a, of_b = (at(start(out_a), a), inputs), (at(start(out_b), b), room)
    multiply((dy, dy_row, one), (at(start(layer.low_b), b), width, room), (rows, outputs, room), nothing, (low, room))
    multiply((low, one, room), (x, width, inputs), (rank, rows, inputs), of_a, of_a)
    panels = at(start(layer.low_a), a), inputs * WIDE, width
    multiply((x, inputs, one), panels, (rows, inputs, room), nothing, (low, room))
    multiply((dy, one, dy_row), (low, width, room), (outputs, rows, room), of_b, of_b)
    hold(zeros)
    hold(narrow)
