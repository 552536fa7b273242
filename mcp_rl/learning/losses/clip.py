"""GRPO: the clipped policy gradient, token by token, with separate lower and upper bounds.

-min(r A, clip(r, 1 - low, 1 + high) A) with r = p / p_old: Schulman et al., PPO, 2017, equation 7; Shao et al.,
DeepSeekMath, 2024, equation 3; separate bounds and the mean over all tokens: Yu et al., DAPO, 2025, equation 8.
"""

import torch
from torch import Tensor

from mcp_rl.learning.losses.loss import Loss, Tokens


def clipped(tokens: Tokens, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return the losses, and which tokens have no gradient because they were clipped."""
    ratio = (tokens.logprobs - tokens.old).exp()
    free = ratio * tokens.advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * tokens.advantages
    return -torch.minimum(free, bounded), bounded < free


GRPO = Loss(clipped, clip_low=0.2, clip_high=0.28, aggregation="token-mean")
