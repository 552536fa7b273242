"""The distance between the learner and the sampler of its tokens: measured, checked and, if wanted, corrected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mcp_rl.learning import canaries
from mcp_rl.learning.losses.aggregation import sequence_sums
from mcp_rl.learning.losses.importance import masked_weights, sequence_mask, truncated_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.config import TrainConfig
    from mcp_rl.learning.forward.packed import Packed
    from mcp_rl.learning.precision import Rounding
    from mcp_rl.learning.samples import Sample
    from mcp_rl.learning.tally import Tally

NOTICEABLE = 0.01
"""Distance of an importance weight from 1 above which it counts as a correction; less is rounding."""
FAR_OFF = 0.5
"""Limit of the mean ratio's distance from 1 and of the mean log-probability difference (nats) that stops a step in
which older versions sampled every token."""
LARGEST_RATIO = 3.0
"""Cap on a token's or a sequence's ratio in a mean: ratios are unbounded, and a single one proves nothing."""
DRIFTING = 0.7
"""Share of another policy's episodes that a learner would still play, below which a replay warns.

It was 0.82 or more in a replay of 12 steps that did no measurable harm; `canaries.SMALLEST_OVERLAP` has the others."""


def staleness(samples: Sequence[Sample], step: int) -> dict[str, float]:
    """Return metrics of the sampled tokens' age in steps. Raises CanaryError if a token is newer than the learner."""
    ages = [step - sample.versions for sample in samples if sample.versions is not None]
    age = np.concatenate(ages) if ages else np.zeros(1, np.int64)
    canaries.check_version(step - min(0, int(age.min())), step)
    return {"staleness_mean": float(age.mean()), "staleness_max": float(age.max())}


def compare(samples: Sequence[Sample], packed: Packed, logprobs: Tensor, tally: Tally, step: int | None) -> None:
    """Record how sampler and learner differ before anything was learned. The learner's own tokens are those of version
    `step`; all of them if `step` is None."""
    own = [
        np.ones(len(sample.targets), bool) if step is None or sample.versions is None else sample.versions == step
        for sample in samples
    ]
    tally.compare(logprobs, packed.sampler, torch.from_numpy(np.concatenate(own)))
    ratios = sequence_sums(logprobs.detach() - packed.sampler, packed.lengths).exp()
    tally.add(overlap=float(ratios.clamp(max=LARGEST_RATIO).sum()), sequences=len(ratios))


def correct(samples: Sequence[Sample], packed: Packed, logprobs: Tensor, config: TrainConfig, tally: Tally) -> Packed:
    """Return the part with importance weights and with ratios taken against the current learner; the samples keep both
    columns."""
    old, cap = logprobs.detach(), config.cap
    weigh = masked_weights if config.importance == "mask" else truncated_weights
    weights = weigh(old, packed.sampler, cap)
    if config.sequence_cap is not None:
        kept = sequence_mask(old, packed.sampler, packed.lengths, config.sequence_cap)
        tally.add(sequences_masked=float((kept == 0).sum()), sequences_met=len(kept))
        weights = weights * torch.repeat_interleave(kept, packed.lengths, output_size=len(weights))
    columns = zip(samples, per_sample(samples, old), per_sample(samples, weights), strict=True)
    for sample, own, weight in columns:
        sample.old, sample.weights = own, weight
    tally.add(
        corrected=float(((weights - 1).abs() > NOTICEABLE).sum()),
        capped=float((weights == cap).sum()),
        left_out=float((weights == 0).sum()),
        weighted=len(old),
    )
    return replace(packed, old=old, weights=weights)


def check_agreement(tally: Tally, rounding: Rounding | None = None) -> None:
    """Check that sampler and learner agree on the tokens of the learner's own version, as strictly as the `rounding` of
    either allows. If there are none, older tokens must not be far off on average."""
    if rounding is not None and (spreads := tally.spreads()):
        canaries.check_rounded_agreement(*spreads, rounding)
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


def check_overlap(tally: Tally, rounding: Rounding | None = None) -> None:
    """Check that learner and sampler overlap, where they are different policies on purpose, as in a replay. Rounding
    plays no part."""
    difference = torch.cat(tally.differences)
    canaries.check_overlap(tally.mean("overlap", "sequences"), float(difference.abs().mean()))


def per_sample(samples: Sequence[Sample], values: Tensor) -> list[npt.NDArray[np.float32]]:
    """Cut values [S] into one array for each sample."""
    return np.split(values.cpu().numpy(), np.cumsum([len(sample.targets) for sample in samples])[:-1])
