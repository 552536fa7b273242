"""A run's steps one after another and overlapped: real servers, engine, learner and checkpoints."""

import json
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from mcp_rl.config import RunConfig
from mcp_rl.errors import RunDirectoryError
from mcp_rl.runs.steps.metrics import best_step
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.trajectory import TrajectoryGroup
from tests.random_base import write_smallest_base

SLOW = Path(__file__).parents[2] / "slow_calculator.py"
PLUGIN = """
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.verdict import Verdict

finished = []

def even(trajectory, scenario):
    tokens = [t for s in trajectory.segments for t, sampled in zip(s.tokens, s.sampled) if sampled]
    return Verdict(sum(token % 2 == 0 for token in tokens) / max(1, len(tokens)), "share of even tokens")

@hookimpl
def register_verifiers(register):
    register("even", even)

@hookimpl
def rollout_finished(scenario, trajectory):
    finished.append((scenario.id, trajectory.scenario_id, trajectory.reward))
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model of random weights, a reward that it can learn in a few steps, and scenarios."""
    folder = tmp_path_factory.mktemp("ground")
    write_smallest_base(folder / "base")
    (folder / "even.py").write_text(PLUGIN)
    for kind in ("even", "number"):
        (folder / f"{kind}.jsonl").write_text(scenario_lines(scenarios(kind)))
    return folder


def scenarios(kind: str) -> Iterator[McpScenario]:
    for i in range(0, 140, 10):  # no result is another task's value
        yield McpScenario(
            task_description=f"add {i} and 1",
            server_params=StdioServer(command="server"),
            verifier=Verifier(kind=kind, expected=i + 1 if kind == "number" else None),
            reference=(ToolCall(tool="add", arguments={"a": i, "b": 1}),),
            split="val" if i < 20 else "train",
        )


def settings(ground: Path, name: str, *, kind: str = "even", **more: Any) -> RunConfig:
    given: dict[str, Any] = {
        "server": str(SLOW) if kind == "number" else "mcp_calculator",
        "transport": "stdio",
        "name": name,
        "output_dir": ground,
        "scenarios": {"file": ground / f"{kind}.jsonl"},
        "evaluation": {"samples": 1, "greedy": False},
        **({} if kind == "number" else {"base_model": str(ground / "base"), "plugins": [str(ground / "even.py")]}),
    }
    return RunConfig.model_validate({**given, **more})


