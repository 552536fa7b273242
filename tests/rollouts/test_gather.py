"""Gathering keeps order, replays faults, stops at too many of them, and leaves nothing running."""

import functools
import random
from collections.abc import Awaitable, Callable

import anyio
import pytest

from mcp_rl.errors import ConfigError, JudgeError, ServerFault
from mcp_rl.rollouts.gather import GroupPlan, gather_groups, gather_trajectory_groups
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

SCENARIOS = [McpScenario(task_description=f"task {i}", server_params=StdioServer(command="server")) for i in range(3)]


def good(scenario: McpScenario, seed: int) -> Trajectory:
    return Trajectory(scenario_id=scenario.id, seed=seed)


def faulted(scenario: McpScenario, seed: int) -> Trajectory:
    return Trajectory(scenario_id=scenario.id, seed=seed, stop_reason=StopReason.FAULT, fault="The server died.")


def plan(scenario: McpScenario, size: int, play: Callable[[int, int], Awaitable[Trajectory]]) -> GroupPlan:
    return GroupPlan(scenario, [functools.partial(play, member) for member in range(size)])


async def test_groups_come_back_in_the_order_of_their_plans() -> None:
    waits = random.Random(0)

    def shuffled(scenario: McpScenario) -> Callable[[int, int], Awaitable[Trajectory]]:
        async def play(member: int, attempt: int) -> Trajectory:
            await anyio.sleep(waits.random() / 50)
            return good(scenario, member)

        return play

    groups = await gather_groups([plan(s, 4, shuffled(s)) for s in SCENARIOS])
    assert [g.scenario.id for g in groups] == [s.id for s in SCENARIOS]
    assert [[t.seed for t in g] for g in groups] == [[0, 1, 2, 3]] * 3


async def test_all_members_start_at_once_and_in_order() -> None:
    started: list[tuple[int, int]] = []
    everyone = anyio.Event()

    def meet(group: int) -> Callable[[int, int], Awaitable[Trajectory]]:
        async def play(member: int, attempt: int) -> Trajectory:
            started.append((group, member))
            if len(started) == 6:
                everyone.set()
            await everyone.wait()
            return good(SCENARIOS[group], member)

        return play

    with anyio.fail_after(20):
        await gather_groups([plan(s, 2, meet(i)) for i, s in enumerate(SCENARIOS)])
    assert started == [(group, member) for group in range(3) for member in range(2)]


async def test_a_fault_is_played_again_and_counted() -> None:
    async def play(member: int, attempt: int) -> Trajectory:
        return faulted(SCENARIOS[0], member) if (member, attempt) == (1, 0) else good(SCENARIOS[0], 10 * attempt)

    [group] = await gather_groups([plan(SCENARIOS[0], 3, play)])
    assert [t.seed for t in group] == [0, 10, 0]
    assert group.exceptions == ["The server died."]
    assert all(t.stop_reason is not StopReason.FAULT for t in group)


async def test_a_member_that_keeps_failing_stays_as_a_fault() -> None:
    async def play(member: int, attempt: int) -> Trajectory:
        return faulted(SCENARIOS[0], attempt) if member == 1 else good(SCENARIOS[0], attempt)

    [group] = await gather_groups([plan(SCENARIOS[0], 4, play)], redos=2, max_exceptions=0.25)
    assert [t.seed for t in group] == [0, 2, 0, 0]
    assert group.trajectories[1].stop_reason is StopReason.FAULT and not group.trajectories[1].trainable
    assert len(group.exceptions) == 2


async def test_too_many_failures_stop_everything() -> None:
    cancelled: list[int] = []

    async def play(member: int, attempt: int) -> Trajectory:
        if member == 0:
            return faulted(SCENARIOS[0], member)
        try:
            await anyio.sleep(60)
        except BaseException:
            cancelled.append(member)
            raise
        return good(SCENARIOS[0], member)

    with anyio.fail_after(20), pytest.raises(ServerFault, match=r"1 of 3 rollouts failed.*The server died\."):
        await gather_groups([plan(SCENARIOS[0], 3, play)], redos=0)
    assert sorted(cancelled) == [1, 2]


