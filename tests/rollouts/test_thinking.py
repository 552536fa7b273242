"""A thinking model's rollouts, from both sides: a thought is no answer, and no call in it is executed."""

import pytest
from transformers import AutoTokenizer

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rewards.verifier import verify
from mcp_rl.rollouts.rollout import play
from mcp_rl.rollouts.speaker import Limits, PolicySetting
from mcp_rl.scenario import McpScenario, Verifier
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import StopReason, Trajectory
from tests.rollouts.conftest import CALCULATOR
from tests.rollouts.test_rollout import call, turns

TASK = McpScenario(
    task_description="What is 6 times 7?", server_params=CALCULATOR, verifier=Verifier(kind="number", expected=42)
)
LONG = "Is it 41 or 43? " * 40
CALLED = f"I ask.</think>\n{call('multiply', a=6, b=7)}"


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    """Return a format whose generation prompt opens a thought."""
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    opening = "'<|im_start|>assistant\\n'"
    before, found, after = tokenizer.chat_template.rpartition(opening)
    assert found
    tokenizer.chat_template = f"{before}'<|im_start|>assistant\\n<think>\\n'{after}"
    return ChatFormat(tokenizer)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def run(calculator: Session, chat: ChatFormat, *texts: str, limits: Limits | None = None) -> Trajectory:
    setting = PolicySetting(ScriptedEngine(turns(*texts), chat), chat, calculator)
    trajectory = await play(setting, TASK, seed=1, limits=limits)
    verify(trajectory, TASK)
    return trajectory


async def test_a_right_answer_after_a_long_thought_scores_1(calculator: Session, chat: ChatFormat) -> None:
    limits = Limits(max_turn_tokens=64, max_tokens=128)
    trajectory = await run(calculator, chat, CALLED, f"{LONG}</think>\n\n42", limits=limits)
    assert (trajectory.final_answer, trajectory.reward) == ("42", 1.0)
    assert trajectory.messages[-1] == {"role": "assistant", "content": "42", "reasoning_content": LONG.strip()}


async def test_a_thought_that_names_the_answer_scores_0(calculator: Session, chat: ChatFormat) -> None:
    for said in ("42</think>\n\n41", "42", "No.</think>\n\n<think>42</think>"):
        trajectory = await run(calculator, chat, CALLED, said)
        assert trajectory.reward == 0.0 and "42" not in (trajectory.final_answer or "")


async def test_a_call_in_a_thought_is_not_executed(calculator: Session, chat: ChatFormat) -> None:
    thought, real = call("add", a=1, b=1), call("multiply", a=6, b=7)
    trajectory = await run(calculator, chat, f"I could {thought}.</think>\n{real}", "So 42.</think>\n42")
    assert [record.name for record in trajectory.calls] == ["multiply"]
    assert (trajectory.reward, trajectory.turns) == (1.0, 2)


async def test_a_thought_has_a_limit_of_its_own(calculator: Session, chat: ChatFormat) -> None:
    trajectory = await run(calculator, chat, LONG, limits=Limits(max_turn_tokens=8, max_thought_tokens=50))
    assert trajectory.stop_reason is StopReason.MAX_TURN_TOKENS
    assert trajectory.segments[0].sampled.count(True) == 58
