"""Matrix products of a training pass."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import compiled_inner, hold
from mcp_rl.inference.native.layers import multiply
from mcp_rl.inference.native.vectors import WIDE, at, start
from mcp_rl.learning.native.records import LOW_A, LOW_B, RANK, ROOM


@compiled_inner
def through(panels, x, sizes, base, out):
    """Write base + x W to out for a weight in packed panels, with x [rows, inputs] without gaps."""
    inputs = sizes[1]
    multiply((x, inputs, np.int64(1)), (start(panels), inputs * WIDE, np.int64(WIDE)), sizes, base, out)


@compiled_inner
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
