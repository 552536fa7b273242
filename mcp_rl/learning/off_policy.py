"""How far the learner is from what sampled its tokens: measured, checked, and corrected where that is wanted."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mcp_rl.learning import canaries
from mcp_rl.learning.losses import truncated_weights
from mcp_rl.learning.packed import Packed
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.tally import Tally

NOTICEABLE = 0.01
"""An importance weight further from 1 than this counts as a correction; less is rounding."""
FAR_OFF = 0.5
"""Difference of mean ratio and log-probability that stops a step in which every token is from an older version."""
LARGEST_RATIO = 3.0
"""A token counts for no more than this in that mean: ratios have no bound, and one token is no broken sampler."""


def staleness(samples: Sequence[Sample], step: int) -> dict[str, float]:
    """By how many steps the sampled tokens are older than the learner. Raises CanaryError where one is younger."""
    ages = [step - sample.versions for sample in samples if sample.versions is not None]
    age = np.concatenate(ages) if ages else np.zeros(1, np.int64)
    canaries.check_version(step - min(0, int(age.min())), step)
    return {"staleness_mean": float(age.mean()), "staleness_max": float(age.max())}


def compare(samples: Sequence[Sample], packed: Packed, logprobs: Tensor, tally: Tally, step: int | None) -> None:
    """Note how sampler and learner differ before anything was learned. Tokens of version `step` are the learner's own;
    None: all are."""
    own = [
        np.ones(len(sample.targets), bool) if step is None or sample.versions is None else sample.versions == step
        for sample in samples
    ]
    tally.compare(logprobs, packed.sampler, torch.from_numpy(np.concatenate(own)))


def correct(samples: Sequence[Sample], packed: Packed, logprobs: Tensor, cap: float, tally: Tally) -> Packed:
    """The part measured against the learner as it is now, its tokens weighted; the samples remember it."""
    old = logprobs.detach()
    weights = truncated_weights(old, packed.sampler, cap)
    columns = zip(samples, per_sample(samples, old), per_sample(samples, weights), strict=True)
    for sample, own, weight in columns:
        sample.old, sample.weights = own, weight
    tally.add(
        corrected=float(((weights - 1).abs() > NOTICEABLE).sum()),
        capped=float((weights == cap).sum()),
        weighted=len(old),
    )
    return replace(packed, old=old, weights=weights)


def check_agreement(tally: Tally, *, rounded: bool = False) -> None:
    """Strictly over the tokens of the learner's own version, or as strictly as its precision allows (`rounded`). Where
    there are none, older ones must not be far off, a few of them excepted."""
    if rounded and (spreads := tally.spreads()):
        canaries.check_rounded_agreement(*spreads)
        return
    own = tally.current_agreement()
    if own is not None:
        canaries.check_agreement(own["ratio_mean"], own["logprob_difference_mean"])
        return
    older = torch.cat(tally.differences).double()
    canaries.check_agreement(
        float(older.exp().clamp(max=LARGEST_RATIO).mean()),
        float(older.abs().mean()),
        ratio_tolerance=FAR_OFF,
        difference_tolerance=FAR_OFF,
    )


def per_sample(samples: Sequence[Sample], values: Tensor) -> list[npt.NDArray[np.float32]]:
    """Values [S] cut into those of each sample."""
    return np.split(values.cpu().numpy(), np.cumsum([len(sample.targets) for sample in samples])[:-1])
