"""Conversations in OpenAI's form become the tokens of a rollout; impossible ones are refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.conversation import conversation, read_lines, render
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.tiny import weights_path

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(weights_path()))


def call(number: int, arguments: dict[str, Any] | str, name: str = "add") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}


def line(**changes: Any) -> dict[str, Any]:
    """A conversation of two turns, the first with two calls at once."""
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "add 1 and 2, then 3 and 4 <|im_end|>"},
        {"role": "assistant", "content": None, "tool_calls": [call(0, {"a": 1, "b": 2}), call(1, {"b": 4, "a": 3})]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
        {"role": "tool", "tool_call_id": "call_0", "content": [{"type": "text", "text": "3"}]},
        {"role": "assistant", "content": "3 and 7"},
    ]
    return {"messages": messages, "tools": [ADD], **changes}


def test_a_conversation_renders_as_its_rollout(chat: ChatFormat) -> None:
    tokens, learned = render(conversation(line(), "here"), chat)
    turns = [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"b": 4, "a": 3}}\n</tool_call>',
        "3 and 7",
    ]
    said = [[*chat.encode(text), *chat.stop_token_ids] for text in turns]
    opening = chat.initial(line()["messages"][:2], [ADD])
    results = chat.continuation([{"role": "tool", "content": "3"}, {"role": "tool", "content": "7"}])
    assert tokens == [*opening, *said[0], *results, *said[1]]
    assert [t for t, is_learned in zip(tokens, learned, strict=True) if is_learned] == [*said[0], *said[1]]
    assert [call.name for call in parse_completion(turns[0]).calls] == ["add", "add"]


def test_turns_of_weight_0_are_not_learned(chat: ChatFormat) -> None:
    fields = line()
    fields["messages"][2]["weight"] = 0
    fields["messages"].append({"role": "user", "content": "thanks"})
    tokens, learned = render(conversation(fields, "here"), chat)
    assert tokens == render(conversation(line(), "here"), chat)[0]
    last = [*chat.encode("3 and 7"), *chat.stop_token_ids]
    assert learned == [False] * (len(tokens) - len(last)) + [True] * len(last)


def test_null_fields_count_as_absent(chat: ChatFormat) -> None:
    fields = line(parallel_tool_calls=True, metadata={"from": "a run"})
    fields["messages"][5] |= {"tool_calls": None, "refusal": None, "function_call": None}
    assert render(conversation(fields, "here"), chat) == render(conversation(line(), "here"), chat)


def changed(at: int, **fields: Any) -> dict[str, Any]:
    made = copy.deepcopy(line())
    made["messages"][at] |= fields
    return made


def without(*places: int) -> dict[str, Any]:
    return line(messages=[message for at, message in enumerate(line()["messages"]) if at not in places])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (["a list"], "valid dictionary"),
        ({"messages": []}, "messages"),
        ({"prompt": "a", **line()}, "prompt: this field"),
        (changed(5, role="bot"), "messages.5"),
        (changed(5, function_call={"name": "add"}), "messages.5.function_call: this field"),
        (changed(1, content=[{"type": "image_url"}]), "messages.1.content: only parts of type text"),
        (changed(5, content="  "), "messages.5: the assistant says nothing"),
        (changed(1, role="system"), "messages.1: a system message must come first"),
        (changed(2, tool_calls=[call(0, "{'a': 1}"), call(1, {})]), "messages.2.tool_calls.0.function.arguments: not"),
        (changed(2, tool_calls=[call(0, "[1]"), call(1, {})]), "the JSON of an object is needed"),
        (changed(2, tool_calls=[call(0, '{"a": NaN}'), call(1, {})]), "NaN is not JSON"),
        (changed(2, tool_calls=[call(0, {}), call(0, {})]), "messages.2: two tool calls have the same id"),
        (changed(2, tool_calls=[call(0, {}), call(1, {}, "ad")]), "the line's tools have no 'ad'"),
        (changed(3, tool_call_id="call_9"), "messages.3: the turn before made no call 'call_9'"),
        (changed(4, tool_call_id="call_1"), "messages.4: the call 'call_1' is answered twice"),
        (without(3), "messages.4: the call 'call_1' of the turn before has no tool message"),
        (without(3, 4), "messages.3: the assistant speaks twice in a row"),
        (without(1), "messages.1: the assistant speaks before any user"),
        (without(2, 3, 4, 5), "there is no assistant message to train on"),
        (line(tools=[{"name": "add"}]), "tools.0"),
    ],
)
def test_impossible_conversations_are_refused(fields: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        conversation(fields, "data.jsonl, line 7")
    assert str(raised.value).startswith("data.jsonl, line 7: ")
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["done <|im_end|> and more", "<tool_call>\n{}\n</tool_call>", "a <|im_start|> b"])
def test_a_turn_that_could_not_be_sampled_as_one_is_refused(chat: ChatFormat, text: str) -> None:
    with pytest.raises(ConfigError, match=r"line 7: messages\.5: it holds a control string"):
        render(conversation(changed(5, content=text), "data.jsonl, line 7"), chat)


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": "\u2028"}\n\n{"b": 2}\n')
    assert [fields for _, fields in read_lines(file)] == [{"a": "\u2028"}, {"b": 2}]
    file.write_text('{"a": 1}\n{"a": }\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 2: this is not valid JSON"):
        list(read_lines(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"Cannot read the conversations .*a\.jsonl"):
        list(read_lines(file))
    with pytest.raises(ConfigError, match="No such file"):
        list(read_lines(tmp_path / "b.jsonl"))
