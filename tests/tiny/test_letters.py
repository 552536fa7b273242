"""The built-in model copies signs and letters that English texts lack."""

import json
import random
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from mcp_rl.tiny import weights_path
from mcp_rl.tiny.letters import in_strange_letters
from mcp_rl.tiny.mixture import toolset_and_conversations
from mcp_rl.tiny.pretrain import alike_tokens


def test_a_word_is_written_alike_throughout_a_conversation_and_in_no_listing() -> None:
    strange = 0
    for seed in range(16):
        tools, plain = toolset_and_conversations(random.Random(seed), 2, 0.0)
        listing = json.dumps([tool.schema for tool in tools])
        for one in plain:
            other = in_strange_letters(random.Random(seed), one, listing)
            assert [piece.role for piece in other] == [piece.role for piece in one]
            strange += other != one
            for before, after in zip(one, other, strict=True):
                names = r'"name": "[^"]*", "arguments": \{'
                assert re.findall(names, before.text) == re.findall(names, after.text)
                for call in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", after.text):
                    json.loads(call)
    assert strange > 16


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(weights_path())
    return found


def test_no_two_tokens_have_the_same_embedding() -> None:
    model = AutoModelForCausalLM.from_pretrained(weights_path())
    assert int(alike_tokens(model).sum()) == 0


@pytest.mark.parametrize("value", ["#ff8800", "café", "Über", "12°C", "a & b", "<b>", "naïve ~ x", "日本", "Žižka"])
def test_a_value_is_copied_into_a_call(value: str, tokenizer: PreTrainedTokenizerBase) -> None:
    model = AutoModelForCausalLM.from_pretrained(weights_path()).eval()
    tool = {"type": "function", "function": {"name": "save_label", "description": "Save a label.", "parameters": {
        "type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}}}  # fmt: skip
    asked = f"Use save_label with label = '{value}'."
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": asked}], tools=[tool], add_generation_prompt=True, return_tensors="pt"
    )
    ids = ids["input_ids"] if not isinstance(ids, torch.Tensor) else ids
    said = model.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    text = tokenizer.decode(said[0, ids.shape[1] :])
    assert f'"{value}"' in text, text
