"""Aggregate the losses of tokens to one number.

Every normaliser is that of the whole minibatch (`Totals`), so that the gradients of its parts add up to the gradient of
the minibatch, however it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """The normalisers of a minibatch."""

    tokens: int
    """Number of sampled tokens."""
    sequences: int
    sequence_norm: int
    """Dr. GRPO's constant, by which a sequence's sum is divided."""

    @staticmethod
    def of(lengths: Iterable[int], sequence_norm: int) -> Totals:
        """Count sequences, given the number of sampled tokens of each."""
        counted = list(lengths)
        return Totals(sum(counted), len(counted), sequence_norm)


Aggregation = Callable[[Tensor, Tensor, Totals], Tensor]
"""(losses [S], sampled tokens of each sequence [N], totals of the minibatch) -> this part's share of the loss."""


def token_mean(losses: Tensor, lengths: Tensor, totals: Totals) -> Tensor:
    """Weigh every token equally (Yu et al., DAPO, 2025, equation 8)."""
    return losses.sum() / totals.tokens


def sequence_mean(losses: Tensor, lengths: Tensor, totals: Totals) -> Tensor:
    """Weigh every sequence equally, by the mean of its tokens (Shao et al., DeepSeekMath, 2024, equation 3)."""
    return (sequence_sums(losses, lengths) / lengths).sum() / totals.sequences


def constant_norm(losses: Tensor, lengths: Tensor, totals: Totals) -> Tensor:
    """Divide the mean of the sequences' sums by a constant (Liu et al., Dr. GRPO, 2025, section 3.2)."""
    return losses.sum() / (totals.sequences * totals.sequence_norm)


def sequence_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Return the sums [N] of values [S] over consecutive sequences."""
    index = torch.repeat_interleave(lengths, output_size=len(values))
    return values.new_zeros(len(lengths)).index_add(0, index, values)


AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": sequence_mean,
    "seq-mean-token-sum-norm": constant_norm,
}
