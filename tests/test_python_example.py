"""The program in docs/api.md runs as it stands there, and the public scorers need no registry."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_rl
from mcp_rl.errors import NothingLearned, ScenarioError
from mcp_rl.scenario import McpScenario, StdioServer, Verifier
from mcp_rl.trajectory import CallRecord, Segment, Trajectory, TrajectoryGroup

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"


def test_the_python_example_trains_two_steps(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "example.py").write_text(program)
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^step (\d): mean reward 0\.\d\d$", done.stdout, flags=re.MULTILINE) == ["1", "2"]
    run = tmp_path / ".mcp_rl" / "demo" / "models" / "calc-001"
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["trained_tokens"] > 0 for line in lines)
    assert (run / "checkpoints" / "0002" / "adapter_model.safetensors").is_file()


def make_scenario(kind: str = "number") -> McpScenario:
    return McpScenario(
        task_description="What is 1 plus 2?",
        server_params=StdioServer(command="x"),
        verifier=Verifier(kind=kind, expected=3),
    )


def make_trajectory(answer: str) -> Trajectory:
    messages = [{"role": "assistant", "content": answer}]
    calls = [CallRecord(turn=0, name="add", tool="add", result="3")]
    return Trajectory(scenario_id="s", messages=messages, calls=calls)


async def test_verify_knows_the_built_in_verifiers() -> None:
    right, wrong = make_trajectory("It is 3."), make_trajectory("It is 4.")
    assert mcp_rl.verify(right, make_scenario()) is None
    assert (right.reward, right.success, right.metrics["verifier"]) == (1.0, True, 1.0)
    group = TrajectoryGroup(scenario=make_scenario(), trajectories=[right, wrong])
    assert await mcp_rl.verify_group(group) is group
    assert group.rewards == [1.0, 0.0]


async def test_a_loop_that_records_no_calls_is_told() -> None:
    trajectory = make_trajectory("It is 3.")
    trajectory.messages.insert(0, {"role": "tool", "content": "3"})
    group = TrajectoryGroup(scenario=make_scenario(), trajectories=[trajectory])
    assert (await mcp_rl.verify_group(group)).rewards == [1.0]
    trajectory.calls.clear()
    with pytest.raises(ScenarioError, match="has tool results among its messages, and no calls: add a CallRecord"):
        await mcp_rl.verify_group(group)


async def test_verify_group_awaits_verifiers_of_ones_own() -> None:
    async def half(trajectory: Trajectory, scenario: McpScenario) -> float:
        return 0.5

    group = TrajectoryGroup(scenario=make_scenario("half"), trajectories=[make_trajectory("3")])
    with pytest.raises(ScenarioError, match="unknown verifier 'half'"):
        await mcp_rl.verify_group(group)
    await mcp_rl.verify_group(group, {"half": half})
    assert group.rewards == [0.5]


async def test_a_step_that_taught_nothing_warns(tmp_path: Path) -> None:
    segment = Segment()
    segment.observe([20, 21])
    segment.act([30, 31], [-1.0, -1.0], 0)
    model = mcp_rl.TrainableModel("calc-001", "demo", "mcp-rl/tiny", base_path=tmp_path)
    alike = [Trajectory(scenario_id="s", segments=[segment], reward=0.0) for _ in range(2)]
    async with mcp_rl.LocalBackend(in_process=True) as backend:
        await model.register(backend)
        with pytest.warns(
            NothingLearned, match=r"Step 1 taught nothing: in none of its 1 groups .* \(0\)\. Take tasks"
        ):
            result = await backend.train(model, [TrajectoryGroup(scenario=make_scenario(), trajectories=alike)])
    assert result.metrics["trajectories_trained"] == 0
