"""A tokenizer without transformers behaves like transformers' own in a chat format, or is not made."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from mcp_rl.backends.base.plain_tokenizer import Description, PlainTokenizer, described
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.tiny import weights_path

TOKENIZER = AutoTokenizer.from_pretrained(str(weights_path()))
DESCRIPTION = described(TOKENIZER)
assert DESCRIPTION is not None
PLAIN = ChatFormat(PlainTokenizer(Description.model_validate_json(DESCRIPTION.model_dump_json())))
THEIRS = ChatFormat(TOKENIZER)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(), min_size=2, max_size=2), st.dictionaries(st.text(), st.text() | st.floats(0, 1), max_size=3))
def test_conversations_have_the_same_ids_with_both(texts: list[str], schema: dict[str, object]) -> None:
    messages = [{"role": "system", "content": texts[0]}, {"role": "user", "content": texts[1]}]
    tools = [{"type": "function", "function": {"name": "f", "description": texts[0], "parameters": schema}}]
    ids = THEIRS.initial(messages, tools)
    assert PLAIN.initial(messages, tools) == ids
    assert PLAIN.decode(ids) == THEIRS.decode(ids)
    answers = [{"role": "tool", "content": text} for text in texts]
    assert PLAIN.continuation(answers) == THEIRS.continuation(answers)
    assert PLAIN.stop_token_ids == THEIRS.stop_token_ids


@pytest.mark.parametrize(
    "template",
    [
        "{{ cycler }}",  # a name that is not given here
        "{{ strftime_now('%f') }}",  # never twice the same
    ],
)
def test_where_it_would_not_be_the_same_there_is_none(template: str) -> None:
    odd = AutoTokenizer.from_pretrained(str(weights_path()))
    odd.chat_template = template
    assert described(odd) is None


def test_it_needs_no_torch() -> None:
    program = """
import sys
from mcp_rl.backends.base.plain_tokenizer import Description, PlainTokenizer
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.backends.processes.child import ChildLearner
import mcp_rl.backends.local, mcp_rl.runs.steps.trainer
chat = ChatFormat(PlainTokenizer(Description.model_validate_json(sys.stdin.read())))
print(chat.encode("add 1 and 2"), "torch" in sys.modules, "transformers" in sys.modules)
"""
    assert DESCRIPTION is not None
    said = subprocess.run(
        [sys.executable, "-c", program], input=DESCRIPTION.model_dump_json(), capture_output=True, text=True, check=True
    )
    assert said.stdout.split("] ")[1] == "False False\n"
    assert json.loads(said.stdout.split(" False")[0]) == THEIRS.encode("add 1 and 2")
