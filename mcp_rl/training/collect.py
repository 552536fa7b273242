"""The groups of one batch: which rollouts each gets, and which scenarios take the place of those that teach nothing.

A batch is what one step learns from. What becomes of it depends on the seed, the policy and the curriculum alone, not
on which rollout ends first: a scenario's random numbers follow from its name and the batch's number, and the scenarios
that refill a batch are the next ones of the curriculum, as many as groups without variance.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio

from mcp_rl.config import RunConfig
from mcp_rl.gather import GroupPlan, gather_groups
from mcp_rl.learning.canaries import check_prompts
from mcp_rl.player import Player
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rollout import derive_seed
from mcp_rl.scenario import McpScenario
from mcp_rl.tracking.progress import Progress, RolloutBar
from mcp_rl.training.curriculum import Curriculum
from mcp_rl.trajectory import Trajectory, TrajectoryGroup


@dataclass
class Batch:
    """The rollouts of one step, from the moment when its scenarios are taken."""

    number: int
    """The step that learns from it, from 1."""
    scenarios: list[McpScenario]
    """Those that it began with, then those that refilled it."""
    began_with: int
    """How many it began with."""
    finished: dict[str, TrajectoryGroup] = field(default_factory=dict)
    """Scenario id to its group, of those that are done."""
    seconds: float = 0.0
    """From its first rollout to its last, once all are done."""
    done: anyio.Event = field(default_factory=anyio.Event)

    @property
    def refilled(self) -> int:
        """Groups that were played in place of others."""
        return len(self.scenarios) - self.began_with

    @property
    def alike(self) -> int:
        """Finished groups without variance."""
        return sum(not group.has_variance for group in self.finished.values())

    def groups(self) -> list[TrajectoryGroup]:
        """The groups in the order of the scenarios. Raises CanaryError where one is missing."""
        groups = [self.finished[scenario.id] for scenario in self.scenarios if scenario.id in self.finished]
        check_prompts([scenario.id for scenario in self.scenarios], [group.scenario.id for group in groups])
        return groups

    def metrics(self, *, refills: bool) -> dict[str, float]:
        """`groups_refilled`, and `refills_short`: groups without variance that were not replaced where `refills` are
        on, since the limit was reached or no scenario was left."""
        return {
            "groups_refilled": float(self.refilled),
            "refills_short": float(max(0, self.alike - self.refilled)) if refills else 0.0,
        }


class Collector:
    """Takes scenarios from the curriculum and plays them."""

    def __init__(
        self, config: RunConfig, curriculum: Curriculum, player: Player, scoring: Scoring, progress: Progress
    ) -> None:
        self._config, self._curriculum = config, curriculum
        self._player, self._scoring, self._progress = player, scoring, progress

    def take(self, number: int) -> Batch:
        """A new batch, nothing of it played yet."""
        scenarios = self._curriculum.take(self._config.rollout.groups_per_step)
        return Batch(number, scenarios, len(scenarios))

    async def play(self, batch: Batch) -> None:
        """Play what of the batch is not finished, and refill it, until all of it is done.

        Where a scenario's first rollouts all succeed, its group ends there: a larger one would have taught nothing, and
        the time goes to the scenarios that are hard.
        """
        began = time.monotonic()
        left = [scenario for scenario in batch.scenarios if scenario.id not in batch.finished]
        with self._progress.rollouts(f"step {batch.number}", len(left) * self.probes) as bar:

            def follow(group: TrajectoryGroup) -> GroupPlan | None:
                batch.finished[group.scenario.id] = group
                further = self._refill(batch)
                if further is None:
                    return None
                bar.expect(self.probes)
                return self._plan(further, batch.number, bar)

            await gather_groups(
                [self._plan(scenario, batch.number, bar) for scenario in left],
                max_exceptions=self._config.rollout.max_exceptions,
                after_each=bar.around(self._scoring.group),
                on_rollout=bar.finished,
                follow=follow,
            )
        batch.seconds = time.monotonic() - began

    def _refill(self, batch: Batch) -> McpScenario | None:
        """The next scenario in place of a group without variance, where one is due and the limit allows it."""
        if batch.refilled >= min(batch.alike, self._config.rollout.refills):
            return None
        further = self._curriculum.take(1, besides={scenario.id for scenario in batch.scenarios})
        batch.scenarios += further
        return further[0] if further else None

    @property
    def probes(self) -> int:
        """Rollouts that decide whether a group goes on. A judge ranks whole groups, so there it is all of them."""
        rollout = self._config.rollout
        stops_early = self._scoring.at_once and 0 < rollout.probes < rollout.group_size
        return rollout.probes if stops_early else rollout.group_size

    def _plan(self, scenario: McpScenario, number: int, bar: RolloutBar) -> GroupPlan:
        def member(index: int) -> Callable[[int], Awaitable[Trajectory]]:
            def attempt(tries: int) -> Awaitable[Trajectory]:
                return self._player.play(
                    scenario, derive_seed("train", self._config.seed, number, scenario.id, index, tries)
                )

            return attempt

        members = [member(index) for index in range(self._config.rollout.group_size)]
        probes = self.probes

        def grow(group: TrajectoryGroup) -> Sequence[Callable[[int], Awaitable[Trajectory]]]:
            rest = [] if all(trajectory.success for trajectory in group) else members[probes:]
            bar.expect(len(rest))
            return rest

        return GroupPlan(scenario, members[:probes], grow=grow)
