"""A chat model behind real HTTP plays episodes on the real calculator."""

import json
import time
from collections.abc import AsyncIterator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from anyio import create_task_group
from starlette.responses import Response

from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.chat_model import ChatModel, ChatSetting
from mcp_rl.inference.apis.chat_client import LiteLLM, OpenAIServer, chat_client, import_litellm
from mcp_rl.rollouts.rollout import play
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import StopReason, Trajectory
from tests.evaluation.chat_server import ChatServer, Says, call, failure, serve

CALCULATOR = StdioServer(
    command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")
)
TASK = McpScenario(task_description="What is 6 times 7?", server_params=CALCULATOR)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calculator() -> AsyncIterator[Session]:
    async with Sessions() as sessions:
        yield await sessions.get(CALCULATOR)


async def played(
    calculator: Session, says: Says, *, limits: Limits | None = None, name: str = "openai/gpt-4.1-mini", **fields: Any
) -> tuple[Trajectory, ChatServer]:
    with serve(says) as server:
        model = ChatModel(name, server.url, backoff=0.01, **fields)
        try:
            setting = ChatSetting(model, calculator)
            return await play(setting, TASK, seed=2**40 + 5, temperature=0.7, limits=limits), server
        finally:
            await model.aclose()


def multiplies(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Calls once, then repeats what it was told."""
    last = body["messages"][-1]
    return {"content": last["content"]} if last["role"] == "tool" else call("multiply", {"a": 6, "b": 7})


async def test_it_calls_the_live_server_and_answers(calculator: Session) -> None:
    trajectory, server = await played(calculator, multiplies)
    assert (trajectory.stop_reason, trajectory.final_answer, trajectory.turns) == (StopReason.ANSWERED, "42", 2)
    assert [(c.tool, c.arguments, c.result, c.is_error) for c in trajectory.calls] == [
        ("multiply", {"a": 6, "b": 7}, "42", False)
    ]
    assert trajectory.messages[1]["tool_calls"][0]["id"] == trajectory.messages[2]["tool_call_id"] == "call_0"
    first, second = server.requests
    assert first["tools"] == calculator.schemas.openai
    assert (first["temperature"], first["seed"], first["max_tokens"]) == (0.7, 5, 256)
    assert second["messages"][1]["tool_calls"][0]["id"] == second["messages"][2]["tool_call_id"] == "toolu_7"


@pytest.mark.parametrize("half", ["content", "name", "arguments", "escaped"])
async def test_an_unpaired_surrogate_is_the_models_mistake(calculator: Session, half: str) -> None:
    written = {"content": "x", "name": "add", "arguments": '{"a": 1, "b": "y"}'}
    written |= {
        "content": {"content": "z\ud83d"},
        "name": {"name": "z\ud83d"},
        "arguments": {"arguments": '{"a": 1, "b": "\ud83d"}'},
        "escaped": {"arguments": r'{"a": 1, "b": "\ud83d"}'},
    }[half]

    def says(body: dict[str, Any], number: int) -> Response:
        function = {"name": written["name"], "arguments": written["arguments"]}
        said: dict[str, Any] = {"role": "assistant", "content": written["content"]}
        said |= {} if number else {"tool_calls": [{"id": "c", "type": "function", "function": function}]}
        return Response(json.dumps({"choices": [{"index": 0, "message": said}]}), media_type="application/json")

    trajectory, _ = await played(calculator, says)
    [record] = trajectory.calls
    assert trajectory.stop_reason is StopReason.ANSWERED and record.is_error and not record.sent
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert half != "escaped" or "half of a character" in record.result


async def test_usage_is_recorded_on_the_trajectory(calculator: Session) -> None:
    trajectory, _ = await played(calculator, multiplies)
    metrics = trajectory.metrics
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (2000, 40)
    assert metrics["cost_usd"] == pytest.approx(2 * (1000 * 0.4e-6 + 20 * 1.6e-6))
    assert trajectory.sampled_tokens == 0


async def test_a_model_without_a_price_has_no_cost(calculator: Session) -> None:
    trajectory, _ = await played(calculator, multiplies, name="openai/model-of-my-own")
    assert "cost_usd" not in trajectory.metrics


async def test_malformed_arguments_go_back_as_a_tool_message(calculator: Session) -> None:
    def says(body: dict[str, Any], number: int) -> dict[str, Any]:
        return call("multiply", '{"a": 6, "b"') if number == 0 else {"content": "no"}

    trajectory, server = await played(calculator, says)
    [record] = trajectory.calls
    assert (record.arguments, record.is_error, record.sent) == (None, True, False)
    assert "not valid JSON" in record.result
    sent_back = server.requests[1]["messages"]
    assert sent_back[2]["content"] == record.result
    assert json.loads(sent_back[1]["tool_calls"][0]["function"]["arguments"]) == {}
    assert trajectory.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 6, "b"'


async def test_an_unknown_tool_is_never_sent(calculator: Session) -> None:
    trajectory, _ = await played(
        calculator, lambda body, number: call("multiplyy", {"a": 1}) if number == 0 else {"content": "no"}
    )
    assert "multiply" in trajectory.calls[0].result and not trajectory.calls[0].sent


async def test_parallel_calls_are_answered_under_their_ids(calculator: Session) -> None:
    def says(body: dict[str, Any], number: int) -> dict[str, Any]:
        both = call("add", {"a": 1, "b": 1}, "a1")["tool_calls"] + call("add", {"a": 2, "b": 2}, "b2")["tool_calls"]
        return {"tool_calls": both} if number == 0 else {"content": "done"}

    _, server = await played(calculator, says)
    answers = [m for m in server.requests[1]["messages"] if m["role"] == "tool"]
    assert [(m["tool_call_id"], m["content"]) for m in answers] == [("a1", "2"), ("b2", "4")]


@pytest.mark.parametrize(
    ("limits", "stop"),
    [(Limits(max_turns=1), StopReason.MAX_TURNS), (Limits(max_tokens=40, max_turn_tokens=40), StopReason.MAX_TOKENS),
     (Limits(max_tool_calls=0), StopReason.MAX_TOOL_CALLS)],
)  # fmt: skip
async def test_the_limits_are_those_of_every_rollout(calculator: Session, limits: Limits, stop: StopReason) -> None:
    trajectory, _ = await played(calculator, lambda body, n: call("add", {"a": 1, "b": n}), limits=limits)
    assert trajectory.stop_reason is stop
    assert not trajectory.calls[-1].sent


async def test_a_turn_that_is_cut_off_is_no_answer(calculator: Session) -> None:
    trajectory, _ = await played(calculator, lambda body, number: {"content": "It is", "finish_reason": "length"})
    assert (trajectory.stop_reason, trajectory.final_answer) == (StopReason.MAX_TURN_TOKENS, None)


async def test_a_rate_limit_and_a_broken_server_are_tried_again(calculator: Session) -> None:
    def says(body: dict[str, Any], number: int) -> Any:
        if number < 2:
            return failure(429, "slow down", **{"retry-after": "0.01"}) if number else failure(500, "oh")
        return multiplies(body, number)

    trajectory, server = await played(calculator, says)
    assert trajectory.final_answer == "42" and len(server.requests) == 4


async def test_a_model_that_stays_down_is_a_fault(calculator: Session) -> None:
    trajectory, server = await played(calculator, lambda body, number: failure(500, "oh no"), retries=2)
    assert trajectory.stop_reason is StopReason.FAULT and trajectory.reward is None
    assert "openai/gpt-4.1-mini" in (trajectory.fault or "") and "oh no" in (trajectory.fault or "")
    assert len(server.requests) == 3


async def test_a_model_that_never_answers_is_a_fault_in_time(calculator: Session) -> None:
    def says(body: dict[str, Any], number: int) -> dict[str, Any]:
        time.sleep(0.35)
        return {"content": "too late"}

    trajectory, _ = await played(calculator, says, deadline=0.2, retries=1)
    assert trajectory.stop_reason is StopReason.FAULT and "0.2 seconds" in (trajectory.fault or "")
    assert trajectory.seconds < 5


async def test_a_too_long_conversation_is_a_full_context(calculator: Session) -> None:
    words = "This model's maximum context length is 10 tokens. However, your messages resulted in 99 tokens."
    trajectory, _ = await played(calculator, lambda b, n: failure(400, words, "context_length_exceeded"))
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL


async def test_a_long_result_is_cut_with_a_mark(calculator: Session) -> None:
    def says(body: dict[str, Any], number: int) -> dict[str, Any]:
        return call("evaluate", {"expression": "+".join(["1"] * 400) + "+"}) if number == 0 else {"content": "."}

    trajectory, _ = await played(calculator, says, limits=Limits(max_result_tokens=30))
    assert trajectory.calls[0].is_error
    assert len(trajectory.calls[0].result) < 400


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "Incorrect API key"), (404, "The model does not exist"), (400, "tools are not supported")],
)
async def test_a_model_that_refuses_is_named_before_any_episode(
    calculator: Session, status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-1234")
    with serve(lambda body, number: failure(status, f"{words}: sk-very-secret-1234")) as server:
        with pytest.raises(ConfigError, match=words) as caught:
            await ChatModel("openai/gpt-4.1-mini", server.url).check(calculator.schemas.openai)
        assert "very-secret" not in str(caught.value)
        assert server.requests[0]["tools"] and server.keys == ["Bearer sk-very-secret-1234"]


async def test_a_private_server_needs_no_key(calculator: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serve(lambda body, number: {"content": "ready"}) as server:
        await ChatModel("openai/mine", server.url).check(calculator.schemas.openai)
        with pytest.raises(ConfigError, match="cannot be used"):
            await ChatModel("openai/mine", "http://127.0.0.1:9/v1").check([])


async def test_it_is_asked_on_one_client_and_not_through_litellm(calculator: Session) -> None:
    with serve(multiplies) as server:
        model = ChatModel("openai/mine", server.url)
        async with create_task_group() as tasks:
            for seed in range(4):
                tasks.start_soon(partial(play, ChatSetting(model, calculator), TASK, seed=seed))
        assert isinstance(model._client, OpenAIServer)
        await model.aclose()
        assert model._client is None
    assert {request["model"] for request in server.requests} == {"mine"}


@pytest.mark.parametrize("name", ["openai/gpt-5-mini", "openai/o1-pro", "groq/llama-3.3-70b-versatile"])
async def test_a_model_with_other_parameters_goes_through_litellm(name: str) -> None:
    assert isinstance(await chat_client(name, "http://127.0.0.1:9/v1", 1.0), LiteLLM)


@pytest.mark.parametrize(("name", "key"), [("openai/mine", "sk-mine"), ("hosted_vllm/org/mine", "key-of-vllm")])
async def test_each_provider_has_its_own_key(name: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("HOSTED_VLLM_API_KEY", "key-of-vllm")
    with serve(lambda body, number: {"content": "ready"}) as server:
        model = ChatModel(name, server.url)
        await model.check([])
        await model.aclose()
    assert server.keys == [f"Bearer {key}"] and "tools" not in server.requests[0]
    assert server.requests[0]["model"] == name.partition("/")[2]


async def test_both_clients_send_the_same(calculator: Session) -> None:
    closed = {"type": "object", "properties": {"a": {"type": "number"}}, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "double", "description": "Twice a.", "parameters": closed}}]
    given = deepcopy(tools)
    messages = [{"role": "user", "content": "What is twice 3?"}]
    sampling = {"temperature": 0.7, "max_tokens": 5, "seed": 1}
    with serve(lambda body, number: call("double", {"a": 3})) as server:
        direct = await chat_client("openai/mine", server.url, 5.0)
        through = LiteLLM(import_litellm(), "openai/mine", server.url, 5.0)
        replies = [await client.ask(messages, tools, sampling) for client in (direct, through)]
        await LiteLLM(import_litellm(), "hosted_vllm/mine", server.url, 5.0).ask(messages, tools, sampling)
        await direct.aclose()
    assert server.requests[0] == server.requests[1]
    assert [reply.message["tool_calls"][0]["function"]["name"] for reply in replies] == ["double", "double"]
    assert replies[0].prompt_tokens == replies[1].prompt_tokens == 1000
    assert tools == given


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>gateway</html>", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1]", "not a chat completion"),
        (b'{"error": {"message": "out of memory"}}', "out of memory"),
        (b'{"choices": [{"message": "hello"}]}', "no message"),
        (b'{"choices": [{"message": {"tool_calls": [{"function": "add"}]}}]}', "no message"),
        (b'{"choices": [{"message": {"tool_calls": 3}}]}', "no message"),
        (b'{"choices": [3]}', "no message"),
    ],
)
async def test_a_malformed_reply_is_retried_then_a_fault(calculator: Session, body: bytes, words: str) -> None:
    reply = Response(body, 200, {"content-type": "application/json"})
    trajectory, server = await played(calculator, lambda request, number: reply, name="openai/mine", retries=1)
    assert trajectory.stop_reason is StopReason.FAULT and words in (trajectory.fault or "")
    assert len(server.requests) == 2


@pytest.mark.parametrize("choices", ["[]", '[{"message": null}]', '[{"message": {"content": null}}]'])
async def test_a_turn_of_nothing_is_an_empty_answer(calculator: Session, choices: str) -> None:
    reply = Response(f'{{"choices": {choices}, "usage": {{"prompt_tokens": "many"}}}}', 200)
    trajectory, _ = await played(calculator, lambda request, number: reply, name="openai/mine")
    assert (trajectory.stop_reason, trajectory.final_answer) == (StopReason.ANSWERED, "")


async def test_an_unpaired_surrogate_is_sent_back_unchanged(calculator: Session) -> None:
    def says(body: dict[str, Any], number: int) -> Any:
        if number:
            return {"content": "done"}
        said = {"role": "assistant", "content": "\ud83d", **call("add", {"a": 1, "b": 1})}
        return Response(json.dumps({"choices": [{"message": said, "finish_reason": "tool_calls"}]}), 200)

    trajectory, server = await played(calculator, says, name="openai/mine")
    assert trajectory.final_answer == "done"
    assert server.requests[1]["messages"][1]["content"] == "\ud83d"


async def test_a_server_that_goes_away_is_a_fault_with_its_address(calculator: Session) -> None:
    with serve(multiplies) as server:
        url = server.url
    setting = ChatSetting(ChatModel("openai/mine", url, retries=1, backoff=0.01), calculator)
    trajectory = await play(setting, TASK, seed=1)
    assert trajectory.stop_reason is StopReason.FAULT
    assert url in (trajectory.fault or "") and "onnection" in (trajectory.fault or "")


async def test_the_retry_after_header_is_respected(calculator: Session) -> None:
    def says(body: dict[str, Any], number: int) -> Any:
        return multiplies(body, number) if number else failure(503, "loading", **{"retry-after": "0.3"})

    trajectory, _ = await played(calculator, says, name="openai/mine")
    assert trajectory.final_answer == "42" and trajectory.seconds >= 0.3
