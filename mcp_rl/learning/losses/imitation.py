"""Imitation: the mean of -log p over the tokens of a demonstration, which is supervised fine-tuning."""

import torch
from torch import Tensor

from mcp_rl.learning.losses.loss import Loss, Tokens


def surprise(tokens: Tokens, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return -log p of each token, in nats. Nothing is clipped, and advantages play no part."""
    return -tokens.logprobs, torch.zeros_like(tokens.logprobs, dtype=torch.bool)


IMITATION = Loss(surprise, clip_low=0.0, clip_high=0.0, aggregation="token-mean")
