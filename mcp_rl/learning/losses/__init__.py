"""The losses, one algorithm per file; `objective` returns the one that a configuration asks for, with its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.learning.losses.aggregation import AGGREGATIONS, Aggregation, Totals
from mcp_rl.learning.losses.cispo import CISPO
from mcp_rl.learning.losses.clip import GRPO
from mcp_rl.learning.losses.dr_grpo import DR_GRPO
from mcp_rl.learning.losses.gspo import GSPO
from mcp_rl.learning.losses.imitation import IMITATION
from mcp_rl.learning.losses.kl import kl_to_reference
from mcp_rl.learning.losses.loss import Loss, LossFunction, Tokens

if TYPE_CHECKING:
    from mcp_rl.config import TrainConfig

__all__ = [
    "AGGREGATIONS",
    "IMITATED",
    "LOSSES",
    "Objective",
    "Tokens",
    "Totals",
    "kl_to_reference",
    "objective",
]

LOSSES: dict[str, Loss] = {"grpo": GRPO, "dr_grpo": DR_GRPO, "cispo": CISPO, "gspo": GSPO}


@dataclass(frozen=True)
class Objective:
    """The function to minimise: a loss with all its settings resolved."""

    function: LossFunction
    clip_low: float
    clip_high: float
    aggregate: Aggregation


def objective(config: TrainConfig) -> Objective:
    """Return the configured loss; settings that the configuration leaves open are those of the loss's own paper."""
    loss = LOSSES[config.loss]
    return Objective(
        loss.function,
        loss.clip_low if config.clip_low is None else config.clip_low,
        loss.clip_high if config.clip_high is None else config.clip_high,
        AGGREGATIONS[config.aggregation or loss.aggregation],
    )


IMITATED = Objective(IMITATION.function, IMITATION.clip_low, IMITATION.clip_high, AGGREGATIONS[IMITATION.aggregation])
"""The function to minimise on demonstrations, whatever the configuration says of rewards."""
