"""The rules of a rollout, one by one, on the real calculator over stdio with a scripted model.

 1. A turn without a call is the answer.
 2. A tool that does not exist is a tool message with the nearest names; nothing is sent.
 3. JSON that cannot be read is a tool message; nothing is sent.
 4. Arguments that do not match the schema are a tool message; nothing is sent.
 5. A tool's own error is a tool message, and a mistake of the model's.
 6. Several calls of one turn are all answered, in their order.
 7. Each limit has its stop reason, in the documented order, and calls behind it are recorded as not sent.
 8. A server that dies in a call is a fault: no reward, out of training, never an exception.
 9. The ids are those of the opening, the sampled turns and the continuations, and nothing else.
10. The mask, the logprobs and the versions are those of the sampled tokens alone.
11. The same seed gives the same trajectory.
12. Cancelling a rollout cancels it.
"""

import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.inference.scripted import ScriptedEngine, ScriptedEpisode
from mcp_rl.rollouts.rollout import derive_seed, play
from mcp_rl.rollouts.speaker import Limits, PolicySetting
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import StopReason, Trajectory
from tests.rollouts.conftest import CALCULATOR

Reply = Callable[[str, int, int], str]


pytestmark = pytest.mark.asyncio(loop_scope="module")


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def turns(*texts: str) -> Reply:
    """Make a model that says these texts, one after another."""
    return lambda text, seed, turn: texts[turn]


def task(max_turns: int = 10) -> McpScenario:
    return McpScenario(task_description="What is 6 times 7?", server_params=CALCULATOR, max_turns=max_turns)


async def run(
    calculator: Session, chat: ChatFormat, reply: Reply, *, limits: Limits | None = None, max_turns: int = 10
) -> Trajectory:
    setting = PolicySetting(ScriptedEngine(reply, chat, version=4), chat, calculator)
    return await play(setting, task(max_turns), seed=1, limits=limits)


async def test_1_a_turn_without_a_call_is_the_answer(calculator: Session, chat: ChatFormat) -> None:
    trajectory = await run(calculator, chat, turns("It is 42."))
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.final_answer == "It is 42."
    assert (trajectory.turns, trajectory.calls, trajectory.fault) == (1, [], None)


