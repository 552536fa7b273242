"""POST /v1/responses, through the openai client and its own types."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.inference.openai_api.conftest import ASKED, TOOLS, ServedTiny

FUNCTIONS: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
ASK: dict[str, Any] = {"model": "tiny", "input": ASKED[0]["content"], "tools": FUNCTIONS, "temperature": 0}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def said(response: Response) -> list[Any]:
    """Return the output without what is new in each answer."""
    new = {"id": True, "call_id": True, "parsed_arguments": True, "content": {"__all__": {"parsed"}}}
    return [item.model_dump(exclude=new) for item in response.output]


async def test_a_response_is_the_turn_of_a_chat(tiny: ServedTiny) -> None:
    async with tiny.client() as client:
        chat = await client.chat.completions.create(model="tiny", messages=ASKED, tools=TOOLS, temperature=0)
        response = await client.responses.create(**ASK, instructions="", max_output_tokens=200)
        raw = await client.responses.with_raw_response.create(**ASK)
        short = await client.responses.create(**ASK, max_output_tokens=3)
    [call], [wanted] = response.output, chat.choices[0].message.tool_calls
    assert (call.type, call.name, call.arguments) == (
        *("function_call", wanted.function.name),
        wanted.function.arguments,
    )
    assert (response.status, response.usage.input_tokens, response.usage.output_tokens) == (
        *("completed", chat.usage.prompt_tokens),
        chat.usage.completion_tokens,
    )
    Response.model_validate_json(raw.text)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("asked", [ASK, {**ASK, "input": "Hi!", "tools": []}], ids=["call", "text"])
async def test_a_stream_adds_up_to_the_whole_response(tiny: ServedTiny, asked: dict[str, Any]) -> None:
    async with tiny.client() as client:
        whole = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        plain = [event async for event in await client.responses.create(**asked, stream=True)]
    assert said(final) == said(whole) and final.usage.output_tokens == whole.usage.output_tokens
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text and len(events) >= 5
    assert [event.sequence_number for event in plain] == list(range(len(plain)))
    for event in plain:
        EVENT.validate_python(event.model_dump())


@pytest.mark.parametrize("way", ["history", "by id", "by id, streamed"])
async def test_a_conversation_continues_token_exactly_from_items_or_an_id(tiny: ServedTiny, way: str) -> None:
    more = {"instructions": "Be brief."}
    async with tiny.client() as client:
        first = await client.responses.create(**ASK, **more)
        [call] = first.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
        thought: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
        earlier = [{"role": "user", "content": ASK["input"]}, thought, call.model_dump(exclude_none=True)]
        asked = {**ASK, **more, "input": [*earlier, result]}
        if way != "history":
            asked |= {"input": [result], "previous_response_id": first.id}
        if "streamed" in way:
            async with client.responses.stream(**asked) as stream:
                second = await stream.get_final_response()
        else:
            second = await client.responses.create(**asked)
        third = await client.responses.create(
            **{**ASK, **more, "input": "And again.", "previous_response_id": second.id}
        )
    so_far = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens >= so_far - 1
    assert third.usage.input_tokens > second.usage.input_tokens + second.usage.output_tokens


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_x"}, "previous_response_id", "'resp_x' is not kept here"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools.0"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input", "'web_search_call' are not known here"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "only parts of text"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "1"}]}, "messages", "no tool call 'x'"),
        ({"text": {"format": {"type": "json_object"}}}, "text", "not supported"),
        ({"reasoning": {"effort": "high"}}, "reasoning", "not supported"),
        ({"top_p": 0.5}, "top_p", "not supported"),
        ({"conversation": "c"}, "conversation", "no such field"),
    ],
)
async def test_what_a_response_cannot_honour_is_refused_by_name(
    tiny: ServedTiny, fields: dict[str, Any], param: str, message: str
) -> None:
    async with tiny.client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**{**ASK, **fields})
    assert refused.value.param == param and message in refused.value.message


async def test_a_response_that_is_not_stored_cannot_be_continued(tiny: ServedTiny) -> None:
    async with tiny.client() as client:
        response = await client.responses.create(**ASK, store=False)
        with pytest.raises(openai.BadRequestError, match="send the whole conversation"):
            await client.responses.create(**{**ASK, "previous_response_id": response.id})


async def test_two_texts_in_a_row_stay_two_turns_and_a_text_with_calls_is_one(tiny: ServedTiny) -> None:
    from mcp_rl.inference.openai_api.requests import read
    from mcp_rl.inference.openai_api.responses_requests import ResponseRequest

    def turn(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    items = [{"role": "user", "content": "x"}, turn("one"), turn("two"), call, {**call, "call_id": "d"}]
    request = read(ResponseRequest, json.dumps({"model": "m", "input": items}).encode())
    found = request.to_chat((), None).messages
    assert [(m.role, m.content, len(getattr(m, "tool_calls", ()))) for m in found] == [
        *(("user", "x", 0), ("assistant", "one", 0)),
        ("assistant", "two", 2),
    ]
