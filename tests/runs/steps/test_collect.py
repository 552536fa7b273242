"""A step's rollouts, and the scenarios that replace groups without variance."""

import random
from collections import Counter
from typing import Any, cast

import anyio
import pytest
from rich.console import Console

from mcp_rl.config import JudgeConfig, RolloutConfig, RunConfig
from mcp_rl.evaluation.progress import Progress
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.runs.steps.collect import Collector, RolloutBatch
from mcp_rl.runs.steps.curriculum import Curriculum
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Trajectory

SERVER = StdioServer(command="true")
SCENARIOS = [McpScenario(task_description=f"Task {i}", server_params=SERVER, id=f"s{i}") for i in range(30)]


class Played:
    """A stand-in for the policy: even scenarios succeed, and every third rollout of the others."""

    def __init__(self, waits: random.Random | None = None) -> None:
        self.waits = waits
        self.seeds: list[int] = []
        self.count: Counter[str] = Counter()

    async def play(self, scenario: McpScenario, seed: int) -> Trajectory:
        self.seeds.append(seed)
        if self.waits:
            await anyio.sleep(self.waits.random() / 200)
        self.count[scenario.id] += 1
        solved = int(scenario.id[1:]) % 2 == 0 or self.count[scenario.id] % 3 == 0
        return Trajectory(scenario_id=scenario.id, seed=seed, success=solved, reward=float(solved))


def collector(player: Played, judge: JudgeConfig | None = None, scenarios: int = 6, **rollout: int | None) -> Collector:
    judge = judge or JudgeConfig()
    limits = RolloutConfig.model_validate({"groups_per_step": 6, **rollout})
    config = RunConfig(server=("x",), rollout=limits, judge=judge)
    progress = Progress(steps=1, console=Console(quiet=True))
    curriculum = Curriculum(SCENARIOS[:scenarios], config.seed)
    return Collector(config, curriculum, cast(Any, player), Scoring(judge, {}), progress)


async def collect(made: Collector) -> RolloutBatch:
    batch = made.take(1, 0.0)
    await made.play(batch)
    return batch


@pytest.mark.parametrize(
    ("limit", "tokens", "expected"),
    [(1600, 20.0, 5), (1600, 16.0, 6), (1600, 400.0, 4), (1600, 0.0, 6), (None, 400.0, 6)],
)
def test_a_step_of_long_episodes_takes_fewer_scenarios(limit: int | None, tokens: float, expected: int) -> None:
    made = collector(Played(), scenarios=30, group_size=16, step_tokens=limit)
    assert len(made.take(1, tokens).scenarios) == expected


async def test_a_scenario_solved_at_once_gets_no_more_rollouts() -> None:
    player = Played()
    groups = (await collect(collector(player, group_size=8, probes=3))).groups()
    assert [len(group) for group in groups] == [8 if int(g.scenario.id[1:]) % 2 else 3 for g in groups]
    assert len(set(player.seeds)) == len(player.seeds) == 3 * 8 + 3 * 3


@pytest.mark.parametrize("probes", [0, 8, 20])
async def test_without_probes_every_group_is_whole(probes: int) -> None:
    batch = await collect(collector(Played(), group_size=8, probes=probes))
    assert [len(group) for group in batch.groups()] == [8] * 6


async def test_a_judge_ranks_whole_groups() -> None:
    assert collector(Played(), JudgeConfig(model="openai/any"), group_size=4, probes=2).probes == 4


async def test_each_group_without_variance_is_refilled() -> None:
    batch = await collect(collector(Played(), scenarios=30, refills=20, group_size=8, probes=3))
    useful = [group for group in batch.groups() if group.has_variance]
    assert len(useful) == 6 and batch.refilled == len(batch.groups()) - 6 == batch.alike > 0
    assert batch.metrics(refills=True) == {"groups_refilled": batch.refilled, "refills_short": 0}
    assert len({group.scenario.id for group in batch.groups()}) == len(batch.groups())


async def test_refills_end_at_their_limit_which_is_counted() -> None:
    batch = await collect(collector(Played(), scenarios=30, refills=2, group_size=8, probes=3))
    assert len(batch.groups()) == 8 and batch.alike > 2
    assert batch.metrics(refills=True) == {"groups_refilled": 2, "refills_short": batch.alike - 2}


async def test_refills_end_when_every_scenario_is_in_the_batch() -> None:
    batch = await collect(collector(Played(), scenarios=8, refills=20, group_size=8, probes=3))
    assert len(batch.groups()) == 8
    assert batch.metrics(refills=True) == {"groups_refilled": 2, "refills_short": batch.alike - 2}


async def test_without_refills_no_group_counts_as_missing() -> None:
    batch = await collect(collector(Played(), scenarios=30, group_size=8, probes=3))
    assert len(batch.groups()) == 6
    assert batch.metrics(refills=False) == {"groups_refilled": 0, "refills_short": 0}


async def test_refills_do_not_depend_on_finishing_order() -> None:
    async def played(waits: random.Random | None) -> list[str]:
        made = collector(Played(waits), scenarios=30, refills=9, group_size=8, probes=3)
        return [group.scenario.id for group in (await collect(made)).groups()]

    first = await played(None)
    for order in range(5):
        assert await played(random.Random(order)) == first


async def test_an_epoch_with_refills_has_every_scenario_once() -> None:
    made = collector(Played(), scenarios=30, refills=3, group_size=2, probes=2)
    taken: list[str] = []
    while len(taken) < 30:
        batch = await collect(made)
        taken += [group.scenario.id for group in batch.groups()]
    assert len(set(taken[:30])) == 30
