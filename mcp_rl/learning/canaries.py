"""Checks that stop a run before it learns from wrong data (law 9). Each raises CanaryError, one clear sentence.

The mean ratio alone is a weak check: its expectation is 1 for any two policies, E_q[p/q] = 1. So the mean difference
of log-probabilities is watched too; it shows a wrong temperature or an adapter that never arrived.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcp_rl.errors import CanaryError
from mcp_rl.trajectory import Trajectory

RATIO_TOLERANCE = 0.02
DIFFERENCE_TOLERANCE = 0.01
ROUNDED_DIFFERENCE, ROUNDED_MEAN = 0.1, 0.02
"""In nats, of a sampler or a learner in 16 bits: of single tokens on average, and of their mean."""
CHANGED_TOKENS = 16
"""So many known tokens must be of another probability for their change to say anything: in 16 bits most stay as they
are in a small update."""
SMALLEST_CHANGE = 1e-5
"""Nats; a policy that moved by less is the same for all that anybody can tell."""
PLAIN_DIFFERENCE = 0.15
"""Nats, root mean square; more than kernels differ in 16 bits, unlikely tokens of a large vocabulary included: logits
between 16 and 32 are an eighth apart in bfloat16."""
SAME_MODEL = 0.25
"""Nats between a learner and its sampler that are of one model at all."""


@dataclass(frozen=True)
class Probe:
    """Natural-log probabilities of the same known tokens, at temperature 1."""

    step: int
    sampled: Sequence[float]
    """As the sampler gives them, everything computed anew."""
    learned: Sequence[float]
    """As the learner does."""

    @property
    def difference(self) -> float:
        """Between the two, root mean square in nats."""
        return _rms(self.sampled, self.learned)


@dataclass(frozen=True)
class Spread:
    """A mean of tokens and how surely it is known."""

    mean: float
    error: float
    """Standard error."""

    @property
    def limit(self) -> float:
        """How far from what it should be it may lie: of few tokens farther."""
        return ROUNDED_MEAN + 3 * self.error


def check_version(sampled: int, expected: int) -> None:
    """The engine samples the adapter of the learner's step."""
    if sampled != expected:
        raise CanaryError(
            f"The engine samples policy version {sampled}, but the learner is at step {expected}: the new adapter did "
            "not arrive, so the run stops before it learns from the wrong policy."
        )


def check_sampled_versions(versions: Iterable[int], expected: int) -> None:
    """Every token of the batch was sampled by the learner's own step, as strictly on-policy training needs."""
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
    """Sampler and learner give sampled tokens the same log-probability before the first update."""
    if abs(ratio_mean - 1) <= ratio_tolerance and difference_mean <= difference_tolerance:
        return
    raise CanaryError(
        f"Sampler and learner disagree before the update: mean ratio {ratio_mean:.4f} (1 ± {ratio_tolerance} is "
        f"right), mean log-probability difference {difference_mean:.4f} nats (at most {difference_tolerance}); look "
        "for a wrong temperature, an adapter that was not swapped, or a prefix cache of an older policy."
    )


def check_rounded_agreement(ratio: Spread, difference: Spread, magnitude: float) -> None:
    """The same where one of them computes in 16 bits or with quantised weights. Rounding makes single tokens differ by
    much and their mean by little; a wrong temperature, an absent adapter or a stale cache moves the mean, since the
    expectation of log p - log q under q is -KL(q, p). `magnitude` is the mean of the differences without their sign."""
    checks = (abs(ratio.mean - 1) <= ratio.limit, abs(difference.mean) <= difference.limit)
    if all(checks) and magnitude <= ROUNDED_DIFFERENCE:
        return
    raise CanaryError(
        f"Sampler and learner disagree before the update by more than rounding explains: mean ratio {ratio.mean:.4f} "
        f"(1 ± {ratio.limit:.2g} is right), mean log-probability difference {difference.mean:.4f} (at most "
        f"{difference.limit:.2g} from 0), {magnitude:.4f} nats without its sign (at most {ROUNDED_DIFFERENCE}); look "
        "for a wrong temperature, an adapter that was not swapped, or a prefix cache of an older policy."
    )


