"""Visibility between tokens of a prefix tree, in memory linear in its tokens.

Nodes are numbered in depth-first order, so that a node's branch is an interval of numbers. A token sees another if its
own node lies in the other's branch and the other does not come later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mcp_rl.learning.forward.tree import PrefixTree

T = TypeVar("T")


@dataclass(frozen=True)
class TreeMask:
    """The data that attention over one tree needs: int32 tensors [T] on the model's device."""

    tree: PrefixTree
    enter: Tensor
    """Number of each token's node."""
    leave: Tensor
    """First number after the branch of each token's node."""
    positions: Tensor
    """Position of each token in its own sequences."""
    wanted: Tensor | None = None
    """[P] flat positions, in ascending order, whose last hidden states are read; None: all."""

    @staticmethod
    def of(tree: PrefixTree, wanted: Tensor | None = None) -> TreeMask:
        sizes = [1] * len(tree.nodes)
        for index in range(len(tree.nodes) - 1, 0, -1):
            sizes[tree.nodes[index].parent] += sizes[index]
        enter = [0] * len(tree.nodes)
        for index, children in enumerate(tree.children):
            number = enter[index] + 1
            for child in children:
                enter[child] = number
                number += sizes[child]
        lengths = torch.tensor([node.length for node in tree.nodes])
        first, size = (torch.tensor(side, dtype=torch.int32) for side in (enter, sizes))
        return TreeMask(
            tree,
            first.repeat_interleave(lengths),
            (first + size).repeat_interleave(lengths),
            torch.from_numpy(tree.positions).int(),
            wanted,
        )

    def to(self, device: torch.device) -> TreeMask:
        if device == self.enter.device:
            return self
        enter, leave, positions = (part.to(device) for part in (self.enter, self.leave, self.positions))
        return TreeMask(self.tree, enter, leave, positions, self.wanted)

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return max((node.depth + node.length for node in self.tree.nodes), default=0)

    @cached_property
    def _plans(self) -> dict[Hashable, Any]:
        return {}

    def plan(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what a kind of attention prepares for the tree; it is made once."""
        if key not in self._plans:
            self._plans[key] = make()
        return cast("T", self._plans[key])

    def window(self, size: int | None) -> int | None:
        """Return a sliding window, or None if it is at least as long as the longest sequence."""
        return size if size is not None and size < self.longest else None

    def visible(self, queries: Tensor | slice, keys: Tensor | slice, window: int | None = None) -> Tensor:
        """Return [q, k], True where the query sees the key; both are flat positions. With a `window` a token sees
        itself and `window` - 1 tokens before it."""
        positions, number = self.positions[queries, None], self.enter[queries, None]
        seen = (self.enter[keys] <= number) & (number < self.leave[keys]) & (self.positions[keys] <= positions)
        return seen if window is None else seen & (self.positions[keys] > positions - window)
