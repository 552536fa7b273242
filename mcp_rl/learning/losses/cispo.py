"""CISPO: the importance weight is clipped, not the token, so every token keeps its gradient.

-stop_gradient(clip(r, 1 - low, 1 + high)) A log p: MiniMax-M1, 2025, section 3.1 (equation 4). There the lower bound
is switched off (1 here); the upper one is a weight of 5, TRL's recommendation after ScaleRL (Khatri et al., 2025).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.learning.losses.loss import Loss, Tokens

if TYPE_CHECKING:
    from torch import Tensor


def cispo(tokens: Tokens, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return the losses, and which tokens had their weight clipped."""
    ratio = (tokens.logprobs.detach() - tokens.old).exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -weight * tokens.advantages * tokens.logprobs, weight != ratio


CISPO = Loss(cispo, clip_low=1.0, clip_high=4.0, aggregation="token-mean")
