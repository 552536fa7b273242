"""A judge against the verifier, on groups that both have scored."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from mcp_rl.evaluation.result import Bin, JudgeAgreement
from mcp_rl.rewards.agreement import Scored, preferences, rank_correlation, scored_by_both, tells
from mcp_rl.tracking.measure import mean
from mcp_rl.tracking.statistics import mean_interval
from mcp_rl.trajectory import TrajectoryGroup

_FIFTHS = 5


def judge_agreement(groups: Iterable[TrajectoryGroup]) -> JudgeAgreement | None:
    """None where no episode was scored by both. The judge's score is the metric "ruler"."""
    groups = list(groups)
    named = [(group.scenario.id, found) for group in groups if (found := scored_by_both(group))]
    scored = [found for _, found in named]
    if not scored:
        return None
    shares: dict[str, list[float]] = {}
    for name, found in named:
        if tells(found):
            shares.setdefault(name, []).append(fmean(preferences(found)))
    of_scenarios = [fmean(share) for share in shares.values()]
    told = [found for found in scored if tells(found)]
    pairs = [preferences(found) for found in told]
    every = [score for found in scored for score in found]
    return JudgeAgreement(
        judge=next((str(g.metadata["judge"]["model"]) for g in groups if "model" in g.metadata.get("judge", {})), None),
        groups=len(told),
        pairs=sum(map(len, pairs)),
        agreement=mean(of_scenarios),
        ci95=mean_interval(of_scenarios) if of_scenarios else None,
        ties=sum(value == 0.5 for pair in pairs for value in pair),
        rank_correlation=mean(map(rank_correlation, told)),
        mean_passed=mean(score for score, passed in every if passed),
        mean_failed=mean(score for score, passed in every if not passed),
        bins=[_bin(every, fifth) for fifth in range(_FIFTHS)],
    )


def _bin(every: Sequence[Scored], fifth: int) -> Bin:
    inside = [pair for pair in every if min(_FIFTHS - 1, int(pair[0] * _FIFTHS)) == fifth]
    return Bin(
        low=fifth / _FIFTHS,
        high=(fifth + 1) / _FIFTHS,
        episodes=len(inside),
        judged=mean(score for score, _ in inside),
        verified=mean(float(passed) for _, passed in inside),
    )
