"""Evaluate a policy on scenarios that it does not train on: greedy once, and sampled k times.

Rollouts that ended by the world's fault are left out of every mean and counted separately.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict

from mcp_rl.evaluation.measure import Measure, measure, shown, successes
from mcp_rl.evaluation.statistics import success_interval
from mcp_rl.rollouts.gather import AfterEach, GroupPlan, gather_groups
from mcp_rl.rollouts.rollout import derive_seed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

CLAIMED_DIFFICULTY = "claimed-difficulty-"
"""Prefix of the tag that holds a claimed, unmeasured difficulty (`scenarios/files.py`)."""


class Plays(Protocol):
    """Plays scenarios, as a `Player` does."""

    @property
    def temperature(self) -> float:
        """Temperature of the sampled rollouts."""
        ...

    def play(self, scenario: McpScenario, seed: int, temperature: float | None = None) -> Awaitable[Trajectory]: ...


class EvaluationResult(BaseModel):
    """The result of evaluating a policy."""

    model_config = ConfigDict(extra="forbid")

    step: int
    """Training step of the policy; 0 is the base model."""
    scenarios: int
    greedy: Measure | None
    sampled: Measure | None
    by_tool: dict[str, dict[str, float]]
    """For each tool: the number of `scenarios` whose reference solution uses it, the `success` on them, and the ends
    of its 95 % interval, `low` and `high`. Over the greedy rollouts if there are any."""
    sampled_by_tool: dict[str, dict[str, float]] = {}
    """The same over the sampled rollouts."""
    by_steps: dict[str, dict[str, float]] = {}
    """The same by the number of calls in the reference solution, over the sampled rollouts if there are any."""
    by_level: dict[str, dict[str, float]] = {}
    """The same by the level of the task, where there are several."""
    by_difficulty: dict[str, dict[str, float]] = {}
    """The same by the scenario's recorded difficulty, in fifths such as "0.2-0.4", or "claimed 3" if it was never
    measured."""
    outcomes: dict[str, list[float]]
    """For each scenario id the successes of its rollouts, 0 or 1, the greedy one first."""

    @property
    def headline(self) -> Measure:
        """The measure that tables show first: the greedy one if there is one."""
        measure = self.greedy or self.sampled
        assert measure is not None
        return measure

    def summary(self) -> dict[str, Any]:
        """Return `success`, `ci95` and `reward` of the headline."""
        return self.headline.model_dump(mode="json", include={"success", "ci95", "reward"})

    def sentence(self, played_on: str = "scenarios") -> str:
        """Return `greedy success 0.812 [0.730, 0.874], sampled success … on 120 scenarios.`"""
        parts = []
        for kind, found in (("greedy", self.greedy), ("sampled", self.sampled)):
            if found is None:
                continue
            if found.success is None or found.ci95 is None:
                parts.append(f"{kind} reward {found.reward or 0.0:.3f}")
            else:
                parts.append(f"{kind} success {shown(found.success, found.ci95)}")
        return f"{', '.join(parts)} on {self.scenarios} {played_on}."


@dataclass(frozen=True)
class EvaluationPlan:
    """The episodes that an evaluation plays of each scenario."""

    greedy: bool = True
    """True to play each scenario greedily once, besides the sampled episodes."""
    samples: int = 4
    """Sampled episodes of each scenario."""
    seed: int = 0
    """The same seed draws the same random numbers for every policy, so that two evaluations are paired."""
    max_exceptions: int | float = 0.1
    """Episodes that may fail for good: an int is a count, a float a share."""

    @property
    def episodes(self) -> int:
        """Episodes of each scenario."""
        return self.greedy + self.samples


async def evaluate(
    player: Plays,
    scenarios: Sequence[McpScenario],
    plan: EvaluationPlan,
    *,
    step: int = 0,
    score_group: AfterEach | None = None,
    on_rollout: Callable[[Trajectory], None] | None = None,
) -> tuple[EvaluationResult, list[TrajectoryGroup]]:
    """Play every scenario as planned, all episodes at once.

    The player scores each rollout, `score_group` (a judge) each scenario's. Returns the result and one group for each
    scenario, its greedy rollout first. Raises ServerFault if more episodes fail than the plan allows.
    """
    temperatures = [0.0] * plan.greedy + [player.temperature] * plan.samples
    groups = await gather_groups(
        [_group_plan(player, scenario, temperatures, plan.seed) for scenario in scenarios],
        max_exceptions=plan.max_exceptions,
        after_each=score_group,
        on_rollout=on_rollout,
    )
    return summarize(groups, step=step, greedy=plan.greedy), groups


def _group_plan(player: Plays, scenario: McpScenario, temperatures: Sequence[float], seed: int) -> GroupPlan:
    def play(index: int, attempt: int) -> Awaitable[Trajectory]:
        return player.play(scenario, derive_seed("evaluate", seed, scenario.id, index, attempt), temperatures[index])

    return GroupPlan(scenario, [functools.partial(play, index) for index in range(len(temperatures))])


def summarize(groups: Sequence[TrajectoryGroup], *, step: int, greedy: bool) -> EvaluationResult:
    """Summarize groups; with `greedy`, the first member of each group is its greedy rollout."""
    first = [group.trajectories[:1] if greedy else [] for group in groups]
    rest = [group.trajectories[1 if greedy else 0 :] for group in groups]
    widest = rest if any(rest) else first
    return EvaluationResult(
        step=step,
        scenarios=len(groups),
        greedy=measure(first) if any(first) else None,
        sampled=measure(rest) if any(rest) else None,
        by_tool=_by(groups, first if greedy else rest, _tools),
        sampled_by_tool=_by(groups, rest, _tools),
        by_steps=_by(groups, widest, _steps),
        by_level=_by(groups, widest, _levels) if len({group.scenario.level for group in groups}) > 1 else {},
        by_difficulty=_by(groups, widest, _difficulty),
        outcomes={group.scenario.id: successes(group) for group in groups},
    )


def _by(
    groups: Sequence[TrajectoryGroup],
    clusters: Sequence[Sequence[Trajectory]],
    kinds: Callable[[McpScenario], Iterable[str]],
) -> dict[str, dict[str, float]]:
    """Return the success on each kind of scenario; a scenario may be of several kinds, or of none."""
    found: dict[str, list[list[float]]] = {}
    for group, cluster in zip(groups, clusters, strict=True):
        if outcome := successes(cluster):
            for kind in kinds(group.scenario):
                found.setdefault(kind, []).append(outcome)
    return {kind: _share(outcomes) for kind, outcomes in sorted(found.items())}


def _share(outcomes: Sequence[Sequence[float]]) -> dict[str, float]:
    low, high = success_interval(outcomes)
    return {"scenarios": len(outcomes), "success": fmean(map(fmean, outcomes)), "low": low, "high": high}


def _tools(scenario: McpScenario) -> set[str]:
    return {call.tool for call in scenario.reference}


def _steps(scenario: McpScenario) -> list[str]:
    return [str(len(scenario.reference))] if scenario.reference else []


def _levels(scenario: McpScenario) -> list[str]:
    return [scenario.level]


def _difficulty(scenario: McpScenario) -> list[str]:
    """Return the fifth that holds the scenario's measured failure rate; else the author's claim, 1 to 5."""
    if scenario.difficulty is None:
        marks = [tag.removeprefix(CLAIMED_DIFFICULTY) for tag in scenario.tags if tag.startswith(CLAIMED_DIFFICULTY)]
        return [f"claimed {mark}" for mark in marks]
    fifth = min(4, int(scenario.difficulty * 5 + 1e-9))
    return [f"{fifth / 5:.1f}-{(fifth + 1) / 5:.1f}"]
