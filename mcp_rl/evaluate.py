"""How well a policy does on scenarios that it does not train on: greedy once, and sampled k times.

Rollouts that ended by the world's fault are left out of every mean and counted apart.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from mcp_rl.gather import AfterEach, GroupPlan, gather_groups
from mcp_rl.rollout import derive_seed
from mcp_rl.scenario import McpScenario
from mcp_rl.tracking.measure import Measure, measure, successes
from mcp_rl.tracking.statistics import pass_at_k, success_interval
from mcp_rl.trajectory import Trajectory, TrajectoryGroup

__all__ = ["EvaluationResult", "Measure", "Plays", "evaluate", "pass_at_k", "summarize"]


CLAIMED_DIFFICULTY = "claimed-difficulty-"
"""Begins the tag that keeps a difficulty which nobody measured (`scenarios/foreign.py`)."""


class Plays(Protocol):
    """What plays scenarios: a `Player`."""

    @property
    def temperature(self) -> float:
        """Of the sampled rollouts."""
        ...

    def play(self, scenario: McpScenario, seed: int, temperature: float | None = None) -> Awaitable[Trajectory]: ...


class EvaluationResult(BaseModel):
    """One evaluation of one policy."""

    model_config = ConfigDict(extra="forbid")

    step: int
    """Of the policy: 0 is the base model."""
    scenarios: int
    greedy: Measure | None
    sampled: Measure | None
    by_tool: dict[str, dict[str, float]]
    """Tool to the number of `scenarios` whose reference solution uses it, the `success` on them, and the ends of its
    95 % interval, `low` and `high`."""
    sampled_by_tool: dict[str, dict[str, float]] = {}
    """The same over the sampled rollouts, where `by_tool` is over the greedy ones."""
    by_steps: dict[str, dict[str, float]] = {}
    """The same by the number of calls in the reference solution, over the sampled rollouts where there are any."""
    by_difficulty: dict[str, dict[str, float]] = {}
    """The same by the scenario's recorded difficulty, in fifths, such as "0.2-0.4", or "claimed 3" where nobody
    measured it."""
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

    def sentence(self) -> str:
        """`greedy success 0.812 [0.730, 0.874], sampled success …`: what was measured, for a person."""
        parts = []
        for kind, found in (("greedy", self.greedy), ("sampled", self.sampled)):
            if found is None:
                continue
            if found.success is None or found.ci95 is None:
                parts.append(f"{kind} reward {found.reward or 0.0:.3f}")
            else:
                parts.append(f"{kind} success {found.success:.3f} [{found.ci95[0]:.3f}, {found.ci95[1]:.3f}]")
        return f"{', '.join(parts)} on {self.scenarios} scenarios."


async def evaluate(
    player: Plays,
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


def _plan(player: Plays, scenario: McpScenario, temperatures: Sequence[float], seed: int) -> GroupPlan:
    def member(index: int, temperature: float) -> Callable[[int], Awaitable[Trajectory]]:
        def attempt(number: int) -> Awaitable[Trajectory]:
            return player.play(scenario, derive_seed("evaluate", seed, scenario.id, index, number), temperature)

        return attempt

    return GroupPlan(scenario, [member(index, temperature) for index, temperature in enumerate(temperatures)])


def summarize(groups: Sequence[TrajectoryGroup], *, step: int, greedy: bool) -> EvaluationResult:
    """The result of groups whose first member is the greedy rollout where `greedy`."""
    first = [group.trajectories[:1] if greedy else [] for group in groups]
    rest = [group.trajectories[1 if greedy else 0 :] for group in groups]
    shown = rest if any(rest) else first
    return EvaluationResult(
        step=step,
        scenarios=len(groups),
        greedy=measure(first) if any(first) else None,
        sampled=measure(rest) if any(rest) else None,
        by_tool=_by(groups, first if greedy else rest, _tools),
        sampled_by_tool=_by(groups, rest, _tools),
        by_steps=_by(groups, shown, _steps),
        by_difficulty=_by(groups, shown, _difficulty),
        outcomes={group.scenario.id: successes(group) for group in groups},
    )


def _by(
    groups: Sequence[TrajectoryGroup],
    clusters: Sequence[Sequence[Trajectory]],
    kinds: Callable[[McpScenario], Iterable[str]],
) -> dict[str, dict[str, float]]:
    """Success on the scenarios of each kind; a scenario may be of several, or of none."""
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


def _difficulty(scenario: McpScenario) -> list[str]:
    """The fifth that the scenario's measured failure rate lies in; else what its author claims, 1 to 5."""
    if scenario.difficulty is None:
        marks = [tag.removeprefix(CLAIMED_DIFFICULTY) for tag in scenario.tags if tag.startswith(CLAIMED_DIFFICULTY)]
        return [f"claimed {mark}" for mark in marks]
    fifth = min(4, int(scenario.difficulty * 5 + 1e-9))
    return [f"{fifth / 5:.1f}-{(fifth + 1) / 5:.1f}"]
