"""A judge against the verifier, on groups that both have scored."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from mcp_rl.evaluation.result import Bin, JudgeAgreement
from mcp_rl.tracking.measure import mean
from mcp_rl.tracking.statistics import mean_interval
from mcp_rl.trajectory import TrajectoryGroup

_FIFTHS = 5
Scored = tuple[float, bool]
"""The judge's score of an episode, and whether the verifier passed it."""


def judge_agreement(groups: Iterable[TrajectoryGroup]) -> JudgeAgreement | None:
    """None where no episode was scored by both. The judge's score is the metric "ruler"."""
    groups = list(groups)
    named = [(group.scenario.id, found) for group in groups if (found := _scored(group))]
    scored = [found for _, found in named]
    if not scored:
        return None
    shares: dict[str, list[float]] = {}
    for name, found in named:
        if _tells(found):
            shares.setdefault(name, []).append(fmean(_pairs(found)))
    of_scenarios = [fmean(share) for share in shares.values()]
    told = [found for found in scored if _tells(found)]
    pairs = [_pairs(found) for found in told]
    every = [score for found in scored for score in found]
    correlations = [tau for found in told if (tau := _tau(found)) is not None]
    return JudgeAgreement(
        judge=next((str(g.metadata["judge"]["model"]) for g in groups if "model" in g.metadata.get("judge", {})), None),
        groups=len(told),
        pairs=sum(map(len, pairs)),
        agreement=mean(of_scenarios),
        ci95=mean_interval(of_scenarios) if of_scenarios else None,
        ties=sum(value == 0.5 for pair in pairs for value in pair),
        rank_correlation=fmean(correlations) if correlations else None,
        mean_passed=mean(score for score, passed in every if passed),
        mean_failed=mean(score for score, passed in every if not passed),
        bins=[_bin(every, fifth) for fifth in range(_FIFTHS)],
    )


def _scored(group: TrajectoryGroup) -> list[Scored]:
    return [
        (t.metrics["ruler"], t.success)
        for t in group
        if t.stop_reason.trainable and t.success is not None and "ruler" in t.metrics
    ]


def _tells(found: Sequence[Scored]) -> bool:
    """Whether the verifier passed one of them and failed another."""
    return len({passed for _, passed in found}) == 2


def _pairs(found: Sequence[Scored]) -> list[float]:
    """1, 0.5 or 0 for each pair of a passed and a failed episode: whether the judge prefers the passed one."""
    passed = [score for score, success in found if success]
    failed = [score for score, success in found if not success]
    return [0.5 if good == bad else float(good > bad) for good in passed for bad in failed]


def _tau(found: Sequence[Scored]) -> float | None:
    """Kendall's tau-b; 0 where the judge gave all the same score, since that ranks nothing."""
    from scipy.stats import kendalltau  # type: ignore[import-untyped]

    scores = [score for score, _ in found]
    if len(set(scores)) == 1:
        return 0.0
    return float(kendalltau(scores, [float(passed) for _, passed in found]).statistic)


def _bin(every: Sequence[Scored], fifth: int) -> Bin:
    inside = [pair for pair in every if min(_FIFTHS - 1, int(pair[0] * _FIFTHS)) == fifth]
    return Bin(
        low=fifth / _FIFTHS,
        high=(fifth + 1) / _FIFTHS,
        episodes=len(inside),
        judged=mean(score for score, _ in inside),
        verified=mean(float(passed) for _, passed in inside),
    )
