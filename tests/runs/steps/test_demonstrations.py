"""A run's first steps imitate reference solutions: real server, engine, learner and checkpoints."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from mcp_rl.config import RunConfig
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.evaluate import EvaluationResult
from mcp_rl.runs.replay import replay
from mcp_rl.runs.steps.demonstrations import steps_of_imitation
from mcp_rl.runs.trackers.spans import traces
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, ServerGroup, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.trajectory import TrajectoryGroup


def task(number: int, *, reference: bool = True, level: str = "told", max_turns: int = 5) -> McpScenario:
    return McpScenario(
        task_description=f"Which number is 7 above {number}?",
        server_params=StdioServer(command="server"),
        verifier=Verifier(kind="number", expected=number + 7),
        max_turns=max_turns,
        reference=(ToolCall(tool="add", arguments={"a": number, "b": 7}),) if reference else (),
        split="train" if number % 2 else "val",
        level=level,  # type: ignore[arg-type]
    )


def settings(folder: Path, name: str, *, steps: int, sft_steps: int | str = 2, **more: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "server": "mcp_calculator",
            "name": name,
            "output_dir": folder,
            "steps": steps,
            "scenarios": {"file": folder / "tasks.jsonl"},
            "rollout": {"groups_per_step": 2, "group_size": 3},
            "train": {"sft_steps": sft_steps, "keep_checkpoints": 9, "checkpoint_every": 1},
            "evaluation": {"samples": 1, "greedy": False, "subset": 0},
            **more,
        }
    )


async def history_of(config: RunConfig, output: StringIO | None = None) -> list[dict[str, Any]]:
    await run_training(config, console=Console(file=output or StringIO(), width=300))
    lines = [json.loads(line) for line in (config.run_dir / "history.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == "train"]


def episodes(config: RunConfig, step: int) -> list[TrajectoryGroup]:
    lines = (config.run_dir / f"trajectories/train/{step:04d}.jsonl").read_text().splitlines()
    return [TrajectoryGroup.model_validate_json(line) for line in lines]


def when_played(config: RunConfig, step: int) -> dict[str, Any]:
    """Return when each of a step's episodes began and ended."""
    return {one.scenario.id: [episode.unix_seconds for episode in one] for one in episodes(config, step)}


def weights(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"{step:04d}" / "adapter_model.safetensors").read_bytes()


async def test_first_steps_imitate_and_a_resumed_run_gets_the_same_weights(tmp_path: Path) -> None:
    tasks = [task(number) for number in range(10, 24)]
    too_long, unsolved = task(41, max_turns=1), task(43, reference=False)
    (tmp_path / "tasks.jsonl").write_text(scenario_lines([*tasks, too_long, unsolved]))
    said, whole = StringIO(), settings(tmp_path, "whole", steps=6)
    history = await history_of(whole, said)
    assert "The first 2 steps imitate reference solutions" in said.getvalue()
    said_at_the_end = (
        "2 of 6 steps imitated reference solutions, the others learned from rewards, and imitated what they"
    )
    assert said_at_the_end in (whole.run_dir / "report.json").read_text()
    imitated, rewarded = history[:2], history[2:]
    assert [line["demonstrations"] for line in imitated] == [7, 7]
    assert imitated[1]["imitation_loss"] < imitated[0]["imitation_loss"]
    assert not any("success" in line or "reward" in line for line in imitated)
    assert all("success" in line and "demonstrations" not in line for line in rewarded)
    shown_at = {}
    for line in rewarded:
        groups = episodes(whole, line["step"])
        played, shown = ([one for one in groups if one.demonstrates is is_shown] for is_shown in (False, True))
        failed = [one.scenario.id for one in played if not any(trajectory.success for trajectory in one)]
        can_be_shown = [one for one in failed if one not in (too_long.id, unsolved.id)]
        assert [one.scenario.id for one in shown] == can_be_shown, "what no rollout solved is imitated"
        assert line.get("imitated", 0) == len(shown) and line["groups"] == len(played)
        shown_at[line["step"]] = len(shown)
    assert sum(shown_at.values()) > 0
    groups = episodes(whole, 1)
    assert all(group.demonstrates and [one.success for one in group] == [True] for group in groups)
    [call] = groups[0].trajectories[0].calls
    assert call.tool == "add" and call.sent and not call.is_error
    assert when_played(whole, 2) == when_played(whole, 1), "a solution is played once"
    traced = [len(traces(whole, "train", step, {}, episodes(whole, step))) for step in (1, 2)]
    assert traced == [8, 0], "an episode has a trace in the step that played it"
    broken = settings(tmp_path, "broken", steps=1)
    await history_of(broken)
    await history_of(settings(tmp_path, "broken", steps=4))
    assert when_played(broken, 2) == when_played(broken, 1), "in a resumed run too"
    await history_of(settings(tmp_path, "broken", steps=6))
    assert weights(broken.run_dir, 6) == weights(whole.run_dir, 6)
    again = await anyio.to_thread.run_sync(lambda: replay(whole.run_dir, console=Console(quiet=True)))
    assert (again.identical, again.differing, again.first_other_step) == ([1, 2, 3, 4, 5, 6], [], None)


