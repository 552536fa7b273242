"""Reading turns while they are being sampled."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.inference.openai_api.reading import (
    CLOSE,
    OPEN,
    ArgumentsDelta,
    CallBegins,
    TextDelta,
    ThoughtDelta,
    TurnReader,
    reader_of,
)
from mcp_rl.tiny import weights_path

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": "}<\\"{", "b": [1, {"c": 2}]}}\n</tool_call>'
TURNS = [
    "  Just text, < and <tool_ in it. ",
    CALL,
    f"First. {CALL}\n{CALL} then  more ",
    '<tool_call>{"name": "ping"}</tool_call>',
    '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
    '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}',
    "<tool_call></tool_call>",
    "  ",
    "a </tool_call> b",
    '<tool_call>{"name": "\\u00e4\\"", "arguments": {}}</tool_call>',
]
BROKEN = [
    "<tool_call>add(1, 2)</tool_call>",
    '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 1}}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 1',
    '<tool_call>{"name": "add", "arguments": {"a": 1}, "name": "sub"}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": ]}</tool_call>',
    '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>',
]


def read(pieces: Sequence[str], **options: bool) -> tuple[str, list[tuple[str, str]]]:
    """Add up deltas as a client does: the text, and the calls' names and arguments."""
    reader = TurnReader(**options)
    deltas = [delta for piece in pieces for delta in reader.feed(piece)]
    text, calls = "", []
    for delta in [*deltas, *reader.end()]:
        if isinstance(delta, TextDelta):
            text += delta.text
        elif isinstance(delta, CallBegins):
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        else:
            assert isinstance(delta, ArgumentsDelta) and delta.index == len(calls) - 1
            calls[-1] = calls[-1][0], calls[-1][1] + delta.text
    return text, calls


@pytest.mark.parametrize("turn", TURNS)
def test_a_turn_is_read_as_a_rollout_reads_it(turn: str) -> None:
    text, calls = read([turn])
    parsed = parse_completion(turn)
    assert text == parsed.content
    readable = [(call.name, call.arguments) for call in parsed.calls if call.arguments is not None]
    assert [(name, json.loads(arguments)) for name, arguments in calls if arguments] == readable
    assert len(calls) == len(parsed.calls)


@pytest.mark.parametrize("turn", BROKEN)
def test_unreadable_calls_stay_unreadable_to_clients(turn: str) -> None:
    parsed = parse_completion(turn).calls[0]
    [(name, arguments)] = read([turn])[1]
    try:
        got = json.loads(arguments, parse_constant=lambda name: None)
    except ValueError:
        got = None
    good = parsed.arguments is not None and name == parsed.name and got == parsed.arguments
    assert not good and (not isinstance(got, dict) or "NaN" in turn)


@given(st.sampled_from(TURNS + BROKEN), st.lists(st.integers(0, 120), max_size=12))
@settings(max_examples=100, deadline=None)
def test_the_cut_into_pieces_does_not_matter(turn: str, cuts: list[int]) -> None:
    ends = [0, *sorted(min(cut, len(turn)) for cut in cuts), len(turn)]
    assert read([turn[a:b] for a, b in pairwise(ends)]) == read([turn])


@given(st.lists(st.sampled_from([*'<tool_cal>/{}"\\:, nme1', OPEN, CLOSE]), max_size=60).map("".join))
@settings(max_examples=100, deadline=None)
def test_any_text_reads_as_the_parser_reads_it(turn: str) -> None:
    text, calls = read(list(turn))
    parsed = parse_completion(turn)
    assert (text, len(calls)) == (parsed.content, len(parsed.calls))


def test_half_a_character_is_not_a_name() -> None:
    """A client could not encode such a name to send it back."""
    turn = '<tool_call>{"name": "a\\ud800", "arguments": {"a": 1}}</tool_call>'
    assert read([turn])[1] == [("", turn[len(OPEN) : -len(CLOSE)])]


def test_arguments_stream_before_the_call_ends() -> None:
    reader = TurnReader()
    deltas = list(reader.feed('<tool_call>\n{"name": "add", "arguments": {"a": 12'))
    assert deltas == [CallBegins(0, "add"), ArgumentsDelta(0, '{"a": 12')]


def test_text_after_a_single_allowed_call_is_dropped() -> None:
    assert read([f"Well. {CALL}{CALL} and"], one_call=True) == read([f"Well. {CALL}"])
    assert read([CALL], calls=False) == (CALL, [])


def test_a_thinking_models_turn_is_read_at_its_end_without_its_thought() -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    opening = "'<|im_start|>assistant\\n'"
    before, _, after = tokenizer.chat_template.rpartition(opening)
    tokenizer.chat_template = f"{before}'<|im_start|>assistant\\n<think>\\n'{after}"
    chat = ChatFormat(tokenizer)
    reader = reader_of(chat, [], calls=True, one_call=False)
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert list(reader.feed(f"Hm, {call}</thi")) == []
    assert [*reader.feed(f"nk>So: {call}"), *reader.end()] == [
        ThoughtDelta(f"Hm, {call}"), TextDelta("So:"), CallBegins(0, "add"), ArgumentsDelta(0, '{"a": 1}'),
    ]  # fmt: skip
