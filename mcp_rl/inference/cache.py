"""Storage of keys and values between turns.

`KvStore` holds one row for each episode, `Trunk` the part of a prompt that many episodes share, computed once and never
copied. The prefix tree (`prefixes`) knows which row holds keys and values of which ids. Invariant: a position is read
only after it was written under the policy version being sampled; changing the version discards everything.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcp_rl.inference.native.compiling import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable

GROWTH = PAGE
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
    panel: int = 0
    """Positions in a panel [head_dim, panel] of keys, the form that the native forward pass reads and writes; 0 if keys
    are stored as values are, [positions, head_dim]."""


class KvStore:
    """Keys and values as one tensor [layers, 2, rows, kv_heads, capacity, head_dim] that grows in both directions.

    Unwritten positions are zero, so masked ones stay finite. On a CPU they take no memory: most episodes are much
    shorter than the longest, for which each row has room. If keys are in panels, each is transposed.
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
        self.data, s = data, self.shape
        self._flat: list[Tensor] = [layer.view(-1, s.head_dim) for layer in data]
        self._lines: list[list[Tensor]] = [
            [which.view(-1, self.capacity, s.head_dim) for which in layer] for layer in data if data.numel()
        ]
        panels = self.rows, s.kv_heads, self.capacity // (s.panel or 1), s.head_dim, s.panel
        self._panels: list[Tensor] = [layer[0].view(panels) for layer in data] if s.panel else []
        self.numbers = data.view(-1).numpy() if s.panel else None
        """With keys in panels, all numbers as one array."""

    def _zeros(self, rows: int, capacity: int) -> Tensor:
        s = self.shape
        size = s.layers, 2, rows, s.kv_heads, capacity, s.head_dim
        if s.device.type != "cpu" or not math.prod(size):
            return torch.zeros(size, dtype=s.dtype, device=s.device)
        try:
            memory = mmap.mmap(-1, math.prod(size) * s.dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{error.strerror}: keys and values of {rows} rows of {capacity} positions") from error
        return torch.frombuffer(memory, dtype=s.dtype).view(size)

    def reserve(self, rows: int, capacity: int, stored: Callable[[int], int]) -> None:
        """Make room for so many rows of so many positions; `stored` tells how many positions of each of them stay."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        wanted = round_up(max(capacity, self.capacity), GROWTH)
        if wanted > self.capacity > 0:
            wanted = round_up(max(wanted, self.capacity * 3 // 2), GROWTH)
        more = round_up(rows, 32) if rows > self.rows else self.rows
        old = self.data
        self._own(self._zeros(more, wanted))
        for row in range(min(rows, old.shape[2])):
            length = min(round_up(stored(row), PAGE), old.shape[4])
            self.data[:, :, row, :, :length] = old[:, :, row, :, :length]

    def write(self, layer: int, where: Tensor, new: Tensor) -> None:
        """Store keys and values [2, N, kv_heads, head_dim] of N tokens; keys must not be in panels."""
        self._flat[layer].index_copy_(0, where, new.reshape(-1, self.shape.head_dim))

    def where(self, slots: Tensor, places: Tensor) -> Tensor:
        """Return the destination of tokens in these rows, the same in each layer, given the position of each in its
        row: the lines of their heads in the flattened keys and values."""
        heads = self.shape.kv_heads
        row = slots[:, None] * heads + torch.arange(heads, device=slots.device)
        lines = (row * self.capacity + places[:, None]).flatten()
        return torch.cat((lines, lines + self.rows * heads * self.capacity))

    def lines(self, layer: int, which: int, start: int, stop: int, length: int) -> Tensor:
        """Return keys (0) or values (1) of adjacent rows: a view [rows * kv_heads, length, head_dim]; keys must not be
        in panels."""
        heads = self.shape.kv_heads
        return self._lines[layer][which][start * heads : stop * heads, :length]

    def keys(self, layer: int, row: int, length: int) -> Tensor:
        """Return the keys of one row [kv_heads, head_dim, length]: a copy if they are in panels, else a
        view."""
        if self.shape.panel:
            panels = self._panels[layer][row, :, : -(-length // self.shape.panel)]
            return panels.transpose(1, 2).reshape(len(panels), self.shape.head_dim, -1)[..., :length]
        return self.lines(layer, 0, row, row + 1, length).transpose(1, 2)

    def values(self, layer: int, row: int, length: int) -> Tensor:
        """Return the values of one row: a view [kv_heads, length, head_dim]."""
        return self.lines(layer, 1, row, row + 1, length)

    def chosen(self, layer: int, which: int, rows: Tensor, length: int) -> Tensor:
        """Return keys (0) or values (1) of any rows: a copy [len(rows) * kv_heads, length, head_dim]; keys must not be
        in panels."""
        return self.data[layer, which, :, :, :length].index_select(0, rows).flatten(0, 1)

    def take(self, row: int, other: KvStore, other_row: int, length: int) -> None:
        """Copy the first positions of a row of another store."""
        length = round_up(length, PAGE)
        self.data[:, :, row, :, :length] = other.data[:, :, other_row, :, :length]

    def move(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first `length` positions of whole rows; rows may be on both sides (a permutation)."""
        if self.numbers is None or set(sources) & set(targets):
            self.carry([(sources, targets, length)])
            return
        length, every = round_up(length, self.shape.panel), self.numbers.reshape(self.data.shape)
        for source, target in zip(sources, targets, strict=True):
            every[:, :, target, :, :length] = every[:, :, source, :, :length]

    def carry(self, moves: list[tuple[list[int], list[int], int]]) -> None:
        """Copy the first positions of rows to other rows, rounded up to pages. Reads all before it writes any."""
        device = self.shape.device
        read = []
        for sources, targets, length in moves:
            if sources:
                part = self.data[:, :, :, :, : round_up(length, PAGE)]
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

    @cached_property
    def keys(self) -> list[Tensor]:
        """Keys of each layer, [kv_heads, head_dim, length]."""
        return [self.store.keys(layer, 0, self.length) for layer in range(self.store.shape.layers)]

    def values(self, layer: int) -> Tensor:
        """Return the values of a layer, [kv_heads, length, head_dim]."""
        return self.store.values(layer, 0, self.length)
