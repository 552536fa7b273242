"""GSPO: one ratio for a whole sequence, the geometric mean of its tokens' ratios, clipped as a whole.

-min(s A, clip(s, 1 - low, 1 + high) A) with s = exp(mean of log p - log p_old over the sequence), averaged over
sequences: Zheng et al., Group sequence policy optimization, 2025, section 4 (equation 5); the bounds are those of its
section 5.1. A mean of logs moves far less than a single token, hence the bounds so close to 1. Since every token has
the gradient of its whole sequence, weights of tokens act through their mean.
"""

import torch
from torch import Tensor

from mcp_rl.learning.losses.aggregation import sequence_sums
from mcp_rl.learning.losses.clip import clipped
from mcp_rl.learning.losses.loss import Loss, Tokens


def gspo(tokens: Tokens, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return each token's losses, and which were clipped. Every token carries the loss of its sequence, so that the
    mean over a sequence is that loss, with its gradient."""
    means = sequence_sums(tokens.logprobs - tokens.old, tokens.lengths) / tokens.lengths
    spread = torch.repeat_interleave(means, tokens.lengths, output_size=len(tokens.old))
    whole = Tokens(spread, torch.zeros_like(tokens.old), tokens.advantages, tokens.lengths)
    return clipped(whole, clip_low, clip_high)


GSPO = Loss(gspo, clip_low=3e-4, clip_high=4e-4, aggregation="seq-mean-token-mean")
