"""Advantages: rewards relative to the mean of their group.

A = r - mean(r) (Liu et al., Dr. GRPO, 2025, section 3.2); divided by the standard deviation it is GRPO's (Shao et al.,
DeepSeekMath, 2024: outcome supervision); with leave-one-out the mean is that of the other rollouts (Ahmadian et al.,
RLOO, 2024). The standard deviation is the population's: squares are divided by n, not by n - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_VARIANCE = 1e-9


def advantages(
    rewards: Sequence[float], *, scale_by_std: bool = False, leave_one_out: bool = False
) -> npt.NDArray[np.float64]:
    """Return one advantage per reward of a group; all zeros if the rewards do not differ."""
    values = np.asarray(rewards, np.float64)
    if len(values) < 2 or np.ptp(values) <= NO_VARIANCE:
        return np.zeros_like(values)
    result: npt.NDArray[np.float64] = values - values.mean()
    if leave_one_out:
        result *= len(values) / (len(values) - 1)
    if scale_by_std:
        result /= values.std() + 1e-6
    return result
