"""Checks that stop a run before it learns from wrong data. Each raises CanaryError with one clear sentence.

The mean ratio alone is a weak check: its expectation is 1 for any two policies, E_q[p/q] = 1. So the mean difference
of log-probabilities is checked too; it shows a wrong temperature or an adapter that never arrived.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.errors import CanaryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.learning.precision import Rounding
    from mcp_rl.trajectory import Trajectory

RATIO_TOLERANCE = 0.02
DIFFERENCE_TOLERANCE = 0.01
CLEARLY = 1.5
"""Factor on the limits of a rounded sampler beyond which one look is enough to stop a run; a temperature of 0.7 in
place of 1 exceeded them by 1.7 times or more."""
CHANGED_TOKENS = 16
"""Known tokens that must have another probability before their change means anything: in 16 bits a small update leaves
most of them unchanged."""
SMALLEST_CHANGE = 1e-5
"""Nats; a policy that moved by less cannot be told from one that did not move."""
PLAIN_DIFFERENCE = 0.15
"""Nats, root mean square; kernels in 16 bits differ by less, even on unlikely tokens of a large vocabulary: in bfloat16
logits between 16 and 32 are an eighth apart."""
SMALLEST_OVERLAP = 0.3
"""The least share of another policy's episodes that a learner must still play to go on learning from them.

Measured on replays of the calculator with train.loss=cispo. At the run's own learning rate the share is about 0.8 or
more for 20 steps, 0.5 at step 25, 0.28 at step 28 and 0.05 at step 30; after 40 steps held-out success is 0.325 where
the run has 0.875. At four times the rate it is 0.75 at step 3 and 0.07 at step 4; after 12 steps success is 0. Means
over tokens show this late or never: at step 30 of the first the mean ratio and the effective sample size are 0.96,
because a few tokens of an episode, now impossible, make all of it impossible.
"""
SAME_MODEL = 0.25
"""Nats, root mean square: the most that a learner and a sampler of the same model may differ."""


class Doubt(CanaryError):
    """Sampler and learner differ by a little more than rounding explains: worth a second look, on the next batch."""


@dataclass(frozen=True)
class LogprobProbe:
    """Natural-log probabilities of the same known tokens, at temperature 1."""

    step: int
    sampled: Sequence[float]
    """The sampler's, computed without its cache."""
    learned: Sequence[float]
    """The learner's."""

    @property
    def difference(self) -> float:
        """Root mean square difference between the two, in nats."""
        return _rms(self.sampled, self.learned)


@dataclass(frozen=True)
class Spread:
    """A mean over tokens and its standard error."""

    mean: float
    error: float

    def limit(self, mean: float) -> float:
        """The largest deviation of the mean that passes, `mean` for many tokens; wider for few."""
        return mean + 3 * self.error


def check_version(sampled: int, expected: int) -> None:
    """Check that the engine samples the policy of the learner's step."""
    if sampled != expected:
        raise CanaryError(
            f"The engine samples policy version {sampled}, but the learner is at step {expected}: the new adapter did "
            "not arrive, and the run stops before it learns from the wrong policy."
        )


def check_sampled_versions(versions: Iterable[int], expected: int) -> None:
    """Check that the learner's own step sampled every token of the batch, as strict on-policy training needs."""
    if strange := Counter(version for version in versions if version != expected):
        version, count = strange.most_common(1)[0]
        raise CanaryError(
            f"{count} tokens of the batch were sampled by policy version {version}, but the learner is at step "
            f"{expected}: the batch is stale."
        )


def check_agreement(
    ratio_mean: float,
    difference_mean: float,
    *,
    ratio_tolerance: float = RATIO_TOLERANCE,
    difference_tolerance: float = DIFFERENCE_TOLERANCE,
) -> None:
    """Check that sampler and learner agree on the sampled tokens' log-probabilities before the first update."""
    if abs(ratio_mean - 1) <= ratio_tolerance and difference_mean <= difference_tolerance:
        return
    raise CanaryError(
        f"Sampler and learner disagree before the update: mean ratio {ratio_mean:.4f} (1 ± {ratio_tolerance} is "
        f"right), mean log-probability difference {difference_mean:.4f} nats (at most {difference_tolerance}); look "
        "for a wrong temperature, an adapter that was not swapped, or a prefix cache of an older policy."
    )


def check_overlap(overlap: float, difference_mean: float) -> None:
    """Check that the learner would still play the episodes of another policy, before it learns from them further.

    `overlap` is the mean ratio of learner to sampler over whole sequences, each capped; `difference_mean` is the mean
    absolute difference of log-probabilities in nats.
    """
    if overlap >= SMALLEST_OVERLAP:
        return
    raise CanaryError(
        f"The learner has left the policy that sampled its episodes: it would play {overlap:.1%} of them (at least "
        f"{SMALLEST_OVERLAP:.0%} is needed), and their tokens are {difference_mean:.2g} nats away on average; the run "
        "stops before the model is spoiled further. Use a smaller train.learning_rate, a train.kl such as 0.05, fewer "
        "steps, or the run's own loss."
    )


