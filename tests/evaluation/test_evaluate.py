"""Evaluation counts successes, leaves faults out, and is the same for the same seed."""

import json
from collections.abc import AsyncIterator
from itertools import combinations
from typing import Any

import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from mcp_rl import gather_trajectory_groups, rollout
from mcp_rl.config import JudgeConfig
from mcp_rl.evaluation.evaluate import EvaluationPlan, evaluate, summarize
from mcp_rl.evaluation.statistics import pass_at_k
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.model import TrainableModel
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rollouts.player import Player
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

CALCULATOR = StdioServer(
    command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")
)
pytestmark = pytest.mark.asyncio(loop_scope="module")


def scenario(a: int) -> McpScenario:
    return McpScenario(
        task_description=f"add {a} and 1",
        server_params=CALCULATOR,
        verifier=Verifier(kind="number", expected=a + 1),
        reference=(ToolCall(tool="add", arguments={"a": a, "b": 1}),),
    )


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(weights_path()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sessions() -> AsyncIterator[Sessions]:
    async with Sessions() as sessions:
        yield sessions


def adder(text: str, seed: int, turn: int) -> str:
    """Add 3 and 1 and answer with the result, which is right for one scenario alone."""
    call = json.dumps({"name": "add", "arguments": {"a": 3, "b": 1}})
    return "4" if turn else f"<tool_call>\n{call}\n</tool_call>"


def player(chat: ChatFormat, sessions: Sessions) -> Player:
    scoring = Scoring(JudgeConfig(), load_plugins().verifiers)
    return Player(ScriptedEngine(adder, chat), chat, sessions, finish=scoring.rollout)


async def test_successes_are_counted_by_scenario_kind_and_tool(chat: ChatFormat, sessions: Sessions) -> None:
    scenarios = [scenario(a) for a in (3, 5, 7, 9)]
    result, groups = await evaluate(player(chat, sessions), scenarios, EvaluationPlan(samples=2), step=6)
    assert [len(group) for group in groups] == [3, 3, 3, 3]
    assert result.greedy is not None and result.sampled is not None
    assert (result.step, result.scenarios) == (6, 4)
    assert (result.greedy.success, result.sampled.success, result.greedy.reward) == (0.25, 0.25, 0.25)
    assert (result.greedy.rollouts, result.sampled.rollouts, result.sampled.turns) == (4, 8, 2.0)
    assert result.greedy.ci95 is not None and result.greedy.ci95[0] < 0.25 < result.greedy.ci95[1]
    assert result.sampled.pass_at == {1: 0.25, 2: 0.25}
    assert result.sampled.pass_hat == {1: 0.25, 2: 0.25}
    low, high = result.greedy.ci95
    assert result.by_tool == {"add": {"scenarios": 4, "success": 0.25, "low": low, "high": high}}
    assert result.by_steps["1"]["success"] == 0.25 and result.by_difficulty == {}
    assert result.outcomes[scenarios[0].id] == [1.0, 1.0, 1.0]
    assert result.headline is result.greedy


async def test_evaluations_with_one_seed_are_paired(chat: ChatFormat, sessions: Sessions) -> None:
    async def seeds(seed: int) -> list[int]:
        _, groups = await evaluate(
            player(chat, sessions), [scenario(3), scenario(5)], EvaluationPlan(samples=2, seed=seed)
        )
        return [trajectory.seed for group in groups for trajectory in group]

    assert await seeds(1) == await seeds(1)
    assert len({*await seeds(1), *await seeds(2)}) == 12


async def test_faults_are_in_no_mean(chat: ChatFormat) -> None:
    def ended(success: bool | None, reason: StopReason = StopReason.ANSWERED) -> Trajectory:
        reward = None if success is None else float(success)
        return Trajectory(scenario_id="x", success=success, reward=reward, turns=2, stop_reason=reason)

    fault = ended(None, StopReason.FAULT)
    groups = [
        TrajectoryGroup(scenario=scenario(1), trajectories=[ended(True), ended(True), fault]),
        TrajectoryGroup(scenario=scenario(2), trajectories=[fault, ended(False), ended(False)]),
    ]
    result = summarize(groups, step=0, greedy=True)
    assert result.greedy is not None and result.sampled is not None
    assert (result.greedy.success, result.greedy.rollouts, result.greedy.faults) == (1.0, 2, 1)
    assert result.sampled.success == 0.5
    assert result.sampled.stop_reasons == {"answered": 3, "fault": 1}


async def test_without_any_verdict_there_is_no_success() -> None:
    groups = [TrajectoryGroup(scenario=scenario(1), trajectories=[Trajectory(scenario_id="x", reward=0.7)])]
    result = summarize(groups, step=0, greedy=True)
    assert result.summary() == {"success": None, "ci95": None, "reward": 0.7}


@pytest.mark.parametrize("n", [1, 4, 6])
async def test_pass_at_k_is_the_share_of_draws_with_a_success(n: int) -> None:
    for c in range(n + 1):
        outcomes = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            draws = list(combinations(outcomes, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


class ScriptedBackend:
    """The parts of a backend that a rollout needs."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self.engine = ScriptedEngine(adder, chat)

    async def register(self, model: Any) -> None:
        pass


async def test_public_rollouts_of_a_group_share_one_server(chat: ChatFormat, tmp_path: Any) -> None:
    model = TrainableModel[None]("calc", "demo", "mcp-rl/tiny", base_path=tmp_path)
    await model.register(ScriptedBackend(chat))  # type: ignore[arg-type]
    scoring = Scoring(JudgeConfig(), load_plugins().verifiers)

    async def score(group: TrajectoryGroup) -> TrajectoryGroup:
        for trajectory in group:
            scoring.rollout(group.scenario, trajectory)
        return group

    groups = await gather_trajectory_groups(
        (TrajectoryGroup(rollout(model, s) for _ in range(3)) for s in (scenario(3), scenario(5))), after_each=score
    )
    assert [group.rewards for group in groups] == [[1.0] * 3, [0.0] * 3]
    assert len({trajectory.seed for group in groups for trajectory in group}) == 6
    async with Sessions():
        alone = await rollout(model, scenario(3), seed=7)
    assert (alone.seed, alone.final_answer) == (7, "4")


async def test_a_public_rollout_without_a_server_is_a_fault(chat: ChatFormat, tmp_path: Any) -> None:
    model = TrainableModel[None]("calc", "demo", "mcp-rl/tiny", base_path=tmp_path)
    await model.register(ScriptedBackend(chat))  # type: ignore[arg-type]
    nowhere = McpScenario(task_description="x", server_params=StdioServer(command="no-such-program"))
    trajectory = await rollout(model, nowhere)
    assert trajectory.stop_reason is StopReason.FAULT
    assert "no-such-program" in (trajectory.fault or "")
