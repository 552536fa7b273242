"""How well a policy does on scenarios that it does not train on: greedy once, and sampled k times.

Rollouts that ended by the world's fault are left out of every mean and counted apart.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from mcp_rl.gather import AfterEach, GroupPlan, gather_groups
from mcp_rl.player import Player
from mcp_rl.rollout import derive_seed
from mcp_rl.scenario import McpScenario
from mcp_rl.tracking.statistics import success_interval
from mcp_rl.trajectory import Trajectory, TrajectoryGroup


class Measure(BaseModel):
    """Means over one kind of rollout. None where nothing could be measured."""

    model_config = ConfigDict(extra="forbid")

    rollouts: int
    success: float | None
    """Share of successful rollouts, 0 to 1: the mean over scenarios of each one's share."""
    ci95: tuple[float, float] | None
    """95 % interval of `success`, from resampling scenarios with all their rollouts."""
    reward: float | None
    turns: float
    sampled_tokens: float
    faults: int
    stop_reasons: dict[str, int]
    pass_at: dict[int, float] = {}
    """k to the chance that at least one of k rollouts succeeds (Chen et al. 2021, unbiased estimator)."""


class EvaluationResult(BaseModel):
    """One evaluation of one policy."""

    model_config = ConfigDict(extra="forbid")

    step: int
    """Of the policy: 0 is the base model."""
    scenarios: int
    greedy: Measure | None
    sampled: Measure | None
    by_tool: dict[str, dict[str, float]]
    """Tool to the number of scenarios whose reference solution uses it, and the success on them."""
    outcomes: dict[str, list[float]]
    """Scenario id to the successes of its rollouts, 0 or 1, the greedy one first."""

    @property
    def headline(self) -> Measure:
        """What the tables show first: the greedy policy where it was measured."""
        measure = self.greedy or self.sampled
        assert measure is not None
        return measure

    def summary(self) -> dict[str, Any]:
        """`success`, `ci95` and `reward` of the headline."""
        return self.headline.model_dump(mode="json", include={"success", "ci95", "reward"})


async def evaluate(
    player: Player,
    scenarios: Sequence[McpScenario],
    *,
    score_group: AfterEach | None = None,
    step: int = 0,
    greedy: bool = True,
    samples: int = 4,
    seed: int = 0,
    max_exceptions: int | float = 0.1,
    on_rollout: Callable[[Trajectory], None] | None = None,
) -> tuple[EvaluationResult, list[TrajectoryGroup]]:
    """Play every scenario greedily once (where `greedy`) and `samples` times sampled, all at once.

    The player scores each rollout, `score_group` (a judge) each scenario's. The same seed draws the same random
    numbers for every policy, so that two evaluations are paired. Returns the result and the groups: for each scenario
    its greedy rollout first. Raises ServerFault where more than `max_exceptions` (an int: a count, a float: a share)
    failed.
    """
    temperatures = [0.0] * greedy + [player.temperature] * samples
    groups = await gather_groups(
        [_plan(player, scenario, temperatures, seed) for scenario in scenarios],
        max_exceptions=max_exceptions,
        after_each=score_group,
        on_rollout=on_rollout,
    )
    return summarize(groups, step=step, greedy=greedy), groups


def _plan(player: Player, scenario: McpScenario, temperatures: Sequence[float], seed: int) -> GroupPlan:
    def member(index: int, temperature: float) -> Callable[[int], Awaitable[Trajectory]]:
        def attempt(number: int) -> Awaitable[Trajectory]:
            return player.play(scenario, derive_seed("evaluate", seed, scenario.id, index, number), temperature)

        return attempt

    return GroupPlan(scenario, [member(index, temperature) for index, temperature in enumerate(temperatures)])


def summarize(groups: Sequence[TrajectoryGroup], *, step: int, greedy: bool) -> EvaluationResult:
    """The result of groups whose first member is the greedy rollout where `greedy`."""
    first = [group.trajectories[:1] if greedy else [] for group in groups]
    rest = [group.trajectories[1 if greedy else 0 :] for group in groups]
    return EvaluationResult(
        step=step,
        scenarios=len(groups),
        greedy=_measure(first) if any(first) else None,
        sampled=_measure(rest) if any(rest) else None,
        by_tool=_by_tool(groups, first if greedy else rest),
        outcomes={group.scenario.id: _successes(group) for group in groups},
    )


def _measure(clusters: Sequence[Sequence[Trajectory]]) -> Measure:
    """`clusters`: the rollouts of each scenario."""
    every = [trajectory for cluster in clusters for trajectory in cluster]
    counted = [trajectory for trajectory in every if trajectory.stop_reason.trainable]
    outcomes = [successes for cluster in clusters if (successes := _successes(cluster))]
    return Measure(
        rollouts=len(every),
        success=_mean(fmean(successes) for successes in outcomes),
        ci95=success_interval(outcomes) if outcomes else None,
        reward=_mean(t.reward for t in counted if t.reward is not None),
        turns=_mean(t.turns for t in counted) or 0.0,
        sampled_tokens=_mean(t.sampled_tokens for t in counted) or 0.0,
        faults=len(every) - len(counted),
        stop_reasons=dict(sorted(Counter(t.stop_reason.value for t in every).items())),
        pass_at=_pass_at(outcomes),
    )


def _successes(trajectories: Iterable[Trajectory]) -> list[float]:
    return [float(t.success) for t in trajectories if t.stop_reason.trainable and t.success is not None]


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def _pass_at(outcomes: Sequence[Sequence[float]]) -> dict[int, float]:
    """Mean over scenarios of 1 - C(n-c, k) / C(n, k) for k = 1, 2, 4, … up to the rollouts that every one has."""
    fewest = min(map(len, outcomes), default=0)
    counts = [(len(successes), round(sum(successes))) for successes in outcomes]
    ks = [2**power for power in range(fewest.bit_length())]
    return {k: fmean(pass_at_k(n, c, k) for n, c in counts) for k in ks}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k rollouts drawn from n, of which c succeeded, hold a success (Chen et al. 2021, equation 1)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _by_tool(
    groups: Sequence[TrajectoryGroup], clusters: Sequence[Sequence[Trajectory]]
) -> dict[str, dict[str, float]]:
    successes: dict[str, list[float]] = {}
    for group, cluster in zip(groups, clusters, strict=True):
        if outcome := _successes(cluster):
            for tool in {call.tool for call in group.scenario.reference}:
                successes.setdefault(tool, []).append(fmean(outcome))
    return {tool: {"scenarios": len(values), "success": fmean(values)} for tool, values in sorted(successes.items())}
