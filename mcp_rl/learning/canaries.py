"""Checks that stop a run before it learns from wrong data (law 9). Each raises CanaryError, one clear sentence.

The mean ratio alone is a weak check: its expectation is 1 for any two policies, E_q[p/q] = 1. So the mean difference
of log-probabilities is watched too; it shows a wrong temperature or an adapter that never arrived.
"""

import math
from collections import Counter
from collections.abc import Iterable

from mcp_rl.errors import CanaryError
from mcp_rl.trajectory import Trajectory

RATIO_TOLERANCE = 0.02
DIFFERENCE_TOLERANCE = 0.01


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
