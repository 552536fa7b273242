"""How a step spends its rollouts."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from mcp_rl.config import JudgeConfig, RunConfig
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.run_directory import RunState
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.tracking.progress import Progress
from mcp_rl.training.trainer import Trainer
from mcp_rl.trajectory import Trajectory

SERVER = StdioServer(command="true")
SCENARIOS = [McpScenario(task_description=f"Task {i}", server_params=SERVER, id=f"s{i}") for i in range(6)]


class Played:
    """Stands in for the policy: even scenarios succeed, of the others every third rollout does."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.count: Counter[str] = Counter()

    async def play(self, scenario: McpScenario, seed: int) -> Trajectory:
        self.seeds.append(seed)
        self.count[scenario.id] += 1
        solved = int(scenario.id[1:]) % 2 == 0 or self.count[scenario.id] % 3 == 0
        return Trajectory(scenario_id=scenario.id, seed=seed, success=solved, reward=float(solved))


def trainer(player: Played, judge: JudgeConfig, plugins: Sequence[Path] = (), **rollout: int) -> Trainer:
    config = RunConfig(server="x", rollout={"groups_per_step": 6, **rollout}, judge=judge)
    console = Console(quiet=True)
    nothing = cast(Any, SimpleNamespace())
    return Trainer(
        config, nothing, RunState(), load_plugins(plugins), nothing, nothing, cast(Any, player), Scoring(judge, {}),
        SCENARIOS, [], Progress(steps=1, console=console),
    )  # fmt: skip


async def test_a_scenario_that_its_first_rollouts_solve_gets_no_more() -> None:
    player = Played()
    groups = await trainer(player, JudgeConfig(), group_size=8, probes=3)._collect(1)
    assert [len(group) for group in groups] == [8 if int(g.scenario.id[1:]) % 2 else 3 for g in groups]
    assert len(set(player.seeds)) == len(player.seeds) == 3 * 8 + 3 * 3


@pytest.mark.parametrize("probes", [0, 8, 20])
async def test_without_probes_every_group_is_whole(probes: int) -> None:
    groups = await trainer(Played(), JudgeConfig(), group_size=8, probes=probes)._collect(1)
    assert [len(group) for group in groups] == [8] * 6


OBSERVER = """
from mcp_rl.plugins.hookspecs import hookimpl

seen = []

@hookimpl
def rollout_finished(scenario, trajectory):
    seen.append((scenario.id, trajectory.scenario_id, trajectory.reward))
"""


async def test_observers_see_every_rollout_with_its_reward(tmp_path: Path) -> None:
    (tmp_path / "watching.py").write_text(OBSERVER)
    made = trainer(Played(), JudgeConfig(), [tmp_path / "watching.py"], group_size=4, probes=2)
    groups = await made._collect(1)
    seen = sys.modules["mcp_rl_plugin_watching"].seen
    assert seen == [(g.scenario.id, t.scenario_id, t.reward) for g in groups for t in g]
    assert len(seen) > 12


async def test_a_judge_ranks_whole_groups() -> None:
    made = trainer(Played(), JudgeConfig(model="openai/any"), group_size=4, probes=2)
    assert made._probes == 4