async def history_of(config: RunConfig, output: StringIO | None = None) -> list[dict[str, Any]]:
    """Play a run and return the history of its training steps."""
    await run_training(config, console=Console(file=output or StringIO(), width=200))
    lines = [json.loads(line) for line in (config.run_dir / "history.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == "train"]


def groups_of(config: RunConfig, split: str, step: int) -> list[TrajectoryGroup]:
    path = config.run_dir / "trajectories" / split / f"{step:04d}.jsonl"
    return [TrajectoryGroup.model_validate_json(line) for line in path.read_text().splitlines()]


def versions_of(groups: list[TrajectoryGroup]) -> set[int]:
    return {v for group in groups for t in group for segment in t.segments for v in segment.versions if v >= 0}


QUICK = {"groups_per_step": 3, "group_size": 6, "max_turn_tokens": 12, "max_tokens": 24}


NAMES = {
    "logprob_difference_mean", "logprob_difference_max", "ratio_mean", "ratio_max", "ess", "clip_share", "entropy",
    "grad_norm", "reward", "reward_std_dev", "exception_rate", "groups_dropped", "groups_refilled",
    "stop_max_turn_tokens", "prompt_tokens", "sampled_tokens", "forward_tokens", "unshared_tokens", "saved_share",
    "cached_tokens", "sampling_seconds", "tools_seconds", "judging_seconds", "updating_seconds", "saving_seconds",
    "overhead_seconds", "sampling_time_share", "updating_time_share", "overhead_time_share", "peak_rss_mb",
}  # fmt: skip


@pytest.mark.parametrize("staleness", [1, 2])
async def test_overlapping_rollouts_learn_and_counts_add_up(ground: Path, staleness: int) -> None:
    steps = 5
    config = settings(
        ground,
        f"overlap-{staleness}",
        kind="number",
        server="mcp_calculator",
        steps=steps,
        rollout={"groups_per_step": 4, "group_size": 8, "probes": 0},
        train={"max_staleness": staleness, "keep_checkpoints": 1},
        evaluation={"samples": 2, "greedy": False, "every": 2},
    )
    output = StringIO()
    history = await history_of(config, output)
    assert [line["step"] for line in history] == list(range(1, steps + 1))
    assert history[-1]["success"] > history[0]["success"] + 0.15, [line["success"] for line in history]
    for line in history:
        groups = groups_of(config, "train", line["step"])
        versions = versions_of(groups)
        assert max(0, line["step"] - 1 - staleness) <= min(versions) and max(versions) <= line["step"] - 1
        assert line["rollouts"] == sum(map(len, groups)) == 4 * 8
        assert line["trajectories_trained"] + line["trajectories_masked"] == line["rollouts"]
        assert line.get("staleness_max", 0) <= staleness and line["trajectories_stale"] == 0
    assert max(line.get("staleness_max", 0) for line in history) > 0, "nothing overlapped"
    for step in (0, 2, 4, steps):
        assert versions_of(groups_of(config, "val", step)) == {step}, "an evaluation is of one policy"
    lines = [json.loads(line) for line in (config.run_dir / "history.jsonl").read_text().splitlines()]
    kept = {int(path.name) for path in (config.run_dir / "checkpoints").iterdir() if path.name.isdigit()}
    assert kept == {steps, best_step(lines)}, "the newest checkpoint and the best one are kept"
    assert "sampling" in output.getvalue().split(f"step 2/{steps}")[1].splitlines()[0]


async def test_a_step_is_reported_and_observers_see_every_rollout(ground: Path) -> None:
    learned = {"learning_rate": 1e-2, "truncated": "learn"}
    config = settings(ground, "observed", steps=2, rollout=QUICK, train=learned)
    for line in await history_of(config):
        assert set(line) >= NAMES, NAMES - set(line)
        parts = sum(line[f"{kind}_seconds"] for kind in ("sampling", "tools", "judging", "updating", "saving"))
        assert parts + line["overhead_seconds"] >= line["step_seconds"] - 1e-6
        assert line["overhead_seconds"] <= line["step_seconds"]
    groups = [group for step in (1, 2) for group in groups_of(config, "train", step)]
    seen = sys.modules["mcp_rl_plugin_even"].finished
    assert seen == [(g.scenario.id, t.scenario_id, t.reward) for g in groups for t in g]


@pytest.mark.parametrize("staleness", [0, 1])
async def test_the_next_batch_plays_while_tools_are_slow(ground: Path, staleness: int) -> None:
    log = ground / f"slow-{staleness}.calls"
    config = settings(
        ground,
        f"slow-{staleness}",
        kind="number",
        server=f"{sys.executable} {SLOW} {log}",
        steps=4,
        tools={"sandbox": "off"},  # its log is read here
        rollout={"groups_per_step": 3, "group_size": 4, "probes": 0},
        train={"max_staleness": staleness, "learning_rate": 1e-5},
    )
    await history_of(config)
    step_of = {
        float(group.scenario.reference[0].arguments["a"]): step
        for step in range(1, 5)
        for group in groups_of(config, "train", step)
    }
    calls: dict[int, list[tuple[float, float]]] = {step: [] for step in range(1, 5)}
    for first, came, went in map(json.loads, log.read_text().splitlines()):
        if first in step_of:
            calls[step_of[first]].append((came, went))
    assert len(step_of) == 12 and all(calls.values()), "each scenario came once, and each step called the tool"
    overlapping = [step for step in (1, 2, 3) if min(calls[step + 1])[0] < max(went for _, went in calls[step])]
    assert bool(overlapping) == bool(staleness), calls


async def test_a_lost_state_does_not_make_the_policy_the_base(ground: Path) -> None:
    config = settings(ground, "stateless", steps=2, rollout=QUICK)
    await history_of(config)
    state = config.run_dir / "state.json"
    before = json.loads(state.read_text())["before"]
    state.unlink()
    await history_of(config)
    assert json.loads(state.read_text())["before"] == before
    (config.run_dir / "model.json").unlink()
    with pytest.raises(RunDirectoryError, match=r"model.json is gone: put back a good copy"):
        await history_of(config)


async def test_an_interrupted_run_restores_its_batches(ground: Path) -> None:
    """Cancel in the middle of a step, as Ctrl-C does; every scenario comes once before any comes again."""
    config = settings(ground, "resumed", steps=6, rollout=QUICK, train={"max_staleness": 2, "checkpoint_every": 1})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(history_of, config)
        while not (config.run_dir / "trajectories/train/0002.jsonl").exists():  # noqa: ASYNC110  # a file has no event
            await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    step = json.loads((config.run_dir / "state.json").read_text())["step"]
    pending = (config.run_dir / f"checkpoints/{step:04d}/pending.jsonl").read_text().splitlines()
    assert step >= 2 and [json.loads(line)["batch"] for line in pending] == [step + 1, step + 2]
    history = await history_of(config)
    assert [line["step"] for line in history] == list(range(1, 7))
    taken = [group.scenario.id for step in range(1, 7) for group in groups_of(config, "train", step)]
    assert [json.loads(line)["scenarios"] for line in pending] == [
        taken[3 * (step + ahead) : 3 * (step + ahead + 1)] for ahead in (0, 1)
    ]
    assert len(set(taken[:12])) == 12