def check_prompts(asked: Iterable[str], accounted: Iterable[str]) -> None:
    """Every scenario id that was given out came back, as often as it was given: trained on, dropped or faulted."""
    given, back = Counter(asked), Counter(accounted)
    if lost := given - back:
        raise CanaryError(
            f"{lost.total()} of {given.total()} prompts were lost, the first of them {next(iter(lost))!r}."
        )
    if extra := back - given:
        raise CanaryError(f"{extra.total()} prompts came back that were not given out, first {next(iter(extra))!r}.")


def check_once(trajectories: Iterable[Trajectory]) -> None:
    """No trajectory is learned from twice in a batch."""
    seen: set[int] = set()
    for trajectory in trajectories:
        if id(trajectory) in seen:
            raise CanaryError(
                f"A trajectory of the prompt {trajectory.scenario_id!r} is in the batch twice, so the run stops before "
                "it counts double."
            )
        seen.add(id(trajectory))


def check_finite(what: str, value: float) -> None:
    """No NaN and no infinity reaches the optimiser."""
    if not math.isfinite(value):
        raise CanaryError(f"The {what} is {value}, so the run stops before the adapter is spoiled.")


def check_moved(moved: bool, learning_rate: float, grad_norm: float) -> None:
    """An update with a gradient and a learning rate changes the adapter."""
    if not moved and learning_rate > 0 and grad_norm > 0:
        raise CanaryError("The update left every adapter weight as it was: the optimiser holds other parameters.")


def check_arrived(probe: Probe, earlier: Iterable[Probe]) -> None:
    """What is sampled has changed since each earlier version as what is learned has.

    Rounding in 16 bits adds to both changes and takes from neither, so it raises no false alarm; a policy that stays
    away moves nothing, and is noticed at the latest when the learner has moved further than rounding does.
    """
    for before in earlier:
        should, did = _rms(probe.learned, before.learned), _rms(probe.sampled, before.sampled)
        moved = sum(new != old for new, old in zip(probe.learned, before.learned, strict=True))
        if moved >= CHANGED_TOKENS and should > SMALLEST_CHANGE and did < should / 3:
            raise CanaryError(
                f"The policy of step {probe.step} did not arrive where it is sampled: the log-probabilities of known "
                f"tokens have moved by {should:.2g} nats in the learner since step {before.step} and by {did:.2g} in "
                "the sampler, so the run stops before it samples from the wrong policy."
            )


def check_not_base(probe: Probe, base: Sequence[float]) -> None:
    """A policy that is plainly another than the base model is not sampled as the base model."""
    should, did = _rms(probe.learned, base), _rms(probe.sampled, base)
    if should > PLAIN_DIFFERENCE and did < should / 3:
        raise CanaryError(
            f"The policy of step {probe.step} did not arrive where it is sampled: known tokens have the probabilities "
            f"of the base model, and {should:.2g} nats of log-probability lie between that and the learner."
        )


def check_same_policy(probe: Probe, first: Probe) -> None:
    """Sampler and learner differ by no more than their kernels did in the beginning, a margin for rounding left."""
    limit = SAME_MODEL if probe is first else max(6 * first.difference, 2e-3)
    if not probe.difference <= limit:
        raise CanaryError(
            f"What is sampled is not the learner's policy of step {probe.step}: the log-probabilities of known tokens "
            f"differ by {probe.difference:.2g} nats, where {limit:.2g} is the most that rounding explains; look for "
            "another base model, revision, quantisation or adapter scale in the sampler."
        )


def check_cache(probe: Probe, places: Sequence[int], through_cache: Sequence[float]) -> None:
    """The sampler's prefix cache holds what this policy computed: tokens at `places` of the probe have the same
    log-probability after a beginning from the cache as after one that was computed anew."""
    differ = _rms(through_cache, [probe.sampled[place] for place in places])
    limit = max(4 * probe.difference, 1e-4)
    if not differ <= limit:
        raise CanaryError(
            f"The sampler's prefix cache is not of the policy of step {probe.step}: after a cached beginning the "
            f"log-probabilities of known tokens are {differ:.2g} nats off, where {limit:.2g} is the most that rounding "
            "explains, so the run stops before it samples with what an older policy computed."
        )


def _rms(some: Sequence[float], others: Sequence[float]) -> float:
    """Root mean square of the differences."""
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(some, others, strict=True)) / max(1, len(some)))
