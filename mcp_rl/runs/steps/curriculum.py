"""Choose the scenarios that each step trains on, by how hard each one has turned out to be.

Every scenario is in one pool, by the share of its rollouts that succeeded when it was last played: unseen, too hard,
right or solved. In the first epoch nothing is known, so every scenario comes once, in a plain shuffle. In a later epoch
all unseen and right scenarios come once, and a set share of the too hard and the solved ones: a group whose rollouts
all end alike has no gradient. By default that share is all of the too hard ones, since their first success has most to
teach, and a quarter of the solved ones, drawn anew each time. The order is always a shuffle: steps of hard scenarios
alone were seen to undo what the easier ones had taught.

Where scenarios are of several levels, the level says something of an unseen one: while the newest scenarios of its
level were all solved or all too hard, three in four of its unseen ones wait for the others of the epoch.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.config import CurriculumConfig
from mcp_rl.errors import RunDirectoryError
from mcp_rl.evaluation.difficulty import DifficultyPool, ScenarioDifficulty
from mcp_rl.rollouts.rollout import derive_seed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import TrajectoryGroup


_LEVEL_OF = 4
"""Newest scenarios of a level by which its unseen ones are judged; with fewer, nothing is known of it."""


@dataclass(frozen=True)
class Measured:
    """The results of one scenario's rollouts. Faults do not count."""

    passed: int
    """Successes on the last visit."""
    of: int
    """Rollouts of the last visit, at least 1."""
    step: int
    """Step of the last visit."""
    visits: int = 1
    """Steps that played the scenario, the last one included."""
    passed_ever: int = 0
    """Successes over all visits."""
    of_ever: int = 0
    """Rollouts over all visits."""

    @property
    def pass_rate(self) -> float:
        """Pass rate of the last visit, 0 to 1; earlier visits were another policy's."""
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
                f"The run's train.jsonl no longer has the scenario {gone[0]}, which the run needs to go on: restore "
                "the file, or start over with --fresh."
            )

    @property
    def state(self) -> dict[str, Any]:
        """The epoch (from 1), the ids that still wait in it, and the results of each scenario that was played."""
        measured = {name: asdict(entry) for name, entry in self._measured.items()}
        return {"epoch": self._epoch, "waiting": list(self._waiting), "measured": measured}

    def measured(self, name: str) -> Measured | None:
        """Return the results of the scenario with this id; None if it was never played."""
        return self._measured.get(name)

    def pool(self, name: str) -> DifficultyPool:
        """Return the pool of the scenario with this id."""
        measured = self._measured.get(name)
        return self.pool_of(measured.pass_rate if measured else None)

    def pool_of(self, pass_rate: float | None) -> DifficultyPool:
        """Return the pool of a pass rate, 0 to 1; None stands for a scenario that was never played."""
        if pass_rate is None:
            return DifficultyPool.UNSEEN
        if pass_rate >= self._config.solved_at:
            return DifficultyPool.SOLVED
        return DifficultyPool.TOO_HARD if pass_rate <= self._config.too_hard_at else DifficultyPool.RIGHT

    def pools(self) -> dict[DifficultyPool, int]:
        """Count the scenarios of each pool."""
        every = [self.pool(name) for name in self._scenarios]
        return {pool: every.count(pool) for pool in DifficultyPool}

    def weight(self, name: str) -> float:
        """Return for a scenario that is played now how many of its pool it stands for: 1, or more where an epoch plays
        only a share of the pool."""
        share = {
            DifficultyPool.SOLVED: self._config.solved_share,
            DifficultyPool.TOO_HARD: self._config.too_hard_share,
        }.get(self.pool(name), 1.0)
        return 1 / share if share else 1.0

    def take(self, count: int, besides: Collection[str] = ()) -> list[McpScenario]:
        """Take the next `count` scenarios, all distinct and none of `besides` (ids), which a later epoch may bring
        again; fewer only if there are not that many at all."""
        taken: list[str] = []
        count = min(count, len(self._scenarios) - len(besides))
        while len(taken) < count:
            fresh = [name for name in self._waiting if name not in taken and name not in besides]
            fresh = self._by_level(fresh)[: count - len(taken)]
            if not fresh:
                self._begin_epoch(everything=bool(self._waiting))
                continue
            self._waiting = [name for name in self._waiting if name not in fresh]
            taken += fresh
        return [self._scenarios[name] for name in taken]

    def level_pool(self, level: str) -> DifficultyPool:
        """Return the pool of a level: of the pass rate over its newest scenarios; unseen while only few were played."""
        found = [one for name, one in self._measured.items() if self._scenarios[name].level == level]
        newest = sorted(found, key=lambda one: one.step)[-_LEVEL_OF:]
        if len(newest) < _LEVEL_OF:
            return DifficultyPool.UNSEEN
        return self.pool_of(sum(one.passed for one in newest) / sum(one.of for one in newest))

    def learned(self, groups: Sequence[TrajectoryGroup], step: int = 0) -> None:
        """Record the successes of each scenario in `step`."""
        for group in groups:
            outcomes = [t.success for t in group if t.trainable and t.success is not None]
            if outcomes:
                self._learn(group.scenario.id, sum(outcomes), len(outcomes), step)

    def difficulty(self, before: Mapping[str, Any] | None) -> Iterator[ScenarioDifficulty]:
        """Yield the lines of difficulty.jsonl: every training scenario, as it was when last played, and the held-out
        ones as the base model did on them before the first step (`before`, as in state.json; None until then)."""
        for name in self._scenarios:
            found = self._measured.get(name)
            fields = {**asdict(found), "pass_rate": found.pass_rate} if found else {}
            fields.pop("passed", None)
            yield ScenarioDifficulty(id=name, split="train", pool=self.pool(name), **fields)
        for name, outcomes in ((before or {}).get("outcomes") or {}).items():
            rate = sum(outcomes) / len(outcomes) if outcomes else None
            yield ScenarioDifficulty(id=name, split="val", pool=self.pool_of(rate), pass_rate=rate, of=len(outcomes))

    def _by_level(self, order: Sequence[str]) -> list[str]:
        """Return scenarios in this order, but most of the unseen ones of levels that teach little after the others."""
        levels = {self._scenarios[name].level for name in self._scenarios}
        if len(levels) < 2:
            return list(order)
        idle = {level for level in levels if self.level_pool(level) in (DifficultyPool.SOLVED, DifficultyPool.TOO_HARD)}
        share, seen, late = self._config.level_share, 0, set[str]()
        for name in order:
            if name not in self._measured and self._scenarios[name].level in idle:
                seen += 1
                if math.ceil(share * seen) == math.ceil(share * (seen - 1)):
                    late.add(name)
        return [*(name for name in order if name not in late), *(name for name in order if name in late)]

    def _learn(self, name: str, passed: int, of: int, step: int) -> None:
        before = self._measured.get(name)
        visits, passed_ever, of_ever = (before.visits, before.passed_ever, before.of_ever) if before else (0, 0, 0)
        self._measured[name] = Measured(passed, of, step, visits + 1, passed_ever + passed, of_ever + of)

    def _begin_epoch(self, *, everything: bool) -> None:
        """Shuffle the scenarios of a new epoch. `everything` leaves none out, if this step already holds the others."""
        self._epoch += 1
        order = list(self._scenarios)
        rng = random.Random(derive_seed("epoch", self._seed, self._epoch))
        rng.shuffle(order)
        left_out = set() if everything else self._left_out(order)
        self._waiting = [name for name in order if name not in left_out]

    def _left_out(self, order: Sequence[str]) -> set[str]:
        """Return the scenarios beyond each pool's share; none if all are solved, or if no scenario would be left."""
        shares = {
            DifficultyPool.SOLVED: self._config.solved_share,
            DifficultyPool.TOO_HARD: self._config.too_hard_share,
        }
        members = {pool: [name for name in order if self.pool(name) is pool] for pool in shares}
        if len(members[DifficultyPool.SOLVED]) == len(order):
            return set()
        left_out = {name for pool, names in members.items() for name in names[math.ceil(shares[pool] * len(names)) :]}
        return left_out if len(left_out) < len(order) else set()
