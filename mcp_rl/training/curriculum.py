"""Which scenarios a step trains on, and how hard each one has turned out to be.

Every scenario is in one pool, by the share of its rollouts that succeeded when it was last played: unseen, too hard,
right or solved. In the first epoch, where nothing is known, every scenario comes once, in a plain shuffle. In a later
epoch all of the unseen and the right ones come once, and of the too hard and the solved ones a set share: a group whose
rollouts all end alike has no gradient. By default that is all of the too hard ones, since their first success is what
there is to learn, and one in four of the solved ones; which ones is drawn anew each time. The order is always a
shuffle: steps of nothing but hard scenarios were seen to undo what the easier ones had taught.
"""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mcp_rl.config import CurriculumConfig
from mcp_rl.errors import RunDirectoryError
from mcp_rl.rollout import derive_seed
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import TrajectoryGroup


class Pool(StrEnum):
    """What is known of a scenario."""

    UNSEEN = "unseen"
    """Nothing yet."""
    TOO_HARD = "too_hard"
    """The policy does not solve it, or hardly ever."""
    RIGHT = "right"
    """Sometimes it does: its groups have variance."""
    SOLVED = "solved"
    """Always, or nearly."""


@dataclass(frozen=True)
class Measured:
    """What the rollouts of one scenario have shown. Faults are no rollouts."""

    passed: int
    """Successes when it was last played."""
    of: int
    """Rollouts of that time, at least 1."""
    step: int
    """When that was."""
    visits: int = 1
    """Steps that played it, this one included."""
    passed_ever: int = 0
    """Successes over all visits."""
    of_ever: int = 0

    @property
    def pass_rate(self) -> float:
        """Of the last visit, 0 to 1: the policy moves, so earlier ones were of another."""
        return self.passed / self.of


class Curriculum:
    """A deterministic frontier over the training scenarios. Its `state` is JSON and continues it exactly."""

    def __init__(
        self,
        scenarios: Sequence[McpScenario],
        seed: int,
        state: dict[str, Any] | None = None,
        config: CurriculumConfig | None = None,
    ) -> None:
        self._scenarios = {scenario.id: scenario for scenario in scenarios}
        self._seed = seed
        self._config = config or CurriculumConfig()
        self._epoch = 0
        self._waiting: list[str] = []
        self._measured: dict[str, Measured] = {}
        if state:
            self._epoch, self._waiting = state["epoch"], list(state["waiting"])
            self._measured = {name: Measured(**entry) for name, entry in state["measured"].items()}
        if gone := [name for name in (*self._waiting, *self._measured) if name not in self._scenarios]:
            raise RunDirectoryError(
                f"The run's train.jsonl has no scenario {gone[0]} any more, which the run goes on with: put the file "
                "back as it was, or start over with --fresh."
            )

    @property
    def state(self) -> dict[str, Any]:
        """Epoch (from 1), ids that still wait in it, and what is known of each scenario that was played."""
        measured = {name: asdict(entry) for name, entry in self._measured.items()}
        return {"epoch": self._epoch, "waiting": list(self._waiting), "measured": measured}

    def measured(self, name: str) -> Measured | None:
        """What is known of the scenario with this id; None where it was never played."""
        return self._measured.get(name)

    def pool(self, name: str) -> Pool:
        """Of the scenario with this id."""
        measured = self._measured.get(name)
        return self.pool_of(measured.pass_rate if measured else None)

    def pool_of(self, pass_rate: float | None) -> Pool:
        """Of a scenario with this pass rate, 0 to 1; None where it was never played."""
        if pass_rate is None:
            return Pool.UNSEEN
        if pass_rate >= self._config.solved_at:
            return Pool.SOLVED
        return Pool.TOO_HARD if pass_rate <= self._config.too_hard_at else Pool.RIGHT

    def pools(self) -> dict[Pool, int]:
        """How many scenarios each pool holds."""
        every = [self.pool(name) for name in self._scenarios]
        return {pool: every.count(pool) for pool in Pool}

    def take(self, count: int, besides: Collection[str] = ()) -> list[McpScenario]:
        """The next `count` scenarios, distinct and none of `besides` (ids), which a later epoch may bring again; fewer
        only where there are not that many at all."""
        taken: list[str] = []
        count = min(count, len(self._scenarios) - len(besides))
        while len(taken) < count:
            fresh = [name for name in self._waiting if name not in taken and name not in besides][: count - len(taken)]
            if not fresh:
                self._begin_epoch(everything=bool(self._waiting))
                continue
            self._waiting = [name for name in self._waiting if name not in fresh]
            taken += fresh
        return [self._scenarios[name] for name in taken]

    def learned(self, groups: Sequence[TrajectoryGroup], step: int = 0) -> None:
        """Remember how often each scenario was solved just now, in `step`."""
        for group in groups:
            outcomes = [t.success for t in group if t.trainable and t.success is not None]
            if outcomes:
                self._learn(group.scenario.id, sum(outcomes), len(outcomes), step)

    def _learn(self, name: str, passed: int, of: int, step: int) -> None:
        before = self._measured.get(name)
        visits, passed_ever, of_ever = (before.visits, before.passed_ever, before.of_ever) if before else (0, 0, 0)
        self._measured[name] = Measured(passed, of, step, visits + 1, passed_ever + passed, of_ever + of)

    def _begin_epoch(self, *, everything: bool) -> None:
        """`everything`: leave none out, since all that an epoch would have is in this step already."""
        self._epoch += 1
        order = list(self._scenarios)
        rng = random.Random(derive_seed("epoch", self._seed, self._epoch))
        rng.shuffle(order)
        left_out = set() if everything else self._left_out(order)
        self._waiting = [name for name in order if name not in left_out]

    def _left_out(self, order: Sequence[str]) -> set[str]:
        """The last ones of each pool that is seen in part; none where all are solved, or where none would be left."""
        shares = {Pool.SOLVED: self._config.solved_share, Pool.TOO_HARD: self._config.too_hard_share}
        members = {pool: [name for name in order if self.pool(name) is pool] for pool in shares}
        if len(members[Pool.SOLVED]) == len(order):
            return set()
        left_out = {name for pool, names in members.items() for name in names[math.ceil(shares[pool] * len(names)) :]}
        return left_out if len(left_out) < len(order) else set()
