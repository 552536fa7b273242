"""The learning rate of a step. It follows from the settings and the step alone, so a resumed run has the same rates."""

import math

from mcp_rl.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of the update that leads from `step` to `step + 1`: it rises over the warm-up, then falls.

    inverse: as 1 / (1 + step / decay_steps), which needs no last step to be known (Robbins and Monro, 1951); never
    where decay_steps is 0. linear and cosine (Loshchilov and Hutter, SGDR, 2017): from the end of the warm-up
    to `floor` of the rate at decay_steps, and no further. constant: not at all.
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
