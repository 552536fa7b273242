"""Each format of tool calls as models write it, well and badly, and thoughts from both sides."""

import pytest

from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion
from mcp_rl.inference.chat.dialects.dialect import properties_of
from mcp_rl.inference.chat.dialects.known import DIALECTS
from mcp_rl.inference.chat.rehearsal import TOOLS
from mcp_rl.inference.chat.thinking import Thinking

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
BAR, BLOCK = "\uff5c", "\u2581"


def deepseek(text: str) -> str:
    return text.replace("|", BAR).replace("_", BLOCK)


SAID = {
    "xml": "<tool_call>\n<function=look_up>\n<parameter=city>\n75001\n</parameter>\n<parameter=most>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm": "<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>75001</arg_value>\n<arg_key>most</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "harmony": '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.look_up '
    '<|constrain|>json<|message|>{"city": "75001", "most": 3}',
    "gemma": '<|tool_call>call:look_up{city:<|"|>75001<|"|>,most:3}<tool_call|>',
    "deepseek": deepseek("<|tool_calls_begin|><|tool_call_begin|>look") + "_up"
    + deepseek('<|tool_sep|>{"city": "75001", "most": 3}<|tool_call_end|><|tool_calls_end|>'),
    "lfm": "<|tool_call_start|>[look_up(city='75001', most=3)]<|tool_call_end|>",
    "mistral": '[TOOL_CALLS]look_up[ARGS]{"city": "75001", "most": 3}',
    "phi": '<|tool_call|>[{"name": "look_up", "arguments": {"city": "75001", "most": 3}}]<|/tool_call|>',
    "llama": '<|python_tag|>{"name": "look_up", "parameters": {"city": "75001", "most": 3}}',
    "hermes": '<tool_call>{"name": "look_up", "arguments": {"city": "75001", "most": 3}}</tool_call>',
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_call_is_read_with_texts_and_numbers_as_the_schema_has_them(name: str) -> None:
    read = BY_NAME[name].read(SAID[name], properties_of(TOOLS))
    assert (read.content, read.calls) == ("", [ParsedCall("look_up", {"city": "75001", "most": 3})])
    assert read.thought == ("Hm." if name == "harmony" else "")


@pytest.mark.parametrize("name", SAID)
def test_a_broken_call_is_a_sentence_for_the_model_and_is_never_executed(name: str) -> None:
    for broken in (SAID[name].replace("3", "3,,[", 1).replace("75001", "'"), SAID[name][: len(SAID[name]) * 2 // 3]):
        for call in BY_NAME[name].read(broken, properties_of(TOOLS)).calls:
            assert call.arguments is None or call.error is None
        read = BY_NAME[name].read(SAID[name].replace("look_up", "<", 1).replace("{", "", 1).replace("(", "", 1), {})
        assert all(call.arguments != {"city": "75001", "most": 3} for call in read.calls)


@pytest.mark.parametrize("name", SAID)
def test_words_are_words(name: str) -> None:
    for words in (
        "It is 3.",
        '{"answer": 3}',
        "[1, 2]",
        "look_up(city='Graz')",
        "to=functions",
        '{"name": "Ada"}',
        "{",
    ):
        assert BY_NAME[name].read(words, {}) == ParsedCompletion(words)


def test_nothing_is_evaluated() -> None:
    for value in ("__import__('os')", "[x for x in (1,)]", "1+1", "f'{1}'", "open", "1j", "b''", "..."):
        [call] = BY_NAME["lfm"].read(f"<|tool_call_start|>[add(numbers={value})]<|tool_call_end|>", {}).calls
        assert call.arguments is None and call.error is not None
    deep = "[" * 9000
    assert BY_NAME["lfm"].read(f"<|tool_call_start|>[add(numbers={deep})]<|tool_call_end|>", {}).calls[0].error


HERMES = (BY_NAME["hermes"].opens, BY_NAME["hermes"].closes)
CALL = SAID["hermes"]


@pytest.mark.parametrize(
    ("thinking", "text", "said", "thought"),
    [
        (Thinking(), "<think>\nIt is 42.\n</think>\n\nNo idea.", "No idea.", "It is 42."),
        (Thinking(opened=True), "It is 42.\n</think>\n\nNo idea.", "No idea.", "It is 42."),
        (Thinking(opened=True), f"I could {CALL} but", "", f"I could {CALL} but"),
        (Thinking(), f"<think>I could {CALL}</think>42", "42", f"I could {CALL}"),
        (Thinking(written=True), f"I could {CALL}</think>42", "42", f"I could {CALL}"),
        (Thinking(), "No idea. <think>It is 42.</think> Sorry.", "No idea.  Sorry.", "It is 42."),
        (Thinking(), f"First <think>{CALL}", "First", CALL),
        (Thinking(), CALL.replace("75001", "<think>a</think>"), CALL.replace("75001", "<think>a</think>"), ""),
        (Thinking(), "<think></think>42", "42", ""),
    ],
)
def test_a_thought_is_no_answer_and_holds_no_call(thinking: Thinking, text: str, said: str, thought: str) -> None:
    rest, found = thinking.split(text, HERMES)
    assert (rest.strip(), found) == (said, thought)
