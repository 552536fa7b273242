"""Truncated importance sampling: tokens that another policy sampled, weighted by min(p / q, cap).

q is the sampler (an older version, other arithmetic) and p the learner before the update. The weight multiplies the
loss of its token, whose ratio is then taken against p: Yao et al., Your efficient RL framework secretly brings you
off-policy RL training, 2025; p is the proximal and q the behaviour policy of the decoupled objective of Hilton et al.,
Batch size-invariance for policy optimization, 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def truncated_weights(logprobs: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Return weights [S] between 0 and `cap`, without gradient, from log-probabilities [S] in nats."""
    return (logprobs.detach() - sampler).exp().clamp(max=cap)
