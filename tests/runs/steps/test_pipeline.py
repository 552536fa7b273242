"""Batches in flight: none begins too early, none is lost or played twice, and all of them end together."""

import json
import random
from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest
from rich.console import Console

from mcp_rl.config import CurriculumConfig, JudgeConfig, RolloutConfig, RunConfig
from mcp_rl.errors import CanaryError, CheckpointError, ServerFault
from mcp_rl.evaluation.progress import Progress
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.runs.steps.collect import Collector, RolloutBatch
from mcp_rl.runs.steps.curriculum import Curriculum
from mcp_rl.runs.steps.pipeline import PENDING, Pipeline
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory

SERVER = StdioServer(command="true", env={"API_KEY": "never written"})
SCENARIOS = [McpScenario(task_description=f"Task {i}", server_params=SERVER, id=f"s{i}") for i in range(24)]
GROUPS, SIZE = 4, 3


class Played:
    """A stand-in for the policy: each rollout takes a different moment, and every second one succeeds."""

    def __init__(self, fails: Callable[[int], bool] = lambda count: False) -> None:
        self.fails = fails
        self.seeds: list[int] = []
        self.now = 0

    async def play(self, scenario: McpScenario, seed: int) -> Trajectory:
        self.seeds.append(seed)
        count = len(self.seeds)
        self.now += 1
        try:
            await anyio.sleep(random.Random(seed).random() / 100)
        finally:
            self.now -= 1
        if self.fails(count):
            raise ServerFault("The server died.")
        return Trajectory(scenario_id=scenario.id, seed=seed, success=seed % 2 == 0, reward=float(seed % 2 == 0))


class Session:
    """A session of a run, without the learner."""

    def __init__(self, player: Played, *, staleness: int, last: int, state: dict[str, Any] | None = None) -> None:
        rollout = RolloutConfig(groups_per_step=GROUPS, group_size=SIZE, probes=0, max_exceptions=0.0, refills=2)
        config = RunConfig(server=("x",), rollout=rollout)
        self.curriculum = Curriculum(SCENARIOS, 0, state, CurriculumConfig(solved_share=1.0))
        progress = Progress(steps=1, console=Console(quiet=True))
        self.collector = Collector(config, self.curriculum, cast(Any, player), Scoring(JudgeConfig(), {}), progress)
        self.pipeline = Pipeline(self.collector, staleness=staleness, last=last)
        self.learned: list[RolloutBatch] = []

    async def learn(self, first: int, last: int) -> None:
        """Take the learner's steps, then end the session while batches are in flight."""
        for step in range(first, last):
            self.pipeline.begin(step)
            batch = await self.pipeline.next()
            assert batch.number == step + 1
            await anyio.sleep(0.01)
            self.curriculum.learned(batch.groups(), batch.number)
            self.pipeline.learned()
            self.learned.append(batch)


@pytest.mark.parametrize("staleness", [0, 1, 2])
async def test_a_batch_begins_when_the_learner_is_close_enough(staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Played(), staleness=staleness, last=6)
    taken: dict[int, int] = {}
    take = session.collector.take

    def noted(number: int, tokens: float) -> RolloutBatch:
        taken[number] = len(session.learned)
        return take(number, tokens)

    monkeypatch.setattr(session.collector, "take", noted)
    async with session.pipeline.open():
        await session.learn(0, 6)
    assert taken == {number: max(0, number - 1 - staleness) for number in range(1, 7)}
    assert session.pipeline.pending() == {}


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("moment", [0.0, 0.004, 0.012])
async def test_restored_batches_skip_and_repeat_no_scenario(staleness: int, moment: float) -> None:
    before = Played()
    session = Session(before, staleness=staleness, last=9)
    with anyio.CancelScope() as interrupted:
        async with session.pipeline.open():
            await session.learn(0, 3)
            session.pipeline.begin(3)
            await anyio.sleep(moment)
            interrupted.cancel()
            await anyio.sleep_forever()
    assert before.now == 0
    content = session.pipeline.pending()[PENDING]
    assert b"never written" not in content

    after = Played()
    resumed = Session(after, staleness=staleness, last=9, state=session.curriculum.state)
    resumed.pipeline.restore(content, {scenario.id: scenario for scenario in SCENARIOS})
    finished = [t.seed for batch in resumed.pipeline._batches for group in batch.finished.values() for t in group]
    assert finished or moment < 0.012, "nothing was kept of what had been played"
    async with resumed.pipeline.open():
        await resumed.learn(3, 9)
    assert not set(finished) & set(after.seeds), "a group that was finished was played again"
    batches = [*session.learned, *resumed.learned]
    assert [batch.number for batch in batches] == list(range(1, 10))
    taken = [scenario.id for batch in batches for scenario in batch.scenarios]
    times = [taken.count(scenario.id) for scenario in SCENARIOS]
    assert sum(times) == len(taken) and max(times) - min(times) <= 1
    for batch in batches:
        assert all(group.scenario is scenario for group, scenario in zip(batch.groups(), batch.scenarios, strict=True))
        assert all(len(group) == SIZE for group in batch.groups())


