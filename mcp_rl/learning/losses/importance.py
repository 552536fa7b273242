"""Truncated importance sampling: tokens that another policy sampled, weighted by min(p / q, cap).

q is the sampler (an older version, other arithmetic) and p the learner before the update. The weight multiplies the
loss of its token, whose ratio is then taken against p: Yao et al., Your efficient RL framework secretly brings you
off-policy RL training, 2025; p is the proximal and q the behaviour policy of the decoupled objective of Hilton et al.,
Batch size-invariance for policy optimization, 2022.

Masks leave out what is too far off instead: single tokens (IcePop: Ling Team, Every step evolves, 2025, section 3), or
whole sequences (masked importance sampling: Liu et al., When speed kills stability, 2025; TRL's `sequence_mask`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.learning.losses.aggregation import sequence_sums

if TYPE_CHECKING:
    from torch import Tensor


def truncated_weights(logprobs: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Return weights [S] between 0 and `cap`, without gradient, from log-probabilities [S] in nats."""
    return (logprobs.detach() - sampler).exp().clamp(max=cap)


def masked_weights(logprobs: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Return weights [S] from 1 / `cap` to `cap`, and 0 for a token whose ratio lies outside."""
    ratio = (logprobs.detach() - sampler).exp()
    return ratio * ((ratio <= cap) & (ratio >= 1 / cap))


def sequence_mask(logprobs: Tensor, sampler: Tensor, lengths: Tensor, cap: float) -> Tensor:
    """Return 1 for each of N sequences [N] whose ratio, the product over its tokens, is at most `cap`, else 0."""
    return (sequence_sums(logprobs.detach() - sampler, lengths).exp() <= cap).to(sampler.dtype)
