"""Attention of tokens over their own rows as weighted sums of table lines (`embedding_bag`), on the CPU in float32.

With one or a few tokens for each row, a product per row and head is too small for MKL. FBGEMM's kernels for embedding
tables, which torch brings along, do the same sums 2 to 5 times as fast, over any rows in any order:

- the scores of a token over a page of keys [head_dim, PAGE] are the sum of its lines, weighted by the query;
- the output of a token is the sum of the lines of values [positions, head_dim], weighted by the softmax.

Both kernels add one product after the other, as MKL does in sums of up to `BLOCK` terms, so the bits are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from mcp_rl.inference.cache import PAGE

if TYPE_CHECKING:
    from mcp_rl.inference.cache import KvStore

BLOCK = 128
"""Positions summed in one call."""


class Bags:
    """Table lines that a group of N tokens reads in each layer. L = positions read, a multiple of `PAGE`."""

    def __init__(self, store: KvStore, slots: Tensor, length: int, share: int) -> None:
        """slots: [N], the row of each token; share: queries for each head of keys."""
        self._store, self.capacity = store, store.capacity
        heads, dim, pages = store.shape.kv_heads, store.shape.head_dim, length // PAGE
        self._shape = len(slots), heads, share
        row = (slots.int()[:, None] * heads + torch.arange(heads, dtype=torch.int32))[:, :, None]
        first = row * (store.capacity // PAGE * dim)
        keys = first + torch.arange(pages * dim, dtype=torch.int32)
        self._keys = keys[:, :, None].expand(-1, -1, share, -1).reshape(-1, dim)
        values = row * store.capacity + torch.arange(length, dtype=torch.int32)
        lines = values[:, :, None].expand(-1, -1, share, -1).reshape(-1, length)
        self._values = [lines[:, start : start + BLOCK].contiguous() for start in range(0, length, BLOCK)]

    def scores(self, layer: int, query: Tensor) -> Tensor:
        """Return the scores [N, kv_heads, share, L] of queries [N, kv_heads, share, head_dim]."""
        dim = query.shape[-1]
        pages = len(self._keys) // (query.numel() // dim)
        weights = query[:, :, :, None].expand(-1, -1, -1, pages, -1).reshape(-1, dim)
        scores = F.embedding_bag(self._keys, self._store.key_pages(layer), mode="sum", per_sample_weights=weights)
        return scores.view(*self._shape, -1)

    def values(self, layer: int, weights: Tensor) -> Tensor:
        """Return the values [N, kv_heads, share, head_dim] of weights [N, kv_heads, share, L]."""
        table, start, total = self._store.value_lines(layer), 0, None
        for block in self._values:
            stop = start + block.shape[1]
            part = weights[..., start:stop].reshape(block.shape)
            out = F.embedding_bag(block, table, mode="sum", per_sample_weights=part)
            total, start = out if total is None else total.add_(out), stop
        assert total is not None
        return total.view(*self._shape, -1)
