"""Samples as one prefix tree, with what the loss needs of each sampled token, as tensors on the model's device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mcp_rl.learning.logprobs import TreeBatch
from mcp_rl.learning.losses import Tokens
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.tree import build_tree


@dataclass(frozen=True)
class Packed:
    """N samples with S sampled tokens; per-token tensors are [S], in the order of the samples."""

    batch: TreeBatch
    sampler: Tensor
    """Log-probabilities as they were sampled."""
    old: Tensor
    """Log-probabilities that the ratio is taken against."""
    advantages: Tensor
    weights: Tensor
    lengths: Tensor
    """[N] sampled tokens of each sample."""
    flat_tokens: int
    """Tokens of the tree."""
    unshared_tokens: int

    @staticmethod
    def of(samples: Sequence[Sample], device: torch.device, *, shared: bool = True) -> "Packed":
        """`shared=False` computes every sample for itself."""
        tree = build_tree([sample.tokens for sample in samples], shared=shared)
        predictors = np.concatenate([tree.sequence(i)[sample.at] for i, sample in enumerate(samples)])
        lengths = np.asarray([len(sample.targets) for sample in samples])
        columns = [
            np.concatenate([sample.logprobs for sample in samples]),
            np.concatenate([sample.logprobs if sample.old is None else sample.old for sample in samples]),
            np.repeat(np.asarray([sample.advantage for sample in samples], np.float32), lengths),
            np.concatenate([sample.weights for sample in samples]),
            lengths,
        ]
        targets = np.concatenate([sample.targets for sample in samples])
        batch = TreeBatch.of(tree, torch.from_numpy(predictors), torch.from_numpy(targets)).to(device)
        sampler, old, gains, weights, counts = (torch.from_numpy(column).to(device) for column in columns)
        return Packed(batch, sampler, old, gains, weights, counts, len(tree.tokens), tree.unshared_tokens)

    def tokens(self, logprobs: Tensor) -> Tokens:
        """What a loss takes, for the learner's log-probabilities [S]."""
        return Tokens(logprobs, self.old, self.advantages, self.lengths)