async def test_an_error_in_a_batch_ends_everything_unwrapped() -> None:
    broken: list[str] = []
    player = Played(fails=lambda count: bool(broken))
    session = Session(player, staleness=1, last=5)
    updated = False
    with pytest.raises(ServerFault, match="rollouts failed"):
        async with session.pipeline.open():
            session.pipeline.begin(0)
            await session.pipeline.next()
            session.pipeline.learned()
            session.pipeline.begin(1)
            broken.append("the server")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
                updated = True
            await anyio.sleep_forever()
    assert updated and player.now == 0


async def test_an_error_of_the_learner_is_raised_unwrapped() -> None:
    player = Played()
    session = Session(player, staleness=2, last=5)
    with pytest.raises(CanaryError, match="other parameters"):
        async with session.pipeline.open():
            session.pipeline.begin(0)
            await anyio.sleep(0.002)
            raise CanaryError("The optimiser holds other parameters.")
    assert player.seeds and player.now == 0


async def test_batches_after_the_last_step_wait_for_another_session() -> None:
    session = Session(Played(), staleness=2, last=9)
    with anyio.CancelScope() as interrupted:
        async with session.pipeline.open():
            await session.learn(0, 3)
            session.pipeline.begin(3)
            interrupted.cancel()
            await anyio.sleep_forever()
    content = session.pipeline.pending()[PENDING]
    player = Played()
    shorter = Session(player, staleness=2, last=4, state=session.curriculum.state)
    shorter.pipeline.restore(content, {scenario.id: scenario for scenario in SCENARIOS})
    async with shorter.pipeline.open():
        await shorter.learn(3, 4)
    assert content.splitlines()[1:] == shorter.pipeline.pending()[PENDING].splitlines()


async def test_groups_too_old_for_a_new_setting_are_replayed() -> None:
    def line(number: int, version: int, names: list[str]) -> str:
        segment = Segment(tokens=[1, 2], sampled=[False, True], logprobs=[0.0, -1.0], versions=[-1, version])
        groups = [
            {"scenario": scenario.model_dump(mode="json"), "trajectories": [trajectory.model_dump(mode="json")]}
            for scenario in SCENARIOS
            if scenario.id in names
            for trajectory in [Trajectory(scenario_id=scenario.id, segments=[segment], reward=1.0, success=True)]
        ]
        entry = {"batch": number, "began_with": len(names), "scenarios": names, "groups": groups}
        return json.dumps(entry) + "\n"

    content = (line(4, 3, ["s1", "s2"]) + line(5, 3, ["s3", "s4"])).encode()
    player = Played()
    session = Session(player, staleness=0, last=5)
    session.pipeline.restore(content, {scenario.id: scenario for scenario in SCENARIOS})
    assert [session.pipeline.overlaps(step) for step in (3, 4, 5)] == [True, True, False]
    async with session.pipeline.open():
        await session.learn(3, 5)
    fourth, fifth = session.learned
    assert [group.scenario.id for group in fourth.groups()][:2] == ["s1", "s2"] and len(fourth.groups()[0]) == 1
    assert [group.scenario.id for group in fifth.groups()][:2] == ["s3", "s4"] and len(fifth.groups()[0]) == SIZE


@pytest.mark.parametrize(
    "content", [b"{", b'{"batch": 1}', b'{"batch":1,"began_with":1,"scenarios":["?"],"groups":[]}']
)
def test_another_runs_batches_are_refused(content: bytes) -> None:
    session = Session(Played(), staleness=1, last=5)
    with pytest.raises(CheckpointError, match="was not written by this run"):
        session.pipeline.restore(content, {scenario.id: scenario for scenario in SCENARIOS})
