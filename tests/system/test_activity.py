"""The clock measures how long each kind of work was under way, and how long none was."""

import time

import anyio
import pytest

from mcp_rl.system.activity import Activity, Clock, during, timed_by


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock time that the test sets."""
    moment = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: moment[0])
    return moment


def test_work_of_one_kind_that_overlaps_counts_once(now: list[float]) -> None:
    clock = Clock()
    clock.begin(Activity.TOOLS)
    now[0] = 1
    clock.begin(Activity.TOOLS)
    now[0] = 2
    clock.end(Activity.TOOLS)
    now[0] = 5
    clock.end(Activity.TOOLS)
    now[0] = 6
    times = clock.take()
    assert (times.total, times.of[Activity.TOOLS], times.overhead) == (6, 5, 1)
    assert times.metrics()["tools_time_share"] == pytest.approx(5 / 6)


def test_overhead_is_when_nothing_at_all_is_under_way(now: list[float]) -> None:
    clock = Clock()
    now[0] = 1
    clock.begin(Activity.SAMPLING)
    now[0] = 3
    clock.begin(Activity.UPDATING)
    now[0] = 4
    clock.end(Activity.SAMPLING)
    now[0] = 6
    clock.end(Activity.UPDATING)
    now[0] = 10
    times = clock.take()
    assert times.of[Activity.SAMPLING] == 3 and times.of[Activity.UPDATING] == 3
    assert times.overhead == 1 + 4
    assert times.metrics()["overhead_seconds"] == 5


def test_what_is_under_way_is_shared_between_the_stretches(now: list[float]) -> None:
    clock = Clock()
    now[0] = 1
    clock.begin(Activity.SAVING)
    now[0] = 4
    first = clock.take()
    now[0] = 6
    clock.end(Activity.SAVING)
    now[0] = 7
    second = clock.take()
    assert (first.total, first.of[Activity.SAVING], first.overhead) == (4, 3, 1)
    assert (second.total, second.of[Activity.SAVING], second.overhead) == (3, 2, 1)


async def test_only_tasks_below_a_clock_are_timed() -> None:
    async def work() -> None:
        with during(Activity.JUDGING):
            await anyio.sleep(0.02)

    clock = Clock()
    await work()
    assert clock.take().of[Activity.JUDGING] == 0
    with timed_by(clock):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(work)
    assert clock.take().of[Activity.JUDGING] >= 0.02


async def test_work_that_fails_is_over() -> None:
    clock = Clock()
    with timed_by(clock), pytest.raises(ValueError), during(Activity.TOOLS):
        raise ValueError
    assert clock._busy == 0
