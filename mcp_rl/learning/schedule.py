"""The learning rate of a step. It depends on the settings and the step alone, so a resumed run has the same rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_rl.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the rate of the update from `step` to `step + 1`: it rises over the warm-up, then falls.

    inverse: as 1 / (1 + step / decay_steps), which needs no known last step (Robbins and Monro, 1951); with decay_steps
    0 it does not fall. linear and cosine (Loshchilov and Hutter, SGDR, 2017): from the end of the warm-up to `floor` of
    the rate at decay_steps, and no further. constant: it does not fall.
    """
    rise = min(1.0, (step + 1) / (config.warmup_steps + 1))
    return config.learning_rate * min(rise, _fall(config, step))


def _fall(config: TrainConfig, step: int) -> float:
    if config.schedule == "inverse":
        return 1.0 / (1.0 + step / config.decay_steps) if config.decay_steps else 1.0
    if config.schedule == "constant":
        return 1.0
    length = max(1, config.decay_steps - config.warmup_steps)
    progress = min(1.0, max(0, step - config.warmup_steps) / length)
    share = 1.0 - progress if config.schedule == "linear" else (1.0 + math.cos(math.pi * progress)) / 2
    return config.floor + (1.0 - config.floor) * share
