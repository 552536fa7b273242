"""How far a judge agrees with the verifier on the episodes of a group that both have scored."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from mcp_rl.trajectory import TrajectoryGroup

Scored = tuple[float, bool]
"""The judge's score of an episode, 0 to 1, and whether the verifier passed it."""


def scored_by_both(group: TrajectoryGroup) -> list[Scored]:
    """The judge's score is the metric "ruler"."""
    return [
        (t.metrics["ruler"], t.success)
        for t in group
        if t.stop_reason.trainable and t.success is not None and "ruler" in t.metrics
    ]


def tells(found: Sequence[Scored]) -> bool:
    """Whether the verifier passed one of them and failed another."""
    return len({passed for _, passed in found}) == 2


def preferences(found: Sequence[Scored]) -> list[float]:
    """1, 0.5 or 0 for each pair of a passed and a failed episode: whether the judge prefers the passed one."""
    passed = [score for score, success in found if success]
    failed = [score for score, success in found if not success]
    return [0.5 if good == bad else float(good > bad) for good in passed for bad in failed]


def rank_correlation(found: Sequence[Scored]) -> float:
    """Kendall's tau-b (1945) of scores and successes that tell, -1 to 1; 0 where the judge gave all the same score,
    since that ranks nothing."""
    pairs = preferences(found)
    alike = sum(math.comb(count, 2) for count in Counter(score for score, _ in found).values())
    apart = math.comb(len(found), 2) - alike
    return sum(2 * pair - 1 for pair in pairs) / math.sqrt(apart * len(pairs)) if apart else 0.0


def agreement_metrics(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """`judge_pairwise_agreement` (0 to 1) and `judge_rank_correlation` (-1 to 1), means over the groups in which the
    verifier passed one episode and failed another; nothing where there is none that a judge has scored too."""
    told = [found for group in groups if tells(found := scored_by_both(group))]
    if not told:
        return {}
    return {
        "judge_pairwise_agreement": fmean(fmean(preferences(found)) for found in told),
        "judge_rank_correlation": fmean(map(rank_correlation, told)),
    }
