"""Which scenarios a step trains on.

Every scenario is used once per epoch: none is skipped, none comes twice before all others have come. The order inside
an epoch is free, so what is likely to teach something comes first: a group whose rollouts all succeed or all fail has
no gradient. In the first epoch, where nothing is known, the order is a plain shuffle.
"""

import random
from collections.abc import Sequence
from typing import Any

from mcp_rl.rollout import derive_seed
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import TrajectoryGroup


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
            if not self._waiting:
                self._begin_epoch()
            fresh = [name for name in self._waiting if name not in taken][: count - len(taken)]
            self._waiting = [name for name in self._waiting if name not in fresh]
            taken += fresh
        return [self._scenarios[name] for name in taken]

    def learned(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Remember how often each scenario was solved just now."""
        for group in groups:
            outcomes = [t.success for t in group if t.trainable and t.success is not None]
            if outcomes:
                self._pass_rates[group.scenario.id] = sum(outcomes) / len(outcomes)

    def _begin_epoch(self) -> None:
        self._epoch += 1
        order = list(self._scenarios)
        random.Random(derive_seed("epoch", self._seed, self._epoch)).shuffle(order)
        self._waiting = sorted(order, key=self._rank)

    def _rank(self, name: str) -> int:
        """Sometimes solved, then never measured, then never solved, then always solved."""
        rate = self._pass_rates.get(name)
        if rate is None:
            return 1
        return 2 if rate == 0 else 3 if rate == 1 else 0
