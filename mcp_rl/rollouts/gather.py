"""Play many rollouts at once and return them in a fixed order, whatever finishes first.

All groups of a batch are in flight together, and the members of a group start together. A rollout that the world made
fail is played again, up to a limit, so that a fault neither counts as a 0 nor leaves a hole in its group.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError, McpRlError, RunStop, ServerFault
from mcp_rl.rollouts.rollout import Rollout
from mcp_rl.system.activity import Activity, during
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.tasks import run_all
from mcp_rl.trajectory import PendingGroup, StopReason, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from mcp_rl.scenario import McpScenario

Attempt = Callable[[int], Awaitable[Trajectory]]
"""Play one member of a group; the argument is the number of the try, from 0."""
AfterEach = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | None]]
"""Score a complete group; None drops it."""


@dataclass
class GroupPlan:
    """A scenario and the members of its group, still to be played."""

    scenario: McpScenario
    members: Sequence[Attempt]
    repeatable: bool = True
    """False if a member cannot be played a second time."""
    grow: Callable[[TrajectoryGroup], Sequence[Attempt]] | None = None
    """Chooses further members when the first ones have finished, before the group is scored."""


@dataclass
class _Tally:
    """The rollouts that failed for good, and the limit on them."""

    most: int | float
    """The limit: an int is a count, a float a share of the rollouts."""
    rollouts: int
    failures: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> float:
        return self.most if isinstance(self.most, int) else self.most * self.rollouts

    def add(self, sentence: str, count: int = 1) -> None:
        self.failures += [sentence] * count
        if len(self.failures) > self.allowed:
            raise ServerFault(
                f"{len(self.failures)} of {self.rollouts} rollouts failed, more than the {int(self.allowed)} allowed. "
                f"The first failure: {self.failures[0]}"
            )


async def gather_groups(
    plans: Sequence[GroupPlan],
    *,
    redos: int = 2,
    max_exceptions: int | float = 0,
    after_each: AfterEach | None = None,
    on_rollout: Callable[[Trajectory], None] | None = None,
    follow: Callable[[TrajectoryGroup], GroupPlan | None] | None = None,
) -> list[TrajectoryGroup]:
    """Play every member of every group; return one group for each plan, in the order of the plans.

    `follow` is called with each finished group and may return a further plan, which starts at once; its group comes
    after the others, in the order in which the further plans started.

    A member is played again up to `redos` times after a fault or an exception. A member that still fails leaves its
    faulted trajectory, or a sentence in `exceptions` if it has none. `max_exceptions` members may end like that (an int
    is a count, a float a share). Raises ServerFault if there are more, and cancels everything in flight.
    """
    tally = _Tally(max_exceptions, sum(len(plan.members) for plan in plans))
    groups: list[TrajectoryGroup | None] = [None] * len(plans)

    async def play_group(index: int, plan: GroupPlan) -> None:
        further: GroupPlan | None = plan
        while further is not None:
            group = groups[index] = await play_plan(further)
            further = None if follow is None or group is None else follow(group)
            if further is not None:
                tally.rollouts += len(further.members)
                index = len(groups)
                groups.append(None)

    async def play_plan(plan: GroupPlan) -> TrajectoryGroup | None:
        group = TrajectoryGroup(scenario=plan.scenario)
        tries = redos if plan.repeatable else 0
        await _play_members(plan.members, group, tries, tally, on_rollout)
        if plan.grow is not None and (more := plan.grow(group)):
            tally.rollouts += len(more)
            await _play_members(more, group, tries, tally, on_rollout)
        return await _after(group, after_each, tally)

    await run_all(functools.partial(play_group, index, plan) for index, plan in enumerate(plans))
    return [group for group in groups if group is not None]


async def _play_members(
    members: Sequence[Attempt],
    group: TrajectoryGroup,
    redos: int,
    tally: _Tally,
    on_rollout: Callable[[Trajectory], None] | None,
) -> None:
    """Play members side by side and append their trajectories and exceptions to the group, in their order."""
    finished: list[Trajectory | None] = [None] * len(members)
    sentences: list[list[str]] = [[] for _ in members]

    async def play_member(index: int, member: Attempt) -> None:
        for attempt in range(redos + 1):
            try:
                trajectory = finished[index] = await member(attempt)
            except RunStop:
                raise
            except Exception as error:
                finished[index] = None
                sentences[index].append(without_secrets(f"{type(error).__name__}: {error}"))
                continue
            if trajectory.stop_reason is not StopReason.FAULT:
                break
            if attempt < redos:
                sentences[index].append(trajectory.fault or "")
        last = finished[index]
        if last is None:
            tally.add(sentences[index][-1])
        elif last.stop_reason is StopReason.FAULT:
            tally.add(last.fault or "")
        if last is not None and on_rollout is not None:
            on_rollout(last)

    await run_all(functools.partial(play_member, index, member) for index, member in enumerate(members))
    group.trajectories += [trajectory for trajectory in finished if trajectory is not None]
    group.exceptions += [sentence for member in sentences for sentence in member]


async def _after(group: TrajectoryGroup, after_each: AfterEach | None, tally: _Tally) -> TrajectoryGroup | None:
    """Score the group with `after_each`. If that fails, the group stays unscored and out of training; a RunStop, after
    which no verdict will come any more, ends everything."""
    if after_each is None:
        return group
    try:
        with during(Activity.JUDGING):
            return await after_each(group)
    except RunStop:
        raise
    except McpRlError as error:
        group.exceptions.append(str(error))
        tally.add(str(error), len(group))
        return group


async def gather_trajectory_groups(
    groups: Iterable[PendingGroup | TrajectoryGroup],
    *,
    after_each: AfterEach | None = None,
    max_exceptions: int | float = 0,
    redos: int = 2,
    on_rollout: Callable[[Trajectory], None] | None = None,
) -> list[TrajectoryGroup]:
    """Await the rollouts of all groups (`TrajectoryGroup(awaitables)`) at once; score each group when it is complete.

    `after_each` receives every finished group and returns it scored, or None to drop it. If a judge fails there, the
    group comes back unscored, which keeps it out of training. Up to `max_exceptions` rollouts may fail for good (an int
    is a count, a float a share); raises ServerFault if more do. Rollouts made by `rollout(model, scenario)` share their
    servers and are played again up to `redos` times after a fault; other awaitables can be awaited only once.
    """
    plans = [_plan(index, group) for index, group in enumerate(groups)]
    gather = functools.partial(
        gather_groups, plans, redos=redos, max_exceptions=max_exceptions, after_each=after_each, on_rollout=on_rollout
    )
    if not any(plan.repeatable for plan in plans):
        return await gather()
    from mcp_rl.toolserver.pool import sessions_in_use  # imports the MCP SDK

    async with sessions_in_use():
        return await gather()


def _plan(index: int, group: PendingGroup | TrajectoryGroup) -> GroupPlan:
    if isinstance(group, TrajectoryGroup):
        raise ConfigError(f"Group {index} is already finished; gather groups of rollouts that are still to be awaited.")
    known = [rollout.scenario for rollout in group.rollouts if isinstance(rollout, Rollout)]
    scenario = group.scenario or (known[0] if known else None)
    if scenario is None:
        raise ConfigError(
            f"Group {index} has no scenario: make its rollouts with rollout(model, scenario), or name the scenario: "
            "TrajectoryGroup(rollouts, scenario=scenario)."
        )
    repeatable = len(known) == len(group.rollouts)
    return GroupPlan(scenario, [_attempt(rollout, i) for i, rollout in enumerate(group.rollouts)], repeatable)


def _attempt(rollout: Awaitable[Trajectory], member: int) -> Attempt:
    if isinstance(rollout, Rollout):
        return functools.partial(rollout.attempt, member)

    async def once(attempt: int) -> Trajectory:
        return await rollout

    return once
