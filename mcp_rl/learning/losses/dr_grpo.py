"""Dr. GRPO: GRPO without its bias towards long wrong answers and towards easy or hard questions.

The clipped loss of a sequence is a sum, divided by a constant instead of its length, and the advantage is r - mean(r),
not divided by the standard deviation (`TrainConfig.scales_by_std`): Liu et al., Understanding R1-Zero-like training,
2025, section 3.2 and figure 1.
"""

from mcp_rl.learning.losses.clip import clipped
from mcp_rl.learning.losses.loss import Loss

DR_GRPO = Loss(clipped, clip_low=0.2, clip_high=0.2, aggregation="seq-mean-token-sum-norm")
