"""The optimiser. Its rate is set at every step; its state is in the checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.config import TrainConfig


def make_optimizer(config: TrainConfig, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Make the configured optimiser.

    `adamw`: Loshchilov and Hutter, 2019. `adafactor`: Shazeer and Stern, 2018; its rate is relative to the size of each
    weight. `sgd` has no state.
    """
    rate, decay = config.learning_rate, config.weight_decay
    match config.optimizer:
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
        case "adafactor":
            return torch.optim.Adafactor(parameters, lr=rate, weight_decay=decay)
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate, weight_decay=decay)