def check_rounded_agreement(ratio: Spread, difference: Spread, magnitude: float, rounding: Rounding) -> None:
    """Check the same if one of them computes in 16 bits or with quantised weights.

    Rounding makes single tokens differ by much and their mean by little; a wrong temperature, an absent adapter or a
    stale cache moves the mean, since the expectation of log p - log q under q is -KL(q, p). `magnitude` is the mean of
    the absolute differences. Raises Doubt where a limit is exceeded by less than half.
    """
    limits = (ratio.limit(rounding.mean), difference.limit(rounding.mean), rounding.magnitude)
    found = (abs(ratio.mean - 1), abs(difference.mean), magnitude)
    times = max(value / limit for value, limit in zip(found, limits, strict=True))
    if times <= 1:
        return
    kind = Doubt if times <= CLEARLY else CanaryError
    raise kind(
        f"Sampler and learner disagree before the update by more than rounding explains: mean ratio {ratio.mean:.4f} "
        f"(1 ± {limits[0]:.2g} is right), mean log-probability difference {difference.mean:.4f} (at most "
        f"{limits[1]:.2g} from 0), mean absolute difference {magnitude:.4f} nats (at most {limits[2]:.2g} in "
        f"{rounding.name}); look for a wrong temperature, an adapter that was not swapped, or a prefix cache of an "
        "older policy."
    )


def check_prompts(asked: Iterable[str], accounted: Iterable[str]) -> None:
    """Check that every scenario id came back as often as it was given out: trained on, dropped or faulted."""
    given, back = Counter(asked), Counter(accounted)
    if lost := given - back:
        raise CanaryError(
            f"{lost.total()} of {given.total()} prompts were lost, the first of them {next(iter(lost))!r}."
        )
    if extra := back - given:
        raise CanaryError(
            f"{extra.total()} prompts came back that were not given out, the first of them {next(iter(extra))!r}."
        )


def check_once(trajectories: Iterable[Trajectory]) -> None:
    """Check that no trajectory is in the batch twice."""
    seen: set[int] = set()
    for trajectory in trajectories:
        if id(trajectory) in seen:
            raise CanaryError(
                f"A trajectory of the prompt {trajectory.scenario_id!r} is in the batch twice; the run stops before it "
                "counts double."
            )
        seen.add(id(trajectory))


def check_finite(what: str, value: float) -> None:
    """Check that no NaN and no infinity reaches the optimiser."""
    if not math.isfinite(value):
        raise CanaryError(f"The {what} is {value}; the run stops before the weights are spoiled.")


def check_moved(moved: bool, learning_rate: float, grad_norm: float) -> None:
    """Check that an update with a gradient and a learning rate changed the weights."""
    if not moved and learning_rate > 0 and grad_norm > 0:
        raise CanaryError("The update changed no weight: the optimiser holds other parameters than the model's.")


def check_arrived(probe: LogprobProbe, earlier: Iterable[LogprobProbe]) -> None:
    """Check that the sampled policy has changed since each earlier version as the learner has.

    Rounding in 16 bits adds to both changes and takes from neither, so it raises no false alarm. A policy that does not
    arrive changes nothing; this is noticed at the latest when the learner has moved further than rounding does.
    """
    for before in earlier:
        should, did = _rms(probe.learned, before.learned), _rms(probe.sampled, before.sampled)
        moved = sum(new != old for new, old in zip(probe.learned, before.learned, strict=True))
        if moved >= CHANGED_TOKENS and should > SMALLEST_CHANGE and did < should / 3:
            raise CanaryError(
                f"The policy of step {probe.step} did not arrive in the sampler: since step {before.step} the "
                f"log-probabilities of known tokens moved by {should:.2g} nats in the learner and by {did:.2g} in the "
                "sampler; the run stops before it samples from the wrong policy."
            )


def check_not_base(probe: LogprobProbe, base: Sequence[float]) -> None:
    """Check that a policy that differs clearly from the base model is not sampled as the base model."""
    should, did = _rms(probe.learned, base), _rms(probe.sampled, base)
    if should > PLAIN_DIFFERENCE and did < should / 3:
        raise CanaryError(
            f"The policy of step {probe.step} did not arrive in the sampler: known tokens have the base model's "
            f"log-probabilities there, which are {should:.2g} nats away from the learner's."
        )


def check_same_policy(probe: LogprobProbe, first: LogprobProbe) -> None:
    """Check that sampler and learner differ by no more than their kernels did at first, with a margin for rounding."""
    limit = SAME_MODEL if probe is first else max(6 * first.difference, 2e-3)
    if not probe.difference <= limit:
        raise CanaryError(
            f"The sampler does not have the learner's policy of step {probe.step}: the log-probabilities of known "
            f"tokens differ by {probe.difference:.2g} nats, and rounding explains at most {limit:.2g}; look for "
            "another base model, revision, quantisation or adapter scale in the sampler."
        )


def check_cache(probe: LogprobProbe, places: Sequence[int], through_cache: Sequence[float]) -> None:
    """Check that this policy computed the sampler's prefix cache: tokens at `places` of the probe have the same
    log-probability after a cached prefix as after a computed one."""
    differ = _rms(through_cache, [probe.sampled[place] for place in places])
    limit = max(4 * probe.difference, 1e-4)
    if not differ <= limit:
        raise CanaryError(
            f"The sampler's prefix cache is not of the policy of step {probe.step}: after a cached prefix the "
            f"log-probabilities of known tokens are off by {differ:.2g} nats, and rounding explains at most "
            f"{limit:.2g}; the run stops before it samples with keys and values of an older policy."
        )


def _rms(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the root mean square of the differences."""
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(some, others, strict=True)) / max(1, len(some)))