async def test_cancelling_the_gatherer_cancels_every_rollout() -> None:
    running = 0

    async def play(member: int, attempt: int) -> Trajectory:
        nonlocal running
        running += 1
        try:
            await anyio.sleep(60)
        finally:
            running -= 1
        return good(SCENARIOS[0], member)

    with anyio.move_on_after(0.05) as scope:
        await gather_groups([plan(s, 4, play) for s in SCENARIOS])
    assert scope.cancelled_caught
    assert running == 0


async def test_each_member_is_reported_once_when_final() -> None:
    async def play(member: int, attempt: int) -> Trajectory:
        return faulted(SCENARIOS[0], member) if attempt == 0 else good(SCENARIOS[0], member)

    heard: list[Trajectory] = []
    await gather_groups([plan(SCENARIOS[0], 3, play)], on_rollout=heard.append)
    assert sorted(t.seed for t in heard) == [0, 1, 2]


async def test_pending_groups_are_scored_as_they_finish() -> None:
    async def rollout(scenario: McpScenario, seed: int) -> Trajectory:
        return good(scenario, seed)

    async def score(group: TrajectoryGroup) -> TrajectoryGroup | None:
        for trajectory in group:
            trajectory.reward = float(trajectory.seed)
        return None if group.scenario is SCENARIOS[1] else group

    pending = (TrajectoryGroup((rollout(s, seed) for seed in range(2)), scenario=s) for s in SCENARIOS)
    groups = await gather_trajectory_groups(pending, after_each=score)
    assert [g.scenario.id for g in groups] == [SCENARIOS[0].id, SCENARIOS[2].id]
    assert [g.rewards for g in groups] == [[0.0, 1.0]] * 2


async def test_an_exception_in_a_users_rollout_becomes_a_sentence() -> None:
    async def rollout(seed: int) -> Trajectory:
        if seed == 1:
            raise ZeroDivisionError("division by zero")
        return good(SCENARIOS[0], seed)

    [group] = await gather_trajectory_groups(
        [TrajectoryGroup((rollout(seed) for seed in range(3)), scenario=SCENARIOS[0])], max_exceptions=1
    )
    assert [t.seed for t in group] == [0, 2]
    assert group.exceptions == ["ZeroDivisionError: division by zero"]


async def test_a_group_whose_judge_failed_stays_unscored() -> None:
    async def rollout(seed: int) -> Trajectory:
        return good(SCENARIOS[0], seed)

    async def judge(group: TrajectoryGroup) -> TrajectoryGroup:
        raise JudgeError("The judge gave no verdict.")

    pending = [TrajectoryGroup((rollout(seed) for seed in range(2)), scenario=SCENARIOS[0])]
    [group] = await gather_trajectory_groups(pending, after_each=judge, max_exceptions=2)
    assert len(group) == 2 and group.rewards == []
    assert group.exceptions == ["The judge gave no verdict."]


async def test_a_group_without_a_scenario_is_refused_first() -> None:
    async def rollout() -> Trajectory:
        raise AssertionError("must not run")

    awaitable = rollout()
    with pytest.raises(ConfigError, match="has no scenario"):
        await gather_trajectory_groups([TrajectoryGroup([awaitable])])
    awaitable.close()


async def test_a_finished_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="Group 0 is already finished"):
        await gather_trajectory_groups([TrajectoryGroup(scenario=SCENARIOS[0])])


async def test_a_group_grows_and_its_new_members_count() -> None:
    async def play(member: int, attempt: int) -> Trajectory:
        return faulted(SCENARIOS[0], member) if member == 5 else good(SCENARIOS[0], member)

    members = [functools.partial(play, member) for member in range(6)]
    seen: list[int] = []

    def grow(group: TrajectoryGroup) -> list[Callable[[int], Awaitable[Trajectory]]]:
        seen.append(len(group))
        return members[2:] if group.scenario.id == SCENARIOS[0].id else []

    plans = [GroupPlan(scenario, members[:2], grow=grow) for scenario in SCENARIOS[:2]]
    grown, small = await gather_groups(plans, redos=0, max_exceptions=0.13)  # 1 of 8; it would be too many of 4
    assert seen == [2, 2]
    assert [t.seed for t in grown] == [0, 1, 2, 3, 4, 5]
    assert [t.seed for t in small] == [0, 1]
