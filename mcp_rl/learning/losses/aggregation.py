"""How the losses of tokens become one number.

Every normaliser is that of the whole minibatch (`Totals`), so that gradients of its parts add up to the gradient of the
minibatch, however it is cut.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """What a minibatch is normalised by."""

    tokens: int
    """Sampled tokens in it."""
    sequences: int
    sequence_norm: int
    """Dr. GRPO's constant: what a sequence's sum is divided by."""

    @staticmethod
    def of(lengths: Iterable[int], sequence_norm: int) -> "Totals":
        """Of sequences with so many sampled tokens each."""
        counted = list(lengths)
        return Totals(sum(counted), len(counted), sequence_norm)


Aggregation = Callable[[Tensor, Tensor, Totals], Tensor]
"""(losses [S], sampled tokens of each sequence [N], totals of the minibatch) to this part's share of the loss."""


def token_mean(losses: Tensor, lengths: Tensor, totals: Totals) -> Tensor:
    """Every token counts the same (Yu et al., DAPO, 2025, equation 8)."""
    return losses.sum() / totals.tokens


def sequence_mean(losses: Tensor, lengths: Tensor, totals: Totals) -> Tensor:
    """Every sequence counts the same, by the mean of its tokens (Shao et al., DeepSeekMath, 2024, equation 3)."""
    return (sequence_sums(losses, lengths) / lengths).sum() / totals.sequences


def constant_norm(losses: Tensor, lengths: Tensor, totals: Totals) -> Tensor:
    """The mean over sequences of their sums, over a constant (Liu et al., Dr. GRPO, 2025, section 3.2)."""
    return losses.sum() / (totals.sequences * totals.sequence_norm)


def sequence_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums [N] of values [S] over sequences that lie one after another."""
    index = torch.repeat_interleave(lengths, output_size=len(values))
    return values.new_zeros(len(lengths)).index_add(0, index, values)


AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": sequence_mean,
    "seq-mean-token-sum-norm": constant_norm,
}
