"""The records that the compiled functions of a training pass share.

H = hidden size, D = width of a head, T = tokens of the tree, R = the rows whose outputs are read: all tokens, or in the
last layer those that predict a sampled token. All matrices are float32, row by row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FIRST, LAST, PATH, END, PRIVATE = range(5)
"""Columns of `TreeArrays.tasks`: the first row and one past the last, the same of the path in `TreeArrays.paths`, and
where the task's own gradients of keys and values begin."""
LOW_A, LOW_B, RANK, ROOM = range(4)
"""Columns of `LayerWeights.adapters`: where Aᵀ and B begin, the rank, and that rounded up to a multiple of `WIDE`."""


class ModelSizes(NamedTuple):
    """A model's sizes."""

    heads: int
    shared: int
    """Heads of keys and values."""
    dim: int
    inner: int
    """Width of the feed-forward layer."""
    scaling: Any
    """Of scores."""
    floor: Any
    """Of the mean squares in norms."""


class Product(NamedTuple):
    """A linear layer with its update merged, or several of one input side by side."""

    panels: Any
    """The weight as [outputs / WIDE, inputs, WIDE]."""
    back: Any
    """The weight as [inputs / WIDE, outputs, WIDE]."""
    bias: Any
    """[outputs]"""


class LayerWeights(NamedTuple):
    """A layer's weights."""

    inward: Product
    """Queries, keys and values."""
    outward: Product
    gates: Product
    """Both halves of the feed-forward layer."""
    down: Product
    before: Any
    """[H]: the gain of the norm before attention."""
    after: Any
    """[H]: of the one before the feed-forward layer."""
    query: Any
    """[D], or [0] without a norm of queries."""
    key: Any
    adapters: Any
    """int64 [7, 4]: those of queries, keys, values, attention's output, gate, up and down."""
    low_a: Any
    """Aᵀ of each adapter as [ROOM / WIDE, inputs, WIDE]; its gradient is [ROOM, inputs] in the same place."""
    low_b: Any
    """B of each adapter [outputs, ROOM], times its scale."""


class TreeArrays(NamedTuple):
    """The tokens of a pass and who attends to whom: int64 arrays."""

    rows: Any
    """[R]: the flat position of each row, in ascending order."""
    starts: Any
    """[R]: the first flat position of the row's node."""
    paths: Any
    """Flat positions of the paths to the nodes."""
    tasks: Any
    """[tasks, 5]: rows in the children of one node, which see one path."""


class Kept(NamedTuple):
    """The activations of a layer that its backward pass reads."""

    x: Any
    """[T, H]: its input."""
    raw: Any
    """[T, (heads + shared) D]: queries and keys before their norms; [0, 0] without such norms."""
    qkv: Any
    """[T, (heads + 2 shared) D]: scaled queries, keys, both turned to their positions, and values."""
    attended: Any
    """[R, heads D]"""
    logs: Any
    """[R, heads]: the logarithm of the sum of the exponentials of a query's scores."""
    mid: Any
    """[R, H]: the input of the second half."""
    gates: Any
    """[R, 2 inner]"""
