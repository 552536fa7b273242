"""Compare every two models, scenario by scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING

from mcp_rl.evaluation.measure import successes
from mcp_rl.evaluation.result import Comparison
from mcp_rl.evaluation.statistics import adjusted_p_values, difference_interval, paired_p_value

if TYPE_CHECKING:
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

Played = Mapping[str, Mapping[str, list[float]]]
"""For each model and scenario id the successes of its episodes."""


def compare(groups: Mapping[str, Sequence[TrajectoryGroup]], greedy: Mapping[str, bool]) -> list[Comparison]:
    """Compare all pairs of models, the later with the earlier one, greedy and sampled episodes separately.

    `groups` holds the episodes of each model; `greedy` is True for a model whose groups begin with a greedy episode.
    """
    first = {name: _outcomes(its, 0, 1) for name, its in groups.items() if greedy[name]}
    rest = {name: _outcomes(its, int(greedy[name]), None) for name, its in groups.items()}
    found: list[Comparison] = []
    for kind, played in (("greedy", first), ("sampled", rest)):
        pairs = [_compare_pair(kind, played, one, other) for one, other in combinations(played, 2)]
        found += _with_adjusted_p([pair for pair in pairs if pair is not None])
    return found


def _outcomes(groups: Sequence[TrajectoryGroup], start: int, end: int | None) -> dict[str, list[float]]:
    def chosen(group: TrajectoryGroup) -> list[Trajectory]:
        return group.trajectories[start:end]

    return {group.scenario.id: found for group in groups if (found := successes(chosen(group)))}


def _compare_pair(kind: str, played: Played, against: str, model: str) -> Comparison | None:
    """Compare two models; None if they have no scenario in common."""
    shared = [id for id in played[against] if id in played[model]]
    if not shared:
        return None
    before, after = [played[against][id] for id in shared], [played[model][id] for id in shared]
    differences = [fmean(b) - fmean(a) for a, b in zip(before, after, strict=True)]
    return Comparison.model_validate(
        {
            "model": model,
            "against": against,
            "kind": kind,
            "scenarios": len(shared),
            "difference": fmean(differences),
            "ci95": difference_interval(before, after),
            "p_value": (p_value := paired_p_value(differences)),
            "p_adjusted": p_value,
            "wins": sum(difference > 1e-12 for difference in differences),
            "losses": sum(difference < -1e-12 for difference in differences),
        }
    )


def _with_adjusted_p(comparisons: list[Comparison]) -> list[Comparison]:
    adjusted = adjusted_p_values([comparison.p_value for comparison in comparisons])
    return [c.model_copy(update={"p_adjusted": p}) for c, p in zip(comparisons, adjusted, strict=True)]
