"""Which scenarios a step trains on.

In the first epoch, where nothing is known, every scenario comes once, in a plain shuffle. In a later epoch every
scenario that was not always solved comes once, and of those that were one in four, since a group whose rollouts all
succeed has no gradient; which ones is drawn anew each time. The order is always a shuffle: steps of nothing but hard
scenarios were seen to undo what the easier ones had taught.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

from mcp_rl.rollout import derive_seed
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import TrajectoryGroup

SOLVED_SHARE = 0.25
"""Share of the always solved scenarios that an epoch looks at again."""


class Curriculum:
    """A deterministic frontier over the training scenarios. Its `state` is JSON and continues it exactly."""

    def __init__(self, scenarios: Sequence[McpScenario], seed: int, state: dict[str, Any] | None = None) -> None:
        self._scenarios = {scenario.id: scenario for scenario in scenarios}
        self._seed = seed
        self._epoch = 0
        self._waiting: list[str] = []
        self._pass_rates: dict[str, float] = {}
        if state:
            self._epoch, self._waiting, self._pass_rates = state["epoch"], state["waiting"], state["pass_rates"]

    @property
    def state(self) -> dict[str, Any]:
        """Epoch (from 1), ids that still wait in it, and the last measured pass rate of each scenario."""
        return {"epoch": self._epoch, "waiting": list(self._waiting), "pass_rates": dict(self._pass_rates)}

    def take(self, count: int) -> list[McpScenario]:
        """The next `count` scenarios, distinct; fewer only where there are not that many at all."""
        taken: list[str] = []
        count = min(count, len(self._scenarios))
        while len(taken) < count:
            fresh = [name for name in self._waiting if name not in taken][: count - len(taken)]
            if not fresh:
                self._begin_epoch(everything=bool(self._waiting))
                continue
            self._waiting = [name for name in self._waiting if name not in fresh]
            taken += fresh
        return [self._scenarios[name] for name in taken]

    def learned(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Remember how often each scenario was solved just now."""
        for group in groups:
            outcomes = [t.success for t in group if t.trainable and t.success is not None]
            if outcomes:
                self._pass_rates[group.scenario.id] = sum(outcomes) / len(outcomes)

    def _begin_epoch(self, *, everything: bool) -> None:
        """`everything`: take all the solved ones too, since all that an epoch would have is in this step already."""
        self._epoch += 1
        order = list(self._scenarios)
        rng = random.Random(derive_seed("epoch", self._seed, self._epoch))
        rng.shuffle(order)
        solved = [name for name in order if self._pass_rates.get(name) == 1]
        seen_again = (
            math.ceil(SOLVED_SHARE * len(solved)) if len(solved) < len(order) and not everything else len(solved)
        )
        left_out = set(solved[seen_again:])
        self._waiting = [name for name in order if name not in left_out]
