"""Many rollouts at once, in a fixed order whatever finishes first.

All groups of a batch are in flight together and the members of a group start together. A rollout that failed because
of the world is played again, up to a limit, so that a fault neither counts as a 0 nor leaves a hole in its group.
"""

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mcp_rl.activity import Activity, during
from mcp_rl.boundary import without_secrets
from mcp_rl.errors import ConfigError, McpRlError, RunStop, ServerFault
from mcp_rl.rollout import Rollout
from mcp_rl.scenario import McpScenario
from mcp_rl.tasks import run_all
from mcp_rl.trajectory import PendingGroup, StopReason, Trajectory, TrajectoryGroup

Attempt = Callable[[int], Awaitable[Trajectory]]
"""Plays one member of a group; the argument counts from 0 and differs for each try."""
AfterEach = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | None]]


@dataclass
class GroupPlan:
    """A scenario and how each member of its group is played."""

    scenario: McpScenario
    members: Sequence[Attempt]
    repeatable: bool = True
    """False where a member cannot be played a second time."""
    grow: Callable[[TrajectoryGroup], Sequence[Attempt]] | None = None
    """Further members, chosen when the first ones have finished and before the group is scored as a whole."""


@dataclass
class _Tally:
    """What failed for good, and how much of that is too much."""

    most: int | float
    """A count where it is an int, a share of the rollouts where it is a float."""
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
    """Play every member of every group; one group for each plan, in the order of the plans.

    `follow` hears of every group as it is done and may give a further plan, which is begun at once; its group comes
    behind the others, in the order in which they were given.

    `redos` is how often one member is played again after a fault or an exception. A member that still failed leaves
    its faulted trajectory, or a sentence in `exceptions` where there is none. `max_exceptions` is how many members may
    end like that: a count where it is an int, a share where it is a float. Raises ServerFault when there are more;
    everything still in flight is cancelled.
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
    """Play members side by side and append what became of them to the group, in their order."""
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
    """What `after_each` makes of the group. Where it fails, the group stays unscored, out of training. Where no
    verdict will come any more, everything stops."""
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

    `after_each` gets every finished group and returns it scored, or None to drop it. Where a judge fails there, the
    group comes back unscored, which keeps it out of training. `max_exceptions`: how many rollouts may fail for good, a
    count where it is an int, a share where it is a float. Rollouts made by `rollout(model, scenario)` share their
    servers and are played again up to `redos` times after a fault; other awaitables can be awaited only once. Raises
    ServerFault where too many failed.
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
        raise ConfigError(f"Group {index} is finished already; gather groups of rollouts that are still to be awaited.")
    known = [rollout.scenario for rollout in group.rollouts if isinstance(rollout, Rollout)]
    scenario = group.scenario or (known[0] if known else None)
    if scenario is None:
        raise ConfigError(
            f"Group {index} does not know its scenario: make its rollouts with rollout(model, scenario), or name it: "
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
