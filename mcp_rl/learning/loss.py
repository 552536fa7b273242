"""Losses per sampled token. All take the learner's and the old policy's log-probabilities and return [S] tensors.

A token's loss is summed over the batch and divided by the batch's sampled tokens (DAPO, Yu et al., 2025, equation 8),
so that long answers weigh as much per token as short ones.
"""

from collections.abc import Callable

import torch
from torch import Tensor

LossFunction = Callable[[Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]]


def grpo(logprobs: Tensor, old: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, 1-low, 1+high) A): Schulman et al., PPO, 2017, equation 7, with DAPO's separate bounds.

    Returns the losses and whether each token was clipped, so that it has no gradient.
    """
    ratio = (logprobs - old).exp()
    free, bounded = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(free, bounded), bounded < free


def cispo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """-stop_gradient(clip(r)) A log p: MiniMax-M1, 2025, equation 4. A clipped weight still lets its token learn."""
    ratio = (logprobs.detach() - old).exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantages * logprobs, weight != ratio


def kl_to_reference(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The k3 estimate of KL(policy, reference) at tokens sampled by the policy: e^d - d - 1, d = log ref - log p.

    Never negative, unbiased (Schulman, Approximating KL divergence, 2020).
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1


LOSSES: dict[str, LossFunction] = {"grpo": grpo, "cispo": cispo}
