"""A server that asks its user for input is answered by the episode's user: by rules, a language model or a function."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.judge_server import serve
from mcp_rl.cli import main
from mcp_rl.config import ToolsConfig
from mcp_rl.errors import UserStop
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.rollout import OwnLoop, play
from mcp_rl.rollouts.speaker import Limits, PolicySetting
from mcp_rl.rollouts.user import PlaysUsers
from mcp_rl.rollouts.user_forms import told_by_facts, told_by_name
from mcp_rl.rollouts.user_model import UserModel, user_model
from mcp_rl.scenario import McpScenario, SimulatedUser, StdioServer
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.toolserver.elicitation import Question
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import StopReason, Trajectory

BOOKINGS = StdioServer(command=sys.executable, args=(str(Path(__file__).with_name("bookings_server.py")),))
BOOK = '<tool_call>\n{"name": "book", "arguments": {"restaurant": "Da Lino"}}\n</tool_call>'
KNOWS = {"number of guests": "2", "date": "3 May", "place": "Terrace"}
FORM = {
    "type": "object",
    "properties": {
        "guestCount": {"type": "integer", "title": "Number of guests"},
        "agree": {"type": "boolean", "description": "Do you agree to the terms?"},
        "colours": {"type": "array", "items": {"enum": ["red", "blue"]}},
        "note": {"type": "string", "default": "none"},
    },
    "required": ["guestCount"],
}


@asynccontextmanager
async def episodes() -> AsyncIterator[Any]:
    """Give a function that plays the booking with a user."""
    chat = ChatFormat(build_tokenizer())
    engine = ScriptedEngine(lambda text, seed, turn: "Done." if turn else BOOK, chat)

    async def played(
        user: SimulatedUser | None, model: PlaysUsers | None = None, *turns: str, limits: Limits | None = None
    ) -> Trajectory:
        scenario = McpScenario(task_description="Book.", server_params=BOOKINGS, user=user, user_turns=turns)
        async with sessions.episode(BOOKINGS, None) as lease:
            setting = PolicySetting(engine, chat, lease.session)
            return await play(setting, scenario, seed=1, limits=limits, driver=partial(OwnLoop, user_model=model))

    async with Sessions(tools=ToolsConfig(sandbox="off")) as sessions:
        yield played


async def test_a_user_of_rules_fills_in_what_it_knows_and_a_policy_answers_without_one(tmp_path: Path) -> None:
    async with episodes() as played:
        told = await played(SimulatedUser(knows=KNOWS))
        assert told.calls[0].result == "Booked for 2 on 3 May, terrace."
        assert told.metrics["user_turns"] == 1 and told.calls[0].asked[0]["content"]["guests"] == 2
        for user in (SimulatedUser(knows={"date": "3 May"}), None):
            assert (await played(user)).calls[0].result == "Nothing was booked: decline."
        assert (await played(None, None)).metrics == {}


async def test_a_language_model_that_plays_the_user_fills_in_and_is_asked_again_for_what_does_not_fit(
    tmp_path: Path,
) -> None:
    def filled(guests: str) -> Any:
        values = [{"name": "guests", "value": guests}, {"name": "date", "value": "3 May"}]
        return lambda prompt, ids: json.dumps({"accepts": True, "values": values})

    with serve(filled("two"), filled("2"), lambda prompt, ids: json.dumps({"says": "", "done": True})) as server:
        model = user_model(f"openai/user@{server.url}")
        assert isinstance(model, UserModel)
        model.model.backoff = 0.0
        async with episodes() as played:
            trajectory = await played(SimulatedUser(wants="A table."), model)
    assert trajectory.calls[0].result == "Booked for 2 on 3 May, inside."
    assert "A table at Da Lino?" in server.prompts[0] and "- guests (integer; required)" in server.prompts[0]
    assert "'two' is no value for the field 'guests'" in server.requests[1]["messages"][2]["content"]


async def test_a_function_plays_the_user(tmp_path: Path) -> None:
    file = tmp_path / "users.py"
    file.write_text(
        "async def play(asked):\n"
        "    if asked.form is None:\n"
        "        return None if len(asked.messages) > 4 else 'Go on, ' + asked.wants\n"
        "    return {'guests': 4, 'date': asked.knows['date'] + asked.form.message}\n"
        "def broken(asked):\n    raise KeyError('no')\n"
        "def odd(asked):\n    return 5\n"
        "def endless(asked):\n    return None if asked.form else 'And now?'\n"
    )
    async with episodes() as played:
        user = SimulatedUser(wants="please.", knows={"date": "1 May "})
        trajectory = await played(user, user_model(f"{file}:play"))
        assert trajectory.calls[0].result == "Booked for 4 on 1 May A table at Da Lino?, inside."
        assert trajectory.stop_reason is StopReason.ANSWERED
        for name, said in (("broken", "failed: KeyError"), ("odd", "must return the values of a form")):
            failed = await played(user, user_model(f"{file}:{name}"))
            assert failed.stop_reason is StopReason.FAULT
            assert f"The function {file}:{name} {said}" in (failed.fault or "")
        endless = await played(user, user_model(f"{file}:endless"), limits=Limits(max_turns=30, max_tokens=9000))
        assert (endless.stop_reason, endless.metrics["user_turns"]) == (StopReason.ANSWERED, 8)


async def test_a_user_that_is_asked_without_end_declines_and_a_slow_one_does_not_miss_the_calls_deadline(
    tmp_path: Path,
) -> None:
    class Slow(PlaysUsers):
        def user(self, user: SimulatedUser, trajectory: Trajectory) -> Any:
            return self

        async def reply(self, messages: Any) -> None:
            return None

        async def fill_in(self, question: Question, messages: Any) -> dict[str, Any]:
            await asyncio.sleep(2)
            return {"guests": 3, "date": "today"}

    async with episodes() as played:
        limits = Limits(tool_deadline=1.5)
        slow = await played(SimulatedUser(), Slow(), limits=limits)
        assert slow.calls[0].result == "Booked for 3 on today, inside."
        talked = SimulatedUser(knows={"restaurant": "Da Lino"} | KNOWS, max_turns=1)
        assert (await played(talked)).metrics["user_turns"] == 1


async def test_a_cost_limit_ends_the_run(tmp_path: Path) -> None:
    with serve(lambda prompt, ids: json.dumps({"says": "Go on.", "done": False})) as server:
        model = user_model(f"openai/gpt-4.1-mini@{server.url}", 1e-9, tmp_path / "calls.jsonl")
        assert isinstance(model, UserModel)
        async with episodes() as played:
            user = SimulatedUser(wants="x")
            model.model.spent.cost_usd = 0.0
            with pytest.raises(UserStop, match=r"has used up its cost limit .* rollout.max_user_cost; the same"):
                for _ in range(3):
                    await played(user, model)
        again = user_model(f"openai/gpt-4.1-mini@{server.url}", 1e-9, tmp_path / "calls.jsonl")
        assert isinstance(again, UserModel) and again.model.spent.cost_usd > 1e-9


def test_forms_are_filled_in_from_texts_by_type() -> None:
    knows = {"number of guests": "4", "agree": "yes", "colours": "Red, blue", "guests": "9"}
    filled = {"guestCount": 4, "agree": True, "colours": ["red", "blue"], "note": "none"}
    assert told_by_facts(knows, Question("", FORM)) == filled
    assert told_by_facts({"number of guests": "many"}, Question("", FORM)) is None
    assert told_by_name({"guestCount": "4", "agree": "No"}, FORM) == {"guestCount": 4, "agree": False, "note": "none"}
    for values, said in (
        ({"x": "1"}, "the form has no field 'x'"),
        ({"guestCount": "4.5"}, "'4.5' is no value for the field 'guestCount'"),
        ({}, "the field 'guestCount' is required"),
    ):
        assert told_by_name(values, FORM) == said
    one = {"properties": {"v": {"oneOf": [{"const": "de", "title": "German"}, {"const": "fr"}]}}, "required": ["v"]}
    assert told_by_facts({"language": "german"}, Question("Which language?", one)) == {"v": "de"}
    assert told_by_facts({}, Question("Sure?", {"type": "object", "properties": {}})) == {}
    for odd in ({"properties": [1]}, {"properties": {"a": 3}, "required": 5}, {"required": ["a", 2]}, {}):
        assert told_by_facts({"": "", "a": "x"}, Question("?", odd)) in ({}, {"a": "x"}, None)


def test_a_limit_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--server", "mcp_calculator", "rollout.max_user_cost=1"]) == 2
    assert "rollout.user_model is not: name the model that plays users" in capsys.readouterr().err
