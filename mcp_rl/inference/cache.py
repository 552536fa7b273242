"""Storage of keys and values between turns.

`KvStore` holds one row for each episode, `Trunk` the part of a prompt that many episodes share, computed once and never
copied. The prefix tree (`prefixes`) knows which row holds keys and values of which ids. Invariant: a position is read
only after it was written under the policy version being sampled; changing the version discards everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROWTH = 64
"""Positions by which rows grow. Attention reads whole multiples too, so its shapes are few."""


def round_up(count: int, multiple: int) -> int:
    """Round `count` up to a multiple."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True)
class KvShape:
    """Sizes of a model's keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class KvStore:
    """Keys and values as one tensor [layers, 2, rows, kv_heads, capacity, head_dim] that grows in both directions.

    Unwritten positions are zero, so masked ones stay finite.
    """

    def __init__(self, shape: KvShape, rows: int = 0, capacity: int = 0) -> None:
        self.shape = shape
        self._own(self._zeros(rows, capacity))

    @property
    def rows(self) -> int:
        return self.data.shape[2]

    @property
    def capacity(self) -> int:
        return self.data.shape[4]

    def _own(self, data: Tensor) -> None:
        """Use this tensor from now on. Views that every step needs are made once."""
        self.data, dim = data, self.shape.head_dim
        self._flat: list[Tensor] = [layer.view(-1, dim) for layer in data]
        self._lines: list[list[Tensor]] = [
            [which.view(-1, self.capacity, dim) for which in layer] for layer in data if data.numel()
        ]

    def _zeros(self, rows: int, capacity: int) -> Tensor:
        s = self.shape
        return torch.zeros(s.layers, 2, rows, s.kv_heads, capacity, s.head_dim, dtype=s.dtype, device=s.device)

    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for so many rows of so many positions; stored contents stay."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        wanted = round_up(max(capacity, self.capacity), GROWTH)
        if wanted > self.capacity > 0:
            wanted = round_up(max(wanted, self.capacity * 3 // 2), GROWTH)
        more = round_up(rows, 32) if rows > self.rows else self.rows
        old = self.data
        self._own(self._zeros(more, wanted))
        if old.numel():
            self.data[:, :, : old.shape[2], :, : old.shape[4]] = old

    @property
    def positions(self) -> int:
        """Number of places for the keys of one layer: rows x heads x capacity."""
        return self.rows * self.shape.kv_heads * self.capacity

    def flat(self, layer: int) -> Tensor:
        """Keys, then values, of a layer as [2 * positions, head_dim]."""
        return self._flat[layer]

    def lines(self, layer: int, which: int, start: int, stop: int, length: int) -> Tensor:
        """Keys (0) or values (1) of rows side by side: a view [rows * kv_heads, length, head_dim]."""
        heads = self.shape.kv_heads
        return self._lines[layer][which][start * heads : stop * heads, :length]

    def part(self, layer: int, which: int, row: int, length: int) -> Tensor:
        """Keys (0) or values (1) of one row: a view [kv_heads, length, head_dim]."""
        heads = self.shape.kv_heads
        return self._lines[layer][which][row * heads : (row + 1) * heads, :length]

    def chosen(self, layer: int, which: int, rows: Tensor, length: int) -> Tensor:
        """Keys (0) or values (1) of any rows: a copy [len(rows) * kv_heads, length, head_dim]."""
        return self.data[layer, which, :, :, :length].index_select(0, rows).flatten(0, 1)

    def take(self, row: int, other: KvStore, other_row: int, length: int) -> None:
        """Copy the first positions of a row of another store."""
        self.data[:, :, row, :, :length] = other.data[:, :, other_row, :, :length]

    def move(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` positions of whole rows; rows may be on both sides (a permutation)."""
        self.carry([(sources, targets, length)])

    def carry(self, moves: list[tuple[list[int], list[int], int]]) -> None:
        """Copy rows: from these, to those, so many positions. All are read before any is written."""
        device = self.shape.device
        read = []
        for sources, targets, length in moves:
            if sources:
                part = self.data[:, :, :, :, :length]
                copied = part.index_select(2, torch.tensor(sources, device=device))
                read.append((part, torch.tensor(targets, device=device), copied))
        for part, rows, copied in read:
            part.index_copy_(2, rows, copied)


@dataclass(frozen=True, eq=False)
class Trunk:
    """A prompt's shared beginning: its ids, their keys and values in a store of one row, and the policy version that
    computed them."""

    ids: tuple[int, ...]
    store: KvStore
    version: int

    @property
    def length(self) -> int:
        return len(self.ids)

    def part(self, layer: int, which: int) -> Tensor:
        """Keys (0) or values (1) [kv_heads, length, head_dim]."""
        return self.store.part(layer, which, 0, self.length)
