"""Products, norms and rotations of the native forward pass. Lines of numbers are a pointer and the step to the next."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import BIAS, INPUTS, LOW_A, LOW_B, OUTPUTS, RANK, WEIGHT, compiled_inner, hold
from mcp_rl.inference.native.vectors import (
    LANES,
    PANEL,
    TALL,
    WIDE,
    added,
    at,
    dot,
    double,
    fetched,
    flat,
    flat_of_1,
    flat_of_8,
    low,
    rotated,
    scaled,
    start,
    tall,
    tile_of_1,
    tile_of_2,
    tile_of_4,
    tile_of_6,
)

FETCHING = 12 if LANES == 8 else 1 << 62
"""Rows from which the next panel of a product is fetched ahead; not measured with registers of 16."""
WRITTEN, ADDED = np.bool_(False), np.bool_(True)
"""What `product` does with its result. Numba would compile it once for a literal False, and again for True."""


@compiled_inner
def panels(weights, sizes, x, rows, base, out):
    """Write base + x W to out [rows, outputs]. x: a pointer to [rows, inputs]; weights: [outputs / PANEL, inputs,
    PANEL]; sizes: inputs and outputs."""
    inputs, outputs = sizes
    (base, base_step), (out, out_step) = base, out
    one, width = np.int64(1), np.int64(PANEL)
    for panel in range(0, outputs, PANEL):
        weight, first, target = (at(weights, panel * inputs), width), at(base, panel), at(out, panel)
        following = at(weights, (panel + PANEL) * inputs)  # fetched in parts while the rows go through this panel
        row = 0
        while row < rows:
            line = at(x, row * inputs), inputs, one
            begin, end = (at(first, row * base_step), base_step), (at(target, row * out_step), out_step)
            if rows >= FETCHING:
                some = row * inputs // rows
                fetched(at(following, some * PANEL), (min(row + 6, rows) * inputs // rows - some) * PANEL)
            if row + 6 <= rows and rows - row != 8:  # two tiles of 4 are faster than one of 6 and one of 2
                tile_of_6(line, weight, inputs, begin, end)
                row += 6
            elif row + 4 <= rows:
                tile_of_4(line, weight, inputs, begin, end)
                row += 4
            elif row + 2 <= rows:
                tile_of_2(line, weight, inputs, begin, end)
                row += 2
            else:
                tile_of_1(line, weight, inputs, begin, end)
                row += 1


@compiled_inner
def multiply(x, weights, sizes, base, out):
    """Write base + x W to out [rows, outputs]; `base` may be `out`, and its step 0 for a bias.

    x: a pointer, and the numbers from one row and from one input to the next. weights: a pointer, and the numbers from
    one panel of `WIDE` outputs and from one input to the next. base, out: a pointer, and the numbers from one row to
    the next. sizes: rows, inputs and outputs. Each number is a sum over the inputs one by one, added to the base.
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
            elif row + 2 <= rows:
                double(line, weight, inputs, begin, end)
                row += 2
            else:
                flat(line, weight, inputs, begin, end)
                row += 1
    whole = outputs // WIDE * WIDE
    rest = at(weights, outputs // WIDE * panel_step)
    while whole < outputs:
        width = 8 if whole + 8 <= outputs else 1
        weight = at(rest, whole % WIDE), weight_row
        for row in range(rows):
            line = at(x, row * x_row), x_row, x_step
            begin, end = (at(base, row * base_row + whole), base_row), (at(out, row * out_row + whole), out_row)
            if width == 8:
                flat_of_8(line, weight, inputs, begin, end)
            else:
                flat_of_1(line, weight, inputs, begin, end)
        whole += width


@compiled_inner
def product(numbers, kind, x, rows, out, add):
    """Write x W + b + (x A) B to out [rows, outputs], or `add` it. kind: what is known of the product; x: a pointer to
    [rows, inputs]."""
    inputs, outputs, rank = kind[INPUTS], kind[OUTPUTS], kind[RANK]
    bias, weight = at(start(numbers), kind[BIAS]), at(start(numbers), kind[WEIGHT])
    if add:
        for row in range(rows):
            added(bias, outputs, at(out[0], row * out[1]))
        panels(weight, (inputs, outputs), x, rows, out, out)
    else:
        panels(weight, (inputs, outputs), x, rows, (bias, np.int64(0)), out)
    if rank > 0:
        narrow = np.zeros(rows * rank, np.float32)
        thin = start(narrow), rank
        panels(at(start(numbers), kind[LOW_A]), (inputs, rank), x, rows, thin, thin)
        panels(at(start(numbers), kind[LOW_B]), (rank, outputs), start(narrow), rows, out, out)
        hold(narrow)


@compiled_inner
def normalised(x, gain, count, floor, out):
    """Write x gain / sqrt(mean(x²) + floor) to out (Zhang and Sennrich, 2019). Pointers."""
    factor = np.float32(1) / np.sqrt(dot(x, x, count) / np.float32(count) + floor)
    scaled(x, gain, factor, count, out)


@compiled_inner
def turned(line, begin, turn, scaling, out, target):
    """Write a head's numbers, turned to their position by cosines and sines and scaled, to a place of out."""
    cos, sin = turn
    rotated(at(start(line), begin), start(cos), start(sin), len(cos) // 2, scaling, at(start(out), target))
