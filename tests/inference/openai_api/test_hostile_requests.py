"""Every request is answered or refused by name, crashes nothing and leaves nothing behind."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.openai_api.served import fixed_model
from mcp_rl.inference.openai_api.service import Service
from mcp_rl.inference.scripted import ScriptedEngine
from tests.inference.openai_api.conftest import TOOLS
from tests.two_ends import OTHER

SAID = [
    "Hi there.",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    "It is 3.<|endoftext|>",
    "é🎈<tool_call>{",
]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ],
    **{"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True, "stop": ["zz"], "seed": 1, "n": 1},
    **{"max_tokens": 20, "temperature": 1.0, "logprobs": True, "top_logprobs": 2, "return_token_ids": True},
    **{"stream": False, "stream_options": {"include_usage": True}},
}
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Add."}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "7"},
    ],
    "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
    **{"tool_choice": "auto", "parallel_tool_calls": True, "max_output_tokens": 20, "temperature": 1.0, "store": True},
    **{"stream": False, "metadata": {"a": "b"}},
}
MESSAGES: dict[str, Any] = {
    "model": "tiny",
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Add."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "7"}]},
    ],
    "tools": [{"name": "add", "input_schema": {"type": "object"}, "description": "Add."}],
    **{
        "tool_choice": {"type": "auto"},
        "max_tokens": 20,
        "temperature": 1.0,
        "stop_sequences": ["zz"],
        "stream": False,
    },
}
TEXT = {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "logprobs": 2, "n": 1, "stream": False, "stop": None}
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**70, 1.5, "", "x", "\ud800", "\x00", "<|im_end|>", "<tool_call>", "é" * 50, "{"),
    *([], [[]], {}, {"a": 1}, [1], ["x"], [None], '{"a": "\\ud800"}', "required", "none", "add", "user", "tool"),
    *({"type": "function", "function": {"name": "add"}}, [{"type": "text", "text": "t"}]),
]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*above, key)
        yield from places(part, (*above, key))


def spoilt(request: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return the request with odd, missing or doubled parts."""
    request = copy.deepcopy(request)
    for _ in range(dice.randint(1, 2)):
        *above, last = dice.choice(list(places(request)))
        parent: Any = request
        for key in above:
            parent = parent[key]
        kind = dice.random()
        if kind < 0.75:
            parent[last] = copy.deepcopy(dice.choice(ODD))
        elif kind < 0.9:
            del parent[last]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
    if dice.random() < 0.3:
        request["stream"] = True
    return request


@pytest.mark.parametrize(
    ("path", "request_", "times"),
    [
        ("/v1/chat/completions", CHAT, 250),
        ("/v1/responses", RESPONSE, 250),
        ("/v1/messages", MESSAGES, 250),
        ("/tokenize", CHAT, 40),
        ("/v1/completions", TEXT, 80),
    ],
)
async def test_no_request_crashes_the_server(policies: Any, path: str, request_: dict[str, Any], times: int) -> None:
    chat = ChatFormat(policies.chat.tokenizer, [OTHER])
    engine = ScriptedEngine(lambda text, seed, turn: SAID[seed % len(SAID)], chat, max_context=600)
    service, dice, statuses = Service([fixed_model(["tiny"], engine, chat)]), random.Random(7), set()
    request_ = request_ if path != "/tokenize" else {key: CHAT[key] for key in ("model", "messages", "tools")}
    for _ in range(times):
        body = json.dumps(spoilt(request_, dice)).encode()
        reply = await service.answer(service.handler("POST", path), body)
        statuses.add(reply.status)
        events = [event async for event in reply.events] if reply.events is not None else [json.dumps(reply.body)]
        assert reply.status < 500 and not any("server_error" in str(event) for event in events), body
        assert service._in_flight == 0, body
    assert {200, 400} <= statuses
