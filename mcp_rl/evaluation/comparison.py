"""Every two models, compared scenario by scenario."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

from mcp_rl.evaluation.result import Comparison
from mcp_rl.tracking.measure import successes
from mcp_rl.tracking.statistics import adjusted_p_values, difference_interval, paired_p_value
from mcp_rl.trajectory import Trajectory, TrajectoryGroup

Played = Mapping[str, Mapping[str, list[float]]]
"""Model to scenario id to the successes of its episodes."""


def compare(groups: Mapping[str, Sequence[TrajectoryGroup]], greedy: Mapping[str, bool]) -> list[Comparison]:
    """All pairs of models, the later one against the earlier one, greedy and sampled episodes apart.

    `groups` holds the episodes of each model, `greedy` whether the first of each group is its greedy one.
    """
    first = {name: _played(its, 0, 1) for name, its in groups.items() if greedy[name]}
    rest = {name: _played(its, int(greedy[name]), None) for name, its in groups.items()}
    found: list[Comparison] = []
    for kind, played in (("greedy", first), ("sampled", rest)):
        pairs = [_compared(kind, played, one, other) for one, other in combinations(played, 2)]
        found += _adjusted([pair for pair in pairs if pair is not None])
    return found


def _played(groups: Sequence[TrajectoryGroup], start: int, end: int | None) -> dict[str, list[float]]:
    def chosen(group: TrajectoryGroup) -> list[Trajectory]:
        return group.trajectories[start:end]

    return {group.scenario.id: found for group in groups if (found := successes(chosen(group)))}


def _compared(kind: str, played: Played, against: str, model: str) -> Comparison | None:
    """None where they have no scenario in common."""
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


def _adjusted(comparisons: list[Comparison]) -> list[Comparison]:
    adjusted = adjusted_p_values([comparison.p_value for comparison in comparisons])
    return [c.model_copy(update={"p_adjusted": p}) for c, p in zip(comparisons, adjusted, strict=True)]
