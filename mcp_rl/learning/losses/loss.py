"""The parts of a loss: a function of sampled tokens, and the settings of its paper."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The S sampled tokens of N sequences, in order. A sequence is one segment of a trajectory, never cut in two."""

    logprobs: Tensor
    """[S] under the current learner, with gradient."""
    old: Tensor
    """[S] under the policy that the ratio is taken against."""
    advantages: Tensor
    """[S]"""
    lengths: Tensor
    """[N] sampled tokens of each sequence, at least 1."""


LossFunction = Callable[[Tokens, float, float], tuple[Tensor, Tensor]]
"""(tokens, clip_low, clip_high) -> the loss [S] of each token, and True [S] where it was clipped."""


@dataclass(frozen=True)
class Loss:
    """A loss and its default settings."""

    function: LossFunction
    clip_low: float
    clip_high: float
    aggregation: str
    """A name in `aggregation.AGGREGATIONS`."""
