"""Choose among several ways to compute the same values, by measurement.

A way that fails, or whose values differ from the reference's, is never taken. This module does not know what is
computed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trial:
    """The time and the values of one way."""

    seconds: float = math.inf
    values: Values = field(default_factory=lambda: np.zeros(0, np.float32))
    failure: str = ""
    """The reason if there are no values."""


@dataclass(frozen=True)
class Choice:
    """The way that is taken."""

    name: str
    reason: str
    """A sentence."""
    seconds: Mapping[str, float]
    """Time of each way that did not fail."""


def attempt(
    compute: Callable[[], Values],
    *,
    finish: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Compute twice and time the second run: the first compiles and fills caches. `finish` waits for the device."""
    try:
        compute()
        finish()
        began = clock()
        values = compute()
        finish()
    except RuntimeError as error:  # memory that runs out, and what torch has not implemented, are such errors
        return Trial(failure=f"{type(error).__name__}: {error}".splitlines()[0][:200])
    return Trial(clock() - began, values)


def choose(trials: Mapping[str, Trial], *, reference: str, tolerance: float) -> Choice:
    """Return the fastest way whose values are within `tolerance` of the reference's on average; of equals the first.

    Raises RuntimeError if every way failed, or if the reference's values are not finite.
    """
    seconds = {name: trial.seconds for name, trial in trials.items() if not trial.failure}
    if not seconds:
        failures = "; ".join(f"{name}: {trial.failure}" for name, trial in trials.items())
        raise RuntimeError(f"every way to compute the batch fails ({failures})")
    reasons = [f"{name} fails ({trial.failure})" for name, trial in trials.items() if trial.failure]
    right = list(seconds)
    if reference in seconds:
        gaps = {name: _gap(trials[name].values, trials[reference].values) for name in seconds}
        right = [name for name in seconds if gaps[name] <= tolerance]
        reasons += [f"{name} is off by {gaps[name]:.2g} on average" for name in seconds if name not in right]
    if not right:  # not even the reference agrees with itself: its values are not finite
        raise RuntimeError(f"no way to compute the batch gives finite values ({', '.join(reasons)})")
    best = min(right, key=lambda name: seconds[name])
    reasons += [f"{name} takes {seconds[name]:.3f} s" for name in right]
    return Choice(best, f"{best} is taken: {', '.join(reasons)}.", seconds)


def _gap(values: Values, expected: Values) -> float:
    if values.shape != expected.shape:
        return math.inf
    gap = float(np.abs(values - expected).mean())
    return gap if math.isfinite(gap) else math.inf
