"""Supervised fine-tuning: the same learner with cross-entropy on the assistant's tokens.

Conversations share their prompts as episodes do, so the same prefix tree computes each shared token once. A step's loss
is the mean of -log p over its learned tokens; nothing is sampled, so the temperature plays no part.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from mcp_rl.learning.canaries import check_finite
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.schedule import learning_rate
from mcp_rl.learning.threads import update_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.learning.learner import Learner


def sample_of(tokens: Sequence[int], learned: Sequence[bool], number: int = 0) -> Sample:
    """Make a sample of a sequence; `learned` is the mask of the tokens in the loss, at least one after the first."""
    where = np.flatnonzero(learned)
    where = where[where > 0]  # nothing predicts a sequence's first token
    return Sample(
        tokens=list(tokens[: int(where[-1])]),
        at=where - 1,
        targets=np.asarray(tokens, np.int64)[where],
        logprobs=np.zeros(len(where), np.float32),
        weights=np.ones(len(where), np.float32),
        advantage=1.0,
        group=number,
    )


@update_threads()
def supervise(learner: Learner, samples: Sequence[Sample]) -> dict[str, float]:
    """Take one optimiser step on all samples together; return its metrics.

    Raises CanaryError, with the weights unchanged, if the loss or the gradient is not finite.
    """
    began = time.perf_counter()
    total = sum(len(sample.targets) for sample in samples)
    loss = entropy = 0.0
    flat = unshared = 0
    rate, scale = learning_rate(learner.config, learner.step), learner.scale(total)
    try:
        for _, packed in learner.parts(samples):
            logprobs, surprise = learner.logprobs(packed)
            part = -logprobs.sum() / total
            loss += (value := float(part.detach()))
            check_finite("loss", value)
            (part * scale if scale != 1 else part).backward()  # type: ignore[no-untyped-call]
            entropy += float(surprise.detach().sum()) / total
            flat, unshared = flat + packed.flat_tokens, unshared + packed.unshared_tokens
        learner.unscale(scale)
        norm = learner.descend(check_moved=learner.step == 0)
    finally:
        learner.optimizer.zero_grad()
    learner.step += 1
    return {
        "loss": loss,
        "entropy": entropy,
        "grad_norm": norm,
        "learning_rate": rate,
        "conversations": float(len(samples)),
        "trained_tokens": float(total),
        "forward_tokens": float(flat),
        "unshared_tokens": float(unshared),
        "saved_share": 1.0 - flat / unshared,
        "update_seconds": time.perf_counter() - began,
    }


@torch.no_grad()
def held_out_loss(learner: Learner, samples: Sequence[Sample]) -> float:
    """Return the mean of -log p, in nats, over the learned tokens of all samples."""
    found = [learner.logprobs(packed)[0].cpu() for _, packed in learner.parts(samples)]
    return -float(torch.cat(found).double().mean())
