"""The KL to the base, estimated at the tokens that the policy sampled (Schulman, Approximating KL divergence, 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def kl_to_reference(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return the k3 estimate [S] of KL(policy, reference) in nats: e^d - d - 1 with d = log ref - log p.

    It is unbiased and never negative; equation 4 of Shao et al., DeepSeekMath, 2024.
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1
