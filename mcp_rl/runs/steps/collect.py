"""Collect the groups of one batch: play its scenarios, and replace those that teach nothing.

One step learns from one batch. Its content depends on the seed, the policy and the curriculum alone, not on which
rollout ends first: a scenario's random numbers follow from its name and the batch's number, and the scenarios that
refill a batch are the next ones of the curriculum, as many as there are groups without variance.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from mcp_rl.config.playing import FEWEST_GROUPS
from mcp_rl.learning.canaries import check_prompts
from mcp_rl.rollouts.gather import Attempt, GroupPlan, gather_groups
from mcp_rl.rollouts.rollout import derive_seed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_rl.config import RolloutConfig, RunConfig
    from mcp_rl.evaluation.progress import Progress, RolloutBar
    from mcp_rl.rewards.scoring import Scoring
    from mcp_rl.rollouts.player import SettingPlayer
    from mcp_rl.runs.steps.curriculum import Curriculum
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup


@dataclass
class RolloutBatch:
    """The scenarios and rollouts of one step, from the moment its scenarios are taken."""

    number: int
    """Number of the step that learns from the batch, from 1."""
    scenarios: list[McpScenario]
    """The scenarios it began with, then those that refilled it."""
    began_with: int
    """Number of scenarios it began with."""
    finished: dict[str, TrajectoryGroup] = field(default_factory=dict)
    """For each finished scenario's id its group."""
    seconds: float = 0.0
    """Seconds from the first rollout to the last, once all are done."""
    done: anyio.Event = field(default_factory=anyio.Event)

    @property
    def refilled(self) -> int:
        """Number of groups that replaced others."""
        return len(self.scenarios) - self.began_with

    @property
    def alike(self) -> int:
        """Number of finished groups without variance."""
        return sum(not group.has_variance for group in self.finished.values())

    def groups(self) -> list[TrajectoryGroup]:
        """Return the groups in the order of the scenarios. Raises CanaryError if one is missing."""
        groups = [self.finished[scenario.id] for scenario in self.scenarios if scenario.id in self.finished]
        check_prompts([scenario.id for scenario in self.scenarios], [group.scenario.id for group in groups])
        return groups

    def metrics(self, *, refills: bool) -> dict[str, float]:
        """Return `groups_refilled`, and `refills_short`: if `refills` are on, the groups without variance that were not
        replaced, since the limit was reached or no scenario was left."""
        return {
            "groups_refilled": float(self.refilled),
            "refills_short": float(max(0, self.alike - self.refilled)) if refills else 0.0,
        }


def groups_within(rollout: RolloutConfig, episode_tokens: float) -> int:
    """Return the number of groups that fit into `rollout.step_tokens` if each episode costs `episode_tokens`: its
    sampled tokens, weighted by the length of its prompts (`metrics.episode_tokens`). 0: unknown.
    """
    if rollout.step_tokens is None or not episode_tokens:
        return rollout.groups_per_step
    affordable = int(rollout.step_tokens / (episode_tokens * rollout.group_size))
    return min(rollout.groups_per_step, max(FEWEST_GROUPS, affordable))


class Collector:
    """Takes scenarios from the curriculum and plays them."""

    def __init__(
        self,
        config: RunConfig,
        curriculum: Curriculum,
        player: SettingPlayer,
        scoring: Scoring,
        progress: Progress,
        *,
        prepare: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`prepare` is awaited with the number of a batch before its episodes are played."""
        self._config, self._curriculum, self._prepare = config, curriculum, prepare
        self._player, self._scoring, self._progress = player, scoring, progress

    def take(self, number: int, episode_tokens: float) -> RolloutBatch:
        """Take the scenarios of a new batch, none of them played yet; fewer if episodes are long."""
        scenarios = self._curriculum.take(groups_within(self._config.rollout, episode_tokens))
        return RolloutBatch(number, scenarios, len(scenarios))

    async def play(self, batch: RolloutBatch) -> None:
        """Play the unfinished part of a batch, and refill it, until all of it is done.

        If a scenario's first rollouts all succeed, its group ends there: a larger group would have taught nothing, and
        the time goes to the hard scenarios.
        """
        began = time.monotonic()
        if self._prepare is not None:
            await self._prepare(batch.number)
        left = [scenario for scenario in batch.scenarios if scenario.id not in batch.finished]
        with self._progress.rollouts(f"step {batch.number}", len(left), self.probes) as bar:

            def follow(group: TrajectoryGroup) -> GroupPlan | None:
                batch.finished[group.scenario.id] = group
                further = self._refill(batch)
                if further is None:
                    return None
                bar.expect(self.probes, groups=1)
                return self._plan(further, batch.number, bar)

            await gather_groups(
                [self._plan(scenario, batch.number, bar) for scenario in left],
                max_exceptions=self._config.rollout.max_exceptions,
                after_each=bar.around(self._scoring.group),
                on_rollout=bar.finished,
                follow=follow,
            )
        batch.seconds = time.monotonic() - began

    def _refill(self, batch: RolloutBatch) -> McpScenario | None:
        """Take the next scenario to replace a group without variance, if one is due and the limit allows it."""
        if batch.refilled >= min(batch.alike, self._config.rollout.refills):
            return None
        further = self._curriculum.take(1, besides={scenario.id for scenario in batch.scenarios})
        batch.scenarios += further
        return further[0] if further else None

    @property
    def probes(self) -> int:
        """Number of rollouts that decide whether a group goes on; all with a judge, which ranks whole groups."""
        rollout = self._config.rollout
        stops_early = self._scoring.at_once and 0 < rollout.probes < rollout.group_size
        return rollout.probes if stops_early else rollout.group_size

    def _plan(self, scenario: McpScenario, number: int, bar: RolloutBar) -> GroupPlan:
        size, probes = self._config.rollout.group_size, self.probes
        members = [functools.partial(self._play_member, scenario, number, index) for index in range(size)]

        def grow(group: TrajectoryGroup) -> Sequence[Attempt]:
            rest = [] if all(trajectory.success for trajectory in group) else members[probes:]
            bar.expect(len(rest))
            return rest

        return GroupPlan(scenario, members[:probes], grow=grow)

    def _play_member(self, scenario: McpScenario, number: int, index: int, attempt: int) -> Awaitable[Trajectory]:
        seed = derive_seed("train", self._config.seed, number, scenario.id, index, attempt)
        return self._player.play(scenario, seed)