async def test_where_no_solution_succeeds_rewards_go_on_and_a_wish_is_refused(tmp_path: Path) -> None:
    too_long = [task(number, max_turns=1) for number in range(10, 32)]
    (tmp_path / "tasks.jsonl").write_text(scenario_lines(too_long))
    said, config = StringIO(), settings(tmp_path, "open", steps=3, sft_steps="auto")
    first, *_ = await history_of(config, said)
    assert "No reference solution of this step succeeds, so there is nothing to imitate (the first: " in said.getvalue()
    assert "demonstrations" not in first and json.loads((config.run_dir / "state.json").read_text())["sft_steps"] == 0
    with pytest.raises(ConfigError, match=r"set train\.sft_steps=0, or look at them"):
        await history_of(settings(tmp_path, "wished", steps=3))


@pytest.mark.parametrize(
    ("base", "sft_steps", "solved", "steps"),
    [
        ("mcp-rl/tiny", "auto", 8, 15),
        ("mcp-rl/tiny", "auto", 9, 0),
        ("some/model", "auto", 0, 0),
        ("some/model", 4, 3, 4),
        ("mcp-rl/tiny", 0, 0, 0),
    ],
)
def test_steps_of_imitation(base: str, sft_steps: int | str, solved: int, steps: int) -> None:
    train, val = [task(number) for number in range(1, 41, 2)], [task(number) for number in range(0, 24, 2)]
    config = RunConfig.model_validate(
        {"server": "any", "base_model": base, "steps": 30, "train": {"sft_steps": sft_steps}}
    )
    outcomes = {one.id: [float(number < solved)] for number, one in enumerate(val)}
    before = EvaluationResult(step=0, scenarios=12, greedy=None, sampled=None, by_tool={}, outcomes=outcomes)
    assert steps_of_imitation(config, before, train, val) == (steps, train if steps or sft_steps == 0 else [])


def test_a_level_that_is_seldom_solved_makes_all_be_imitated() -> None:
    train = [task(number, level="spelled" if number % 3 else "told") for number in range(1, 41, 2)]
    val = [task(number, level="spelled" if number % 3 else "told") for number in range(0, 80, 2)]
    outcomes = {one.id: [float(one.level == "spelled")] for one in val}
    before = EvaluationResult(step=0, scenarios=40, greedy=None, sampled=None, by_tool={}, outcomes=outcomes)
    config = RunConfig(server="any", steps=90)
    assert steps_of_imitation(config, before, train, val) == (30, train)  # the level is never solved
    some = {one.id: [float(one.level == "spelled" or number % 5 == 0)] for number, one in enumerate(val)}
    seldom = EvaluationResult(step=0, scenarios=40, greedy=None, sampled=None, by_tool={}, outcomes=some)
    assert steps_of_imitation(config, seldom, train, val) == (20, train)
    without = [task(number, reference=False) for number in (1, 3)]
    said = [
        one.model_copy(update={"server_params": ServerGroup(servers={}), "reference_answer": "8"}) for one in without
    ]
    assert steps_of_imitation(config, before, said, val) == (30, said)  # without a server an answer is a solution
    assert steps_of_imitation(config, before, without, val) == (0, [])
    config = RunConfig(server="any", steps=90, train={"sft_steps": 2})
    with pytest.raises(ConfigError, match="No training scenario has a reference solution"):
        steps_of_imitation(config, before, without, val)
