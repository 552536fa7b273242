"""How sure a success rate is, when several episodes were played of each scenario.

Episodes of one scenario resemble each other, so counting them as independent would promise too much. The interval is
Wilson's, taken at the number of independent episodes that would scatter as much as the scenarios' own rates do.
"""

import math
from collections.abc import Sequence
from statistics import fmean, variance

_Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal distribution."""


def success_interval(outcomes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % interval of the mean success over scenarios.

    `outcomes` holds for each scenario the successes (0 or 1) of its episodes; a scenario without any is left out. With
    one episode each this is the interval of Wilson (1927). With more, the sample size is the effective one (Kish 1965):
    p (1 - p) over the variance of the mean of the scenarios' rates, never under the number of scenarios and never over
    the number of episodes. Raises ValueError where there is no episode at all.
    """
    rates = [fmean(episodes) for episodes in outcomes if episodes]
    if not rates:
        raise ValueError("an interval needs at least one episode")
    return wilson_interval(fmean(rates), _effective_size(rates, sum(map(len, outcomes))))


def wilson_interval(share: float, size: float) -> tuple[float, float]:
    """95 % score interval of a share (0 to 1) seen in `size` independent trials (Wilson 1927)."""
    ratio = _Z95**2 / size
    centre = (share + ratio / 2) / (1 + ratio)
    half = _Z95 / (1 + ratio) * math.sqrt(share * (1 - share) / size + ratio / (4 * size))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def _effective_size(rates: Sequence[float], episodes: int) -> float:
    scatter = variance(rates) / len(rates) if len(rates) > 1 else 0.0
    share = fmean(rates)
    if not scatter:
        return float(len(rates))
    return min(max(share * (1 - share) / scatter, len(rates)), episodes)
