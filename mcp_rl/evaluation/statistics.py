"""Intervals and p-values of success rates and their differences, with several episodes of each scenario.

Scenarios are the independent draws; episodes of one scenario resemble each other, so counting them as independent would
promise too much. A percentile bootstrap over scenarios answers that in principle and fails where it
matters here: with 50 scenarios and rates near 0 or 1 its 95 % intervals hold the truth in 80 to 93 % of the cases, and
where every episode succeeded it has no width at all. The intervals below are score intervals at the effective number of
episodes; `python benchmarks/intervals.py` measures both.
SciPy has the two functions that need it, a permutation test and a quantile; it would be a tenth of the installation,
and the tests compare with it.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, variance

Outcomes = Sequence[Sequence[float]]
"""For each scenario the values (0 to 1) of its episodes."""
Interval = tuple[float, float]

_Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal distribution."""


def success_interval(outcomes: Outcomes) -> Interval:
    """Return the 95 % interval of the mean success over scenarios.

    `outcomes` holds for each scenario the successes (0 or 1) of its episodes; a scenario without any is left out. With
    one episode each this is the interval of Wilson (1927). With more, the sample size is the effective one (Kish 1965):
    p (1 - p) over the variance of the mean of the scenarios' rates, never under the number of scenarios and never over
    the number of episodes; since that variance is estimated, the quantile is then Student's. Raises ValueError if
    there is no episode at all.
    """
    rates = [fmean(episodes) for episodes in outcomes if episodes]
    if not rates:
        raise ValueError("an interval needs at least one episode")
    return _score_interval(rates, sum(map(len, outcomes)))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of one value (0 to 1) for each scenario, such as its pass@k."""
    return _score_interval(values, None)


def wilson_interval(share: float, size: float, quantile: float = _Z95) -> Interval:
    """Return the 95 % score interval of a share (0 to 1) seen in `size` independent trials (Wilson 1927)."""
    ratio = quantile**2 / size
    centre = (share + ratio / 2) / (1 + ratio)
    half = quantile / (1 + ratio) * math.sqrt(share * (1 - share) / size + ratio / (4 * size))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def difference_interval(before: Outcomes, after: Outcomes) -> Interval:
    """Return the 95 % interval of the mean difference `after` minus `before`, played on the same scenarios.

    The limits of each mean are combined at the correlation of the scenarios' rates (Newcombe 1998, method 10; Zou and
    Donner 2008, equation 12). The correlation is taken with one more scenario, half of it won and half of it lost:
    where the two models never differed, nothing says that they never will. With several episodes of each scenario that
    scenario weighs less, as much as an effective episode does. A scenario that one of the two lacks is left out; raises
    ValueError if none is left.
    """
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one and other]
    if not pairs:
        raise ValueError("a difference needs at least one scenario that both have played")
    first, second = [fmean(one) for one, _ in pairs], [fmean(other) for _, other in pairs]
    low_1, high_1 = success_interval([one for one, _ in pairs])
    low_2, high_2 = success_interval([other for _, other in pairs])
    mean_1, mean_2 = fmean(first), fmean(second)
    sizes = [_effective_size(first, _episodes(pairs, 0)), _effective_size(second, _episodes(pairs, 1))]
    correlation = _correlation(first, second, len(pairs) / math.sqrt(sizes[0] * sizes[1]))
    down = _combined(mean_2 - low_2, high_1 - mean_1, correlation)
    up = _combined(high_2 - mean_2, mean_1 - low_1, correlation)
    return max(-1.0, mean_2 - mean_1 - down), min(1.0, mean_2 - mean_1 + up)


def paired_p_value(differences: Sequence[float], *, resamples: int = 9999, seed: int = 0) -> float:
    """Return the two-sided p-value of the mean difference over scenarios, if each sign were equally likely.

    The sign-flip permutation test: exact if there are at most `resamples` ways to choose the signs, else with that many
    random choices and the observed one (Phipson and Smyth 2010). With one episode each it is McNemar's exact test.
    Without scenarios, or if none differs, the p-value is 1.
    """
    import numpy as np

    moved = np.array([difference for difference in differences if abs(difference) > 1e-12])
    if len(moved) < 2:
        return 1.0
    reached = abs(moved.sum()) * (1 - 1e-12)  # sums in another order differ in their last digits
    batch, exact = max(1, 2_000_000 // len(moved)), 2 ** len(moved) <= resamples
    total, extreme = (2 ** len(moved), 0) if exact else (resamples, 0)
    random = np.random.default_rng(seed)
    for start in range(0, total, batch):
        numbers = np.arange(start, min(start + batch, total))
        shape = (len(numbers), len(moved))
        flipped = numbers[:, None] >> np.arange(len(moved)) & 1 if exact else random.integers(0, 2, shape, np.int8)
        extreme += int(np.count_nonzero(np.abs((1 - 2 * flipped) @ moved) >= reached))
    return extreme / total if exact else (extreme + 1) / (total + 1)


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for the number of comparisons (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that k of n rollouts, c of them successful, include a success (Chen et al. 2021, equation 1)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """pass^k: probability that k of n rollouts, c of them successful, all succeed (Yao et al. 2024, tau-bench)."""
    return math.comb(c, k) / math.comb(n, k)


def _score_interval(rates: Sequence[float], episodes: int | None) -> Interval:
    size = _effective_size(rates, episodes)
    quantile = _Z95 if size <= len(rates) else _student(len(rates) - 1)
    return wilson_interval(fmean(rates), size, quantile)


def _effective_size(rates: Sequence[float], episodes: int | None) -> float:
    """Number of independent episodes that would scatter as much as the rates; at most `episodes`, if known."""
    scatter = variance(rates) / len(rates) if len(rates) > 1 else 0.0
    share = fmean(rates)
    if scatter < 1e-15:  # no scatter at all is no evidence of independence
        return float(len(rates))
    size = max(share * (1 - share) / scatter, len(rates))
    return size if episodes is None else min(size, episodes)


@lru_cache
def _student(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's distribution, by bisection."""
    low, high = _Z95, 13.0  # the quantiles of infinitely many degrees and, rounded up, of one
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _student_share(middle, degrees) < 0.95 else (low, middle)
    return middle


def _student_share(t: float, degrees: int) -> float:
    """Return the probability of a value between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _episodes(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], side: int) -> int:
    return sum(len(pair[side]) for pair in pairs)


def _correlation(first: Sequence[float], second: Sequence[float], weight: float) -> float:
    """Correlate two rows of rates, with one more scenario of this weight that is half won and half lost."""
    a, b = fmean(first), fmean(second)
    within_1 = sum((x - a) ** 2 for x in first) + weight / 2 * (a**2 + (1 - a) ** 2)
    within_2 = sum((y - b) ** 2 for y in second) + weight / 2 * (b**2 + (1 - b) ** 2)
    between = sum((x - a) * (y - b) for x, y in zip(first, second, strict=True))
    between -= weight / 2 * (a * (1 - b) + b * (1 - a))
    return max(-1.0, min(1.0, between / math.sqrt(within_1 * within_2)))


def _combined(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))
