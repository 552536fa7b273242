"""The small evaluations between the full ones: they are played, marked and repeatable, and change nothing else."""

from pathlib import Path
from typing import Any

import pytest
from small_run import STEPS, train, weights, without_clock

from mcp_rl.config import RunConfig
from mcp_rl.run_directory import read_history
from mcp_rl.runs.history import History, summary
from mcp_rl.runs.steps.metrics import best_step
from mcp_rl.runs.steps.small_evaluation import SPLIT, choose_subset, steps_between
from mcp_rl.runs.steps.trainer import Trainer
from mcp_rl.scenario import McpScenario, StdioServer

SMALL = ("evaluation.subset=1", "evaluation.subset_every=1")
PLAYED = [1, 2, 3, 5]
"""Steps of small evaluations; the full ones are at 0, 4 and 6."""


@pytest.fixture(scope="module")
def whole(ground: Path) -> Path:
    return train(ground, "small", *SMALL)


def lines_of(run: Path, split: str) -> list[dict[str, Any]]:
    return [line for line in without_clock(run / "history.jsonl") if line["split"] == split]


def test_a_small_evaluation_does_not_change_training(ground: Path, whole: Path) -> None:
    without = train(ground, "without", "evaluation.subset=0")
    for step in (2, 4, 6):
        assert weights(without, step) == weights(whole, step)
    assert lines_of(without, "train") == lines_of(whole, "train")
    assert lines_of(without, SPLIT) == []
    own = [{k: v for k, v in line.items() if not k.startswith("subset_")} for line in lines_of(whole, "val")]
    assert own == lines_of(without, "val")


def test_its_lines_are_marked_and_only_full_evaluations_count(whole: Path) -> None:
    history = read_history(whole)
    found = [line for line in history if line["split"] == SPLIT]
    assert [line["step"] for line in found] == PLAYED
    assert all(line["subset_scenarios"] == 1 and 0 <= line["subset_reward"] <= 1 for line in found)
    assert all("greedy_success" not in line and "success" not in line for line in found)
    assert {point["step"] for point in summary(History.read(whole))["held_out"]} == {0, 4, STEPS}
    assert best_step(history) in (0, 4, STEPS)
    assert [path.stem for path in sorted((whole / "trajectories" / SPLIT).iterdir())] == [f"{n:04d}" for n in PLAYED]


def test_a_full_evaluation_tells_the_same_measure_of_the_same_scenarios(whole: Path) -> None:
    assert [line["step"] for line in read_history(whole) if "subset_reward" in line] == list(range(STEPS + 1))


def test_a_stopped_run_continues_with_the_same_small_evaluations(
    ground: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_step = Trainer._take_step

    async def stopping(trainer: Trainer, batch: Any) -> None:
        if batch.number == 4:
            raise RuntimeError("stopped")
        await take_step(trainer, batch)

    async def nothing(trainer: Trainer) -> None:
        pass

    with monkeypatch.context() as stopped, pytest.raises(RuntimeError, match="stopped"):
        stopped.setattr(Trainer, "_take_step", stopping)
        stopped.setattr(Trainer, "rescue", nothing)
        train(ground, "stopped", *SMALL)
    again = train(ground, "stopped", *SMALL)
    assert weights(again, STEPS) == weights(whole, STEPS)
    assert without_clock(again / "history.jsonl") == without_clock(whole / "history.jsonl")


def test_the_subset_is_fixed_and_in_order() -> None:
    val = [McpScenario(task_description=str(n), server_params=StdioServer(command="x")) for n in range(9)]
    chosen = choose_subset(val, 4, seed=1)
    assert chosen == choose_subset(val, 4, seed=1) == [scenario for scenario in val if scenario in chosen]
    assert len(chosen) == 4 and choose_subset(val, 40, seed=1) == val


def test_few_rollouts_make_small_evaluations_rarer() -> None:
    def steps(scenarios: int = 24, **rollout: Any) -> int:
        return steps_between(RunConfig.model_validate({"server": "x", "rollout": rollout}), scenarios)

    assert steps() == 5 and steps(0) == 0
    assert steps(groups_per_step=4, group_size=8, probes=0) == 15
    assert steps(groups_per_step=2, group_size=4, probes=2) == 120
    every = RunConfig.model_validate({"server": "x", "evaluation": {"subset_every": 2}})
    assert steps_between(every, 24) == 2
