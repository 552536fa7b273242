"""Measure which way of computing a model is fastest, on the first batch that it learns from."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import base_of
from mcp_rl.learning.forward.attention import rounding
from mcp_rl.learning.forward.choice import Choice, Trial, Values, attempt, choose
from mcp_rl.learning.forward.tree import split_by_tokens
from mcp_rl.learning.off_policy import per_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_rl.learning.learner import Learner
    from mcp_rl.learning.samples import Sample

log = logging.getLogger(__name__)


def decide_forward(learner: Learner, samples: Sequence[Sample]) -> dict[str, float]:
    """Choose how the learner computes its model, if that is still open; return the metrics of the choice."""
    forward, metrics = learner.forward, {}
    if not forward.decided and learner.sharding is None:
        choice = measure_forward(learner, samples)
        metrics = {f"{name}_seconds": seconds for name, seconds in choice.seconds.items()}
        if learner.ranks is not None:  # all ranks take the same one
            kind = "rows" if learner.ranks.most(int(choice.name == "rows")) else "tree"
            forward.take(kind, learner.model, learner.reference)
    if forward.kinds == ("tree",):
        return metrics
    return {"forward_rows": float(forward.kind == "rows"), **metrics}


def forward_and_back(learner: Learner, some: Sequence[Sample]) -> Callable[[], Values]:
    """Return a function that computes samples forward and backward and returns their log-probabilities, in order.
    Gradients are discarded."""

    def compute() -> Values:
        found: dict[int, Values] = {}
        for part, packed in learner.parts(some):
            logprobs, _ = learner.logprobs(packed)
            logprobs.sum().backward()  # type: ignore[no-untyped-call]
            found |= dict(zip(part, per_sample([some[i] for i in part], logprobs.detach()), strict=True))
        learner.optimizer.zero_grad()
        return np.concatenate([found[i] for i in range(len(some))])

    return compute


def wait_for(learner: Learner) -> Callable[[], None]:
    """Return a function that waits until the learner's device has finished its work."""

    def synchronize() -> None:
        if learner.device.type == "cuda":
            torch.cuda.synchronize()

    return synchronize


def measure_forward(learner: Learner, samples: Sequence[Sample]) -> Choice:
    """Compute some of a batch forward and backward each way, and take the fastest that agrees with the model's own
    forward pass.

    Gradients are discarded and nothing is learned. Raises ConfigError if no way works.
    """
    forward, config = learner.forward, learner.config
    sequences = [sample.tokens for sample in samples]
    some = [samples[i] for i in split_by_tokens(sequences, config.microbatch_tokens, shared=config.prefix_sharing)[0]]

    compute, base = forward_and_back(learner, some), base_of(learner.model)
    trials: dict[str, Trial] = {}
    for kind in forward.kinds:
        forward.take(kind, learner.model, learner.reference)
        trials[kind] = attempt(compute, finish=wait_for(learner))
        learner.optimizer.zero_grad()
    try:  # the tolerance is in nats: log-probabilities have a deviation of about one
        choice = choose(trials, reference="rows", tolerance=rounding(base))
    except RuntimeError as error:
        raise ConfigError(f"{type(base).__name__} cannot be trained here: {error}.") from error
    forward.take(choice.name, learner.model, learner.reference)
    forward.note = choice.reason
    log.info("Of the ways to compute a batch, %s", choice.reason)
    return choice
