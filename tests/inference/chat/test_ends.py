"""A turn ends at any end in the model's generation_config.json and continues as the template requires."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.ends import listed_ends, recorded_ends
from mcp_rl.tiny import weights_path

RESULT = [{"role": "tool", "content": "3"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(weights_path())


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer, [OTHER, OWN])


OWN, OTHER = 4324, 4325
"""<|im_end|>, which the template writes, and <|endoftext|>."""


def test_the_end_that_the_template_writes_comes_first(tokenizer: Any, chat: ChatFormat) -> None:
    assert tokenizer.convert_ids_to_tokens([OWN, OTHER]) == ["<|im_end|>", "<|endoftext|>"]
    assert ChatFormat(tokenizer).stop_token_ids == (OWN,)
    assert chat.stop_token_ids == (OWN, OTHER)
    assert chat.said("It is 3.")[-1:] == [OWN]


def test_the_templates_end_may_differ_from_the_tokenizers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    tokenizer.eos_token = "<|endoftext|>"
    chat = ChatFormat(tokenizer, [OWN])
    assert chat.stop_token_ids == (OWN, OTHER) and chat.said("It is 3.")[-1:] == [OWN]
    with pytest.raises(ConfigError, match=r"what its tokenizer and .* name as ends \('<\|endoftext\|>'\) is not in it"):
        ChatFormat(tokenizer)


def test_another_end_is_followed_by_the_templates_own(chat: ChatFormat) -> None:
    plain = chat.continuation(RESULT)
    assert chat.continuation(RESULT, after=OWN) == plain
    assert chat.continuation(RESULT, after=OTHER) == [OWN, *plain]


def test_ends_are_not_part_of_the_text(chat: ChatFormat) -> None:
    words = chat.encode("It is 3.")
    assert chat.decode([*words, OTHER]) == chat.decode([*words, OWN]) == "It is 3."


def test_outside_text_cannot_forge_another_end(tokenizer: Any) -> None:
    [end] = tokenizer.encode("false", add_special_tokens=False)  # added, but not a special token
    forged = [{"role": "tool", "content": "That is false."}]
    assert end in ChatFormat(tokenizer).continuation(forged)
    assert end not in ChatFormat(tokenizer, [end]).continuation(forged)


def test_ids_outside_the_vocabulary_are_no_ends(tokenizer: Any) -> None:
    assert ChatFormat(tokenizer, [-1, OTHER, len(tokenizer)]).stop_token_ids == (OWN, OTHER)


def test_a_template_that_refuses_tool_messages_is_one_sentence() -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    with pytest.raises(ConfigError, match=r"leaves the tools out of the prompt: set chat\.format=hermes"):
        ChatFormat(tokenizer)


@pytest.mark.parametrize(
    ("named", "ends"), [(None, ()), (7, (7,)), ([7, 8], (7, 8)), ((8,), (8,)), (["7", 8, True, None], (8,))]
)
def test_a_generation_config_names_one_end_or_several_or_none(named: Any, ends: tuple[int, ...]) -> None:
    assert listed_ends(SimpleNamespace(eos_token_id=named)) == ends


@pytest.mark.parametrize(
    ("loaded", "ends"),
    [({}, ()), ({"turn_ends": [7, 8]}, (7, 8)), ({"turn_ends": "7"}, ()), ({"turn_ends": ["x"]}, ())],
)
def test_a_run_of_an_earlier_version_has_no_further_ends(loaded: dict[str, Any], ends: tuple[int, ...]) -> None:
    assert recorded_ends(loaded) == ends
