"""What a loss is: a function of sampled tokens, and the settings that its paper gives it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The S sampled tokens of N sequences, in order. A sequence is one segment of a trajectory, never cut in two."""

    logprobs: Tensor
    """[S] under the learner as it is, with gradient."""
    old: Tensor
    """[S] under the policy that the ratio is taken against."""
    advantages: Tensor
    """[S]"""
    lengths: Tensor
    """[N] sampled tokens of each sequence, at least 1."""


LossFunction = Callable[[Tokens, float, float], tuple[Tensor, Tensor]]
"""(tokens, clip_low, clip_high) to the loss [S] of each token and whether it was clipped [S]."""


@dataclass(frozen=True)
class Loss:
    """A loss, and what holds for it where the configuration says nothing else."""

    function: LossFunction
    clip_low: float
    clip_high: float
    aggregation: str
    """A name in `aggregation.AGGREGATIONS`."""
