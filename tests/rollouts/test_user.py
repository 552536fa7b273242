"""A scenario's user answers the model's messages: scripted, by rules, or played by a language model over HTTP."""

import json
from functools import partial
from typing import Any

import pytest

from benchmarks.judge_server import serve
from mcp_rl.errors import ConfigError, ScenarioError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.rollout import OwnLoop, play
from mcp_rl.rollouts.speaker import Limits, PolicySetting
from mcp_rl.rollouts.user import PlaysUsers
from mcp_rl.rollouts.user_model import user_model
from mcp_rl.scenario import McpScenario, SimulatedUser, parse_scenario
from mcp_rl.scenarios.fit import check_no_user
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import StopReason, Trajectory
from tests.rollouts.conftest import CALCULATOR

MULTIPLY = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


pytestmark = pytest.mark.asyncio(loop_scope="module")


def talk(*turns: str, **user: Any) -> McpScenario:
    simulated = SimulatedUser(**user) if user else None
    return McpScenario(task_description="Multiply for me.", server_params=CALCULATOR, user_turns=turns, user=simulated)


async def played(
    calculator: Session,
    chat: ChatFormat,
    scenario: McpScenario,
    *said: str,
    model: PlaysUsers | None = None,
    limits: Limits | None = None,
) -> Trajectory:
    engine = ScriptedEngine(lambda text, seed, turn: said[turn], chat)
    driver = partial(OwnLoop, user_model=model)
    return await play(PolicySetting(engine, chat, calculator), scenario, seed=1, limits=limits, driver=driver)


def spoken(trajectory: Trajectory) -> list[str]:
    return [f"{m['role']}: {m['content']}" for m in trajectory.messages if m["content"] and m["role"] != "tool"]


async def test_scripted_turns_are_said_one_after_another_and_read_token_by_token(
    calculator: Session, chat: ChatFormat
) -> None:
    scenario = talk("6 times 7.", "Thanks.")
    trajectory = await played(calculator, chat, scenario, "Which numbers?", MULTIPLY, "It is 42.", "Bye.")
    assert spoken(trajectory) == [
        "user: Multiply for me.",
        "assistant: Which numbers?",
        "user: 6 times 7.",
        "assistant: It is 42.",
        "user: Thanks.",
        "assistant: Bye.",
    ]
    assert (trajectory.stop_reason, trajectory.final_answer) == (StopReason.ANSWERED, "Bye.")
    assert (trajectory.turns, trajectory.metrics["user_turns"], len(trajectory.calls)) == (4, 2, 1)
    [segment] = trajectory.segments
    first = chat.said("Which numbers?")
    opening = chat.initial(trajectory.messages[:1], calculator.schemas.openai)
    answer = chat.continuation([{"role": "user", "content": "6 times 7."}], after=first[-1])
    expected = [*opening, *first, *answer]
    assert segment.tokens[: len(expected)] == expected
    assert not any(segment.sampled[len(opening) + len(first) : len(expected)])


@pytest.mark.parametrize(("limits", "reason"), [({"max_turns": 1}, "max_turns"), ({"max_tokens": 5}, "max_tokens")])
async def test_a_user_who_would_go_on_beyond_a_limit_ends_the_episode_without_an_answer(
    calculator: Session, chat: ChatFormat, limits: dict[str, int], reason: str
) -> None:
    trajectory = await played(calculator, chat, talk("More."), "Yes? Yes? Yes? Yes?", limits=Limits(**limits))
    assert (trajectory.stop_reason.value, trajectory.final_answer) == (reason, None)


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        (
            ["What is the first number, and the second number?", "42"],
            ["The first number is 6. The second number is 7."],
        ),
        (["It is 42."], []),
        (["How old are you?", "What is the First Number?", "42"], ["I don't know that.", "The first number is 6."]),
        (["How old are you?", "Where do you live?"], ["I don't know that."]),
        (["What is the first number?"] * 3, ["The first number is 6."] * 2),
    ],
)
async def test_a_user_of_rules_answers_what_it_knows(
    calculator: Session, chat: ChatFormat, said: list[str], answers: list[str]
) -> None:
    scenario = talk(knows={"first number": "6", "second number": "7"}, max_turns=2)
    trajectory = await played(calculator, chat, scenario, *said)
    assert [m["content"] for m in trajectory.messages if m["role"] == "user"][1:] == answers
    assert trajectory.stop_reason is StopReason.ANSWERED and trajectory.final_answer == said[-1]


async def test_a_language_model_plays_the_user_until_it_is_done(calculator: Session, chat: ChatFormat) -> None:
    scenario = talk(wants="The product of two numbers.", knows={"numbers": "6 and 7"})

    def user(prompt: str, ids: list[str]) -> str:
        done = prompt.endswith("The assistant: It is 42.")
        return json.dumps({"says": "" if done else "6 and 7, please.", "done": done})

    with serve(user) as server:
        model = user_model(f"openai/user@{server.url}")
        said = ("Which numbers?", MULTIPLY, "It is 42.")
        trajectory = await played(calculator, chat, scenario, *said, model=model)
    assert spoken(trajectory)[2:] == ["user: 6 and 7, please.", "assistant: It is 42."]
    told = server.requests[0]["messages"][0]["content"]
    assert "The product of two numbers." in told and "- numbers: 6 and 7" in told
    assert MULTIPLY not in server.prompts[1] and "You: 6 and 7, please." in server.prompts[1]
    assert trajectory.stop_reason is StopReason.ANSWERED


async def test_a_user_that_cannot_be_asked_is_a_fault(calculator: Session, chat: ChatFormat) -> None:
    with serve(lambda prompt, ids: "not JSON at all") as server:
        model = user_model(f"openai/user@{server.url}")
        assert model is not None
        model.model.retries, model.model.backoff = 1, 0.0
        trajectory = await played(calculator, chat, talk(wants="A sum."), "Yes?", model=model)
    assert trajectory.stop_reason is StopReason.FAULT
    assert (trajectory.fault or "").startswith("The simulated user gave no answer: The user model openai/user")


async def test_users_are_part_of_what_a_scenario_is() -> None:
    assert len({talk().id, talk("Go on.").id, talk(knows={"city": "Lima"}).id}) == 3
    with pytest.raises(ScenarioError, match="did you mean 'wants'"):
        parse_scenario({"task": "Go", "server_params": CALCULATOR.model_dump(), "user": {"want": "x"}}, "line 1")


async def test_what_cannot_be_is_said_in_one_sentence() -> None:
    check_no_user([talk("Go on.")], None)
    with pytest.raises(
        ScenarioError, match=r"has a user who answers, which an agent program cannot hear: leave --agent"
    ):
        check_no_user([talk("Go on.")], "python agent.py")
    with pytest.raises(ConfigError, match="LiteLLM does not know the user model 'gpt-unheard-of'"):
        user_model("gpt-unheard-of")
    with pytest.raises(ConfigError, match="LiteLLM knows no price for the user model 'openai/mine'"):
        user_model("openai/mine@http://127.0.0.1:1/v1", 1.0)
    with pytest.raises(ConfigError, match=r"The user model's file 'nowhere.py' cannot be read"):
        user_model("nowhere.py:play")
    with pytest.raises(ConfigError, match="must not hold a user name or password"):
        user_model("openai/x@http://me:secret@127.0.0.1/v1")
