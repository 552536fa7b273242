"""The optimiser. Its rate is set anew at every step; what it remembers is in the checkpoint."""

from collections.abc import Iterable

import torch
from torch import Tensor

from mcp_rl.config import TrainConfig


def make_optimizer(config: TrainConfig, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """`adamw` (Loshchilov and Hutter, 2019), `adafactor` (Shazeer and Stern, 2018; its rate is relative to the size of
    each weight) or `sgd`, which remembers nothing."""
    rate, decay = config.learning_rate, config.weight_decay
    match config.optimizer:
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
        case "adafactor":
            return torch.optim.Adafactor(parameters, lr=rate, weight_decay=decay)
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate, weight_decay=decay)
