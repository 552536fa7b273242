"""POST /v1/messages, through Anthropic's client and its own types."""

import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, MessageParam, RawMessageStreamEvent, ToolParam
from pydantic import TypeAdapter

from benchmarks.loopback import serving
from mcp_rl.inference.openai_api.app import make_app
from mcp_rl.inference.openai_api.served import fixed_model
from mcp_rl.inference.openai_api.service import Service
from mcp_rl.inference.scripted import ScriptedEngine
from tests.inference.openai_api.conftest import ASKED, TOOLS, ServedTiny

FUNCTIONS: list[ToolParam] = [
    {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
    for f in (tool["function"] for tool in TOOLS)
]
ASK: dict[str, Any] = {
    **{"model": "tiny", "messages": ASKED, "tools": FUNCTIONS, "max_tokens": 200},
    "extra_body": {"temperature": 0},
}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def client_of(url: str, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)


async def test_a_message_is_the_turn_of_a_chat(tiny: ServedTiny) -> None:
    async with tiny.client() as openai_client, client_of(tiny.url) as client:
        chat = await openai_client.chat.completions.create(model="tiny", messages=ASKED, tools=TOOLS, temperature=0)
        raw = await client.messages.with_raw_response.create(**ASK)
        short = await client.messages.create(**{**ASK, "max_tokens": 3})
        stopped = await client.messages.create(**ASK, stop_sequences=["add"])
        counted = await client.messages.count_tokens(model="tiny", messages=ASKED, tools=FUNCTIONS)
    message = Message.model_validate_json(await raw.text())
    [call], [wanted] = message.content, chat.choices[0].message.tool_calls
    assert call.type == "tool_use" and message.stop_reason == "tool_use"
    assert (call.name, call.input) == (wanted.function.name, json.loads(wanted.function.arguments))
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens == counted.input_tokens
    assert usage.output_tokens == chat.usage.completion_tokens
    assert short.stop_reason == "max_tokens"
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "add")


@pytest.mark.parametrize(
    "more", [{}, {"messages": [{"role": "user", "content": "Hi!"}], "tools": []}], ids=["call", "text"]
)
async def test_a_stream_adds_up_to_the_whole_message(tiny: ServedTiny, more: dict[str, Any]) -> None:
    async with client_of(tiny.url) as client:
        whole = await client.messages.create(**{**ASK, **more})
        async with client.messages.stream(**{**ASK, **more}) as stream:
            streamed = await stream.get_final_message()
        events = [event async for event in await client.messages.create(**{**ASK, **more}, stream=True)]
    without = {"id", "usage"}
    [one], [other] = whole.content, streamed.content
    assert one.model_dump(exclude=without) == other.model_dump(exclude=without)
    assert (whole.stop_reason, whole.usage.output_tokens) == (streamed.stop_reason, streamed.usage.output_tokens)
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    for event in events:
        EVENT.validate_python(event.model_dump())


async def test_a_conversation_continues_token_exactly_from_blocks(tiny: ServedTiny) -> None:
    asked = {**ASK, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}
    async with client_of(tiny.url) as client:
        first = await client.messages.create(**asked)
        [call] = first.content
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "7"}]}
        ]
        history: list[MessageParam] = [
            *ASKED,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": ""}, *first.content]},
            {"role": "user", "content": [*results, {"type": "text", "text": "And?"}]},
        ]
        second = await client.messages.create(**{**asked, "messages": history})
    so_far = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) + first.usage.output_tokens
    assert (second.usage.cache_read_input_tokens or 0) >= so_far - 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_arguments_that_are_no_object_reach_the_client_as_an_object_and_come_back_as_they_were(
    tiny: ServedTiny, streamed: bool
) -> None:
    bad = '{"a": 1e999, "b": [}'
    said = f'<tool_call>\n{{"name": "add", "arguments": {bad}}}\n</tool_call>'
    prompts: list[str] = []

    def reply(text: str, seed: int, turn: int) -> str:
        prompts.append(text)
        begun = text.rpartition("<|im_start|>assistant\n")[2]  # of a stream, which asks in slices
        return "Sorry." if "Not an object" in text else said[len(begun) :]

    service = Service([fixed_model(["tiny"], ScriptedEngine(reply, tiny.chat), tiny.chat)])
    with serving(make_app(service, key="sesame")) as url:
        async with client_of(url, "sesame") as client:
            if streamed:
                async with client.messages.stream(**ASK) as stream:
                    first = await stream.get_final_message()
            else:
                first = await client.messages.create(**ASK)
            [call] = first.content
            result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Not an object.", "is_error": True}
            history = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            await client.messages.create(**{**ASK, "messages": history})
        with pytest.raises(anthropic.AuthenticationError, match="x-api-key: KEY"):
            await client_of(url, "wrong").messages.create(**ASK)
    assert list(call.input) == ["INVALID_JSON"]
    assert said in prompts[-1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens: field required"),
        ({"top_k": 5}, "top_k is not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking is not supported"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image' cannot be read"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
         "tool_use cannot be the user's"),
        ({"messages": [*ASKED, {"role": "assistant", "content": "Sure:"}]}, "the assistant's own"),
        ({"tool_choice": {"type": "tool"}}, "needs a name"),
        ({"model": "claude"}, "is not served here"),
    ],
)  # fmt: skip
def test_what_a_message_cannot_honour_is_refused_in_anthropics_form(
    tiny: ServedTiny, fields: dict[str, Any], message: str
) -> None:
    reply = httpx.post(
        f"{tiny.url}/v1/messages",
        json={**{name: value for name, value in ASK.items() if name != "extra_body"}, **fields},
    )
    assert reply.json()["type"] == "error" and message in reply.json()["error"]["message"]
    kind = {400: "invalid_request_error", 404: "not_found_error"}[reply.status_code]
    assert reply.json()["error"]["type"] == kind


@pytest.mark.parametrize(("choice", "begins"), [({"type": "any"}, True), ({"type": "none"}, False)])
async def test_the_choice_of_tools(tiny: ServedTiny, choice: Any, begins: bool) -> None:
    async with client_of(tiny.url) as client:
        said = await client.messages.create(
            **{**ASK, "messages": [{"role": "user", "content": "Hi!"}]}, tool_choice=choice
        )
    assert (said.content[0].type == "tool_use") is begins
