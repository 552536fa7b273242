"""A prefix tree and the sampled tokens in it, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcp_rl.learning.forward.tree_mask import TreeMask

if TYPE_CHECKING:
    from mcp_rl.learning.forward.tree import PrefixTree


@dataclass(frozen=True)
class Predictors:
    """The positions that predict the S sampled tokens."""

    rows: Tensor
    """[P] flat positions, each once and in order, after which a token was sampled."""
    row: Tensor
    """[S] index into `rows` of the position that predicts the token."""
    targets: Tensor
    """[S] the sampled ids."""
    by_row: Tensor
    """[S] the sampled tokens in the order of `row`."""
    ends: list[int]
    """For each of `rows`, the number of `by_row` tokens that it and the rows before it predict."""

    @staticmethod
    def at(positions: Tensor, targets: Tensor) -> Predictors:
        """Make them of `positions` [S], the flat positions of the tokens just before the sampled ones."""
        rows, row, counts = torch.unique(positions, return_inverse=True, return_counts=True)
        return Predictors(rows, row, targets, row.argsort(stable=True), counts.cumsum(0).tolist())

    def to(self, device: torch.device) -> Predictors:
        if device.type == "cpu":
            return self
        return replace(self, **{part: getattr(self, part).to(device) for part in ("rows", "row", "targets", "by_row")})


@dataclass(frozen=True)
class TreeBatch:
    """A tree and the S sampled tokens in it, as tensors on the model's device."""

    tokens: Tensor
    """[1, T]"""
    positions: Tensor
    """[1, T]"""
    mask: TreeMask
    predictors: Predictors

    @staticmethod
    def of(tree: PrefixTree, predictors: Tensor, targets: Tensor) -> TreeBatch:
        """Make a batch; `predictors` [S] are the flat positions of the tokens just before the sampled ones."""
        tokens, positions = torch.from_numpy(tree.tokens)[None], torch.from_numpy(tree.positions)[None]
        at = Predictors.at(predictors, targets)
        return TreeBatch(tokens, positions, TreeMask.of(tree, at.rows), at)

    def to(self, device: torch.device) -> TreeBatch:
        if device.type == "cpu":
            return self
        tokens, positions = self.tokens.to(device), self.positions.to(device)
        return TreeBatch(tokens, positions, self.mask.to(device), self.predictors.to(device))
