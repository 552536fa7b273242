"""The end of a run before its last step: as soon as the training scenarios are nearly all solved.

Success is estimated from the rollouts of training alone, so that the held-out scenarios stay untouched. A step plays
the scenarios that a curriculum chose, few of which are solved ones, so each counts for as many as it stands for
(`Curriculum.weight`): the Hájek estimator of a mean from a sample with unequal probabilities.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcp_rl.config import RunConfig
    from mcp_rl.trajectory import TrajectoryGroup

WINDOW = 10
"""Steps over which success is estimated: 40 to 240 scenarios of the built-in model, 80 of a chat model."""
_SUCCESS, _WEIGHT = "pool_success", "pool_weight"


def pool_metrics(groups: Iterable[TrajectoryGroup], weight: Callable[[str], float]) -> dict[str, float]:
    """Return `pool_success`, the success estimated for all training scenarios, and `pool_weight`, the number of those
    that the step's stand for; empty if no rollout was scored. `weight` is called with the id of each scenario."""
    passed = total = 0.0
    for group in groups:
        outcomes = [t.success for t in group if t.trainable and t.success is not None]
        if outcomes and not group.demonstrates:
            total += weight(group.scenario.id)
            passed += weight(group.scenario.id) * sum(outcomes) / len(outcomes)
    return {_SUCCESS: passed / total, _WEIGHT: total} if total else {}


class Ending:
    """Tells from the settings of a run and the lines of its history so far whether it is over."""

    def __init__(self, config: RunConfig, history: Iterable[Mapping[str, Any]]) -> None:
        self._steps, self._target = config.steps, config.target_success
        self._newest: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.step = 0
        """The newest step of the history."""
        for line in history:
            self.add(line)

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a line of history.jsonl."""
        self.step = max(self.step, line["step"])
        if _WEIGHT in line:
            self._newest.append((line[_SUCCESS], line[_WEIGHT]))

    @property
    def reached(self) -> float | None:
        """Success over the newest window, if that ends the run before its last step; else None."""
        if self._target is None or len(self._newest) < WINDOW or self.step >= self._steps:
            return None
        success = sum(mean * weight for mean, weight in self._newest) / sum(weight for _, weight in self._newest)
        return success if success >= self._target else None

    def over(self, step: int) -> bool:
        """Return whether nothing is left to do once `step` steps are whole."""
        return step >= self._steps or (step == self.step and self.reached is not None)

    @property
    def sentence(self) -> str:
        """Why the run is over, for a person."""
        if (success := self.reached) is None:
            return f"All {self.step} steps of this run are done."
        return (
            f"Training ended after step {self.step} of {self._steps}: {100 * success:.1f} % of the training "
            f"scenarios are solved, estimated from the last {WINDOW} steps (target_success={self._target:g}). "
            "target_success=none takes all steps."
        )