async def test_1_a_call_is_executed_and_its_result_is_read(calculator: Session, chat: ChatFormat) -> None:
    trajectory = await run(calculator, chat, turns(call("multiply", a=6, b=7), "42"))
    assert trajectory.final_answer == "42"
    [record] = trajectory.calls
    assert (record.turn, record.name, record.tool, record.arguments) == (0, "multiply", "multiply", {"a": 6, "b": 7})
    assert (record.result, record.is_error, record.sent) == ("42", False, True)
    assert record.structured == {"result": 42} and record.seconds > 0
    assert trajectory.messages == [
        {"role": "user", "content": "What is 6 times 7?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "name": "multiply", "content": "42"},
        {"role": "assistant", "content": "42"},
    ]


async def test_2_a_tool_that_does_not_exist_gets_the_nearest_names(calculator: Session, chat: ChatFormat) -> None:
    trajectory = await run(calculator, chat, turns(call("multiplyy", a=6, b=7), "no"))
    [record] = trajectory.calls
    assert record.result.startswith('There is no tool named "multiplyy"') and "multiply" in record.result
    assert (record.tool, record.is_error, record.sent) == (None, True, False)
    assert trajectory.messages[2]["content"] == record.result
    assert trajectory.stop_reason is StopReason.ANSWERED


async def test_3_unreadable_json_is_reported_to_the_model(calculator: Session, chat: ChatFormat) -> None:
    broken = '<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>'
    trajectory = await run(calculator, chat, turns(broken, "no"))
    [record] = trajectory.calls
    assert "not valid JSON" in record.result
    assert (record.arguments, record.is_error, record.sent) == (None, True, False)
    assert trajectory.messages[1]["tool_calls"][0]["function"]["arguments"] == broken


@pytest.mark.parametrize("written", [r'"add", "arguments": {"a": "\ud800", "b": 1}', r'"a\ud83d", "arguments": {}'])
async def test_3_half_of_a_character_is_the_models_mistake(calculator: Session, chat: ChatFormat, written: str) -> None:
    trajectory = await run(calculator, chat, turns(f'<tool_call>\n{{"name": {written}}}\n</tool_call>', "no"))
    [record] = trajectory.calls
    assert "half of a character" in record.result and (record.is_error, record.sent) == (True, False)
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


async def test_4_arguments_that_do_not_fit_the_schema_are_not_sent(calculator: Session, chat: ChatFormat) -> None:
    trajectory = await run(calculator, chat, turns(call("add", a="six"), "no"))
    [record] = trajectory.calls
    assert (record.tool, record.is_error, record.sent) == ("add", True, False)
    assert "b" in record.result or "six" in record.result


async def test_5_a_tools_own_error_goes_back_to_the_model(calculator: Session, chat: ChatFormat) -> None:
    trajectory = await run(calculator, chat, turns(call("divide", a=1, b=0), "no"))
    [record] = trajectory.calls
    assert (record.is_error, record.sent) == (True, True)
    assert "zero" in record.result.lower()
    assert trajectory.stop_reason is StopReason.ANSWERED


async def test_6_several_calls_of_one_turn_are_answered_in_order(calculator: Session, chat: ChatFormat) -> None:
    first = call("add", a=1, b=2) + call("nothing") + call("multiply", a=3, b=4)
    trajectory = await run(calculator, chat, turns(first, "done"))
    assert [record.result for record in trajectory.calls[::2]] == ["3", "12"]
    assert trajectory.calls[1].is_error and not trajectory.calls[1].sent
    answers = [message for message in trajectory.messages if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in answers] == ["call_0", "call_1", "call_2"]
    assert [message["content"] for message in answers] == [record.result for record in trajectory.calls]


LOOP = call("add", a=1, b=2)


@pytest.mark.parametrize(
    ("limits", "max_turns", "stop", "played", "sent"),
    [
        (Limits(max_turns=2), 10, StopReason.MAX_TURNS, 2, 1),
        (Limits(), 3, StopReason.MAX_TURNS, 3, 2),
        (Limits(max_turns=9), 3, StopReason.MAX_TURNS, 3, 2),
        (Limits(max_tool_calls=2), 10, StopReason.MAX_TOOL_CALLS, 3, 2),
        (Limits(max_tool_calls=2), 3, StopReason.MAX_TOOL_CALLS, 3, 2),
        (Limits(max_turn_tokens=3), 10, StopReason.MAX_TURN_TOKENS, 1, 0),
        (Limits(max_turn_tokens=3, max_tokens=3), 10, StopReason.MAX_TURN_TOKENS, 1, 0),
        (Limits(max_tokens=3), 10, StopReason.MAX_TOKENS, 1, 0),
    ],
)
async def test_7_each_limit_has_its_stop_reason(
    calculator: Session, chat: ChatFormat, limits: Limits, max_turns: int, stop: StopReason, played: int, sent: int
) -> None:
    trajectory = await run(calculator, chat, lambda text, seed, turn: LOOP, limits=limits, max_turns=max_turns)
    assert trajectory.stop_reason is stop
    assert trajectory.turns == played
    assert sum(record.sent for record in trajectory.calls) == sent
    assert trajectory.final_answer is None and trajectory.trainable is False


async def test_7_tokens_used_up_to_the_last_end_the_rollout(calculator: Session, chat: ChatFormat) -> None:
    turn = len(chat.encode(LOOP)) + 1
    trajectory = await run(calculator, chat, lambda text, seed, turn: LOOP, limits=Limits(max_tokens=2 * turn))
    assert (trajectory.stop_reason, trajectory.turns) == (StopReason.MAX_TOKENS, 2)
    assert trajectory.sampled_tokens == 2 * turn
    assert [record.sent for record in trajectory.calls] == [True, False]


async def test_7_an_answer_in_the_last_turn_is_an_answer(calculator: Session, chat: ChatFormat) -> None:
    trajectory = await run(calculator, chat, turns(LOOP, "3"), limits=Limits(max_turns=2, max_tool_calls=1))
    assert trajectory.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize("room", [-5, 0, 1, 3])
async def test_7_a_full_context_ends_the_rollout(calculator: Session, chat: ChatFormat, room: int) -> None:
    opening = len(chat.initial([{"role": "user", "content": "What is 6 times 7?"}], calculator.schemas.openai))
    engine = ScriptedEngine(turns(LOOP, "3"), chat, max_context=opening + room)
    trajectory = await play(PolicySetting(engine, chat, calculator), task(), seed=0)
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL
    assert trajectory.sampled_tokens == max(room, 0)


async def test_7_a_slow_rollout_times_out_and_keeps_what_it_has(calculator: Session, chat: ChatFormat) -> None:
    class SlowEpisode(ScriptedEpisode):
        async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
            if self._turn == 1:
                await anyio.sleep(30)
            return await super().generate(new_ids, sampling)

    class SlowEngine(ScriptedEngine):
        @asynccontextmanager
        async def episode(self, *, seed: int) -> AsyncIterator[ScriptedEpisode]:
            yield SlowEpisode(self, seed)

    engine = SlowEngine(turns(LOOP, "3"), chat)
    trajectory = await play(PolicySetting(engine, chat, calculator), task(), seed=0, limits=Limits(seconds=1.0))
    assert trajectory.stop_reason is StopReason.TIMEOUT and not trajectory.stop_reason.trainable
    assert trajectory.turns == 1 and trajectory.calls[0].result == "3"
    assert 1.0 <= trajectory.seconds < 20


async def test_8_a_server_that_dies_is_a_fault(chat: ChatFormat, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(
        "import os, signal\nfrom mcp.server import MCPServer\nserver = MCPServer('dies', log_level='ERROR')\n"
        "@server.tool()\ndef die() -> str:\n    os.kill(os.getpid(), signal.SIGKILL)\n    return ''\n"
        "server.run('stdio')\n"
    )
    params = StdioServer(command="{python}", args=(str(script),))
    async with Sessions() as sessions:
        session = await sessions.get(params)
        setting = PolicySetting(ScriptedEngine(turns(call("die"), "fine"), chat), chat, session)
        with anyio.fail_after(20):
            trajectory = await play(setting, task(), seed=0)
        assert trajectory.stop_reason is StopReason.FAULT
        assert trajectory.fault and "\n" not in trajectory.fault
        assert trajectory.reward is None and not trajectory.trainable
        assert trajectory.turns == 1
        again = await sessions.get(params)
        assert again is not session and again.connection.alive


async def test_9_and_10_ids_mask_logprobs_and_versions_are_exact(calculator: Session, chat: ChatFormat) -> None:
    said = (call("multiply", a=6, b=7), call("multiplyy", a=1), "It is 42.")
    trajectory = await run(calculator, chat, turns(*said))
    [segment] = trajectory.segments
    stop = list(chat.stop_token_ids[:1])
    tools = [[m] for m in trajectory.messages if m["role"] == "tool"]
    given = [
        chat.initial(trajectory.messages[:1], calculator.schemas.openai),
        *(chat.continuation(messages) for messages in tools),
    ]
    sampled = [chat.encode(text) + stop for text in said]
    assert segment.tokens == [i for pair in zip(given, sampled, strict=True) for part in pair for i in part]
    assert segment.sampled == [
        flag for pair in zip(given, sampled, strict=True) for part, flag in zip(pair, (False, True), strict=True)
        for _ in part
    ]  # fmt: skip
    assert all((lp == -0.1, v == 4) == (s, s) for s, lp, v in zip(
        segment.sampled, segment.logprobs, segment.versions, strict=True))  # fmt: skip
    runs = [(k, [i for _, i in g]) for k, g in itertools.groupby(
        zip(segment.sampled, segment.tokens, strict=True), key=lambda p: p[0])]  # fmt: skip
    assert tuple(chat.decode(ids) for was_sampled, ids in runs if was_sampled) == said
    whole = chat.decode(segment.tokens)
    assert all(record.result in whole for record in trajectory.calls)


async def test_11_the_same_seed_gives_the_same_rollout(calculator: Session, chat: ChatFormat) -> None:
    def reply(text: str, seed: int, turn: int) -> str:
        return call("add", a=seed % 97, b=turn) if turn < 2 else "done"

    setting = PolicySetting(ScriptedEngine(reply, chat), chat, calculator)

    async def once(seed: int) -> dict[str, Any]:
        trajectory = await play(setting, task(), seed=seed)
        return json.loads(trajectory.model_dump_json(exclude={"seconds", "unix_seconds", "turn_unix_seconds", "calls"}))  # type: ignore[no-any-return]

    assert await once(5) == await once(5) != await once(6)


async def test_12_cancelling_a_rollout_cancels_it(calculator: Session, chat: ChatFormat) -> None:
    setting = PolicySetting(ScriptedEngine(lambda text, seed, turn: LOOP, chat), chat, calculator)
    with anyio.move_on_after(0.1) as scope:
        await play(setting, task(10_000), seed=0, limits=Limits(max_tool_calls=10_000, max_tokens=10**9))
    assert scope.cancelled_caught
    assert (await calculator.connection.call("add", {"a": 1, "b": 1})).text == "2"


def test_derived_seeds_differ_and_stay() -> None:
    seeds = {derive_seed("train", i, member) for i in range(50) for member in range(50)}
    assert len(seeds) == 2500 and all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed("train", 0, 0) == derive_seed("train", 0, 0)
