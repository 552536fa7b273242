"""Compare a judge with the verifier on groups that both have scored."""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING

from mcp_rl.evaluation.measure import mean
from mcp_rl.evaluation.result import Bin, JudgeAgreement
from mcp_rl.evaluation.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.trajectory import TrajectoryGroup

_FIFTHS = 5


Scored = tuple[float, bool]
"""The judge's score of an episode, 0 to 1, and True if the verifier passed it."""


def scored_by_both(group: TrajectoryGroup) -> list[Scored]:
    """Return the scores of a group's episodes that both have scored; the judge's score is the metric "ruler"."""
    return [
        (t.metrics["ruler"], t.success)
        for t in group
        if t.stop_reason.trainable and t.success is not None and "ruler" in t.metrics
    ]


def differ(found: Sequence[Scored]) -> bool:
    """Return whether the verifier passed one episode and failed another."""
    return len({passed for _, passed in found}) == 2


def preferences(found: Sequence[Scored]) -> list[float]:
    """For each pair of a passed and a failed episode: 1 if the judge prefers the passed one, 0.5 for a tie, or 0."""
    passed = [score for score, success in found if success]
    failed = [score for score, success in found if not success]
    return [0.5 if good == bad else float(good > bad) for good in passed for bad in failed]


def rank_correlation(found: Sequence[Scored]) -> float:
    """Return Kendall's tau-b (1945) of scores and differing successes, -1 to 1; 0 if all scores are equal, since that
    ranks nothing."""
    pairs = preferences(found)
    alike = sum(math.comb(count, 2) for count in Counter(score for score, _ in found).values())
    apart = math.comb(len(found), 2) - alike
    return sum(2 * pair - 1 for pair in pairs) / math.sqrt(apart * len(pairs)) if apart else 0.0


def agreement_metrics(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """Return `judge_pairwise_agreement` (0 to 1) and `judge_rank_correlation` (-1 to 1), means over the groups in which
    the verifier passed one episode and failed another; nothing if a judge scored none of them."""
    told = [found for group in groups if differ(found := scored_by_both(group))]
    if not told:
        return {}
    return {
        "judge_pairwise_agreement": fmean(fmean(preferences(found)) for found in told),
        "judge_rank_correlation": fmean(map(rank_correlation, told)),
    }


def judge_agreement(groups: Iterable[TrajectoryGroup]) -> JudgeAgreement | None:
    """Measure a judge's agreement with the verifier; None if no episode was scored by both."""
    groups = list(groups)
    named = [(group.scenario.id, found) for group in groups if (found := scored_by_both(group))]
    scored = [found for _, found in named]
    if not scored:
        return None
    shares: dict[str, list[float]] = {}
    for name, found in named:
        if differ(found):
            shares.setdefault(name, []).append(fmean(preferences(found)))
    of_scenarios = [fmean(share) for share in shares.values()]
    told = [found for found in scored if differ(found)]
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
