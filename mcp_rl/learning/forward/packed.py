"""Samples packed into tensors on the model's device: one prefix tree or rows, and the columns that the loss needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mcp_rl.learning.forward.rows import RowsBatch
from mcp_rl.learning.forward.tree import build_tree
from mcp_rl.learning.forward.tree_batch import TreeBatch
from mcp_rl.learning.losses import Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.learning.samples import Sample


@dataclass(frozen=True)
class Packed:
    """N samples with S sampled tokens; per-token tensors are [S], in the order of the samples."""

    batch: TreeBatch | RowsBatch
    sampler: Tensor
    """Log-probabilities as they were sampled."""
    old: Tensor
    """Log-probabilities that the ratio is taken against."""
    advantages: Tensor
    weights: Tensor
    lengths: Tensor
    """[N] sampled tokens of each sample."""
    flat_tokens: int
    """Forward tokens: those of the tree, or of the rows with their padding."""
    unshared_tokens: int
    """Tokens of all samples together, without sharing or padding."""

    @staticmethod
    def of(samples: Sequence[Sample], device: torch.device, *, shared: bool = True, rows: bool = False) -> Packed:
        """Pack samples; with `shared` False every sample is computed alone, with `rows` they lie side by side instead
        of in a tree."""
        sequences = [sample.tokens for sample in samples]
        targets = torch.from_numpy(np.concatenate([sample.targets for sample in samples]))
        batch: TreeBatch | RowsBatch
        if rows:
            batch = RowsBatch.of(sequences, [sample.at for sample in samples], targets)
            flat, unshared = batch.tokens.numel(), sum(map(len, sequences))
        else:
            tree = build_tree(sequences, shared=shared)
            predictors = np.concatenate([tree.sequence(i)[sample.at] for i, sample in enumerate(samples)])
            batch = TreeBatch.of(tree, torch.from_numpy(predictors), targets)
            flat, unshared = len(tree.tokens), tree.unshared_tokens
        lengths = np.asarray([len(sample.targets) for sample in samples])
        columns = [
            np.concatenate([sample.logprobs for sample in samples]),
            np.concatenate([sample.logprobs if sample.old is None else sample.old for sample in samples]),
            np.repeat(np.asarray([sample.advantage for sample in samples], np.float32), lengths),
            np.concatenate([sample.weights for sample in samples]),
            lengths,
        ]
        sampler, old, gains, weights, counts = (torch.from_numpy(column).to(device) for column in columns)
        return Packed(batch.to(device), sampler, old, gains, weights, counts, flat, unshared)

    def tokens(self, logprobs: Tensor) -> Tokens:
        """Return the arguments of a loss, for the learner's log-probabilities [S]."""
        return Tokens(logprobs, self.old, self.advantages, self.lengths)
