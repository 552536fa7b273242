"""Builds the built-in model's tokenizer: episodes are short, and a word has the same tokens wherever it stands.

Words never carry their leading space, so a name in a request and the same name inside JSON are the same ids and can be
copied by attention alone. Digits go in pairs from the left. The fixed fragments of the chat template, of tool schemas
and of tool calls are single tokens.

Merges are learned on isolated words. The saved tokenizer has Qwen2's own pre-tokenizer, which transformers and vLLM
give any tokenizer of this architecture: no merge crosses a word, so both cut text alike. Pairs of digits are added
tokens, because Qwen2's pre-tokenizer splits digits.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from mcp_rl.tiny import lexicon

if TYPE_CHECKING:
    from collections.abc import Iterator

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TYPES = ("string", "number", "integer", "boolean", "array", "object")
FRAGMENTS = (
    "system\n", "user\n", "assistant\n", "<tools>", "</tools>", "<tool_call>", "</tool_call>",
    "<tool_response>\n", "\n</tool_response>", "<tool_response>", "</tool_response>",
    "You can use these tools:\n<tools>",
    '\n</tools>\nTo use one, reply with its name and arguments as JSON: <tool_call>\n'
    '{"name": ..., "arguments": {...}}\n</tool_call>',
    '\n{"name": "', '", "arguments": {"', '", "arguments": {', "}}\n", '"}}\n', '": "', '": ', '", "', ', "',
    '"]', '": ["', '": {"', "true", "false", "null", '{"', '"}', "}}", '"}}', '\\"',
    '\n{"type": "function", "function": {"name": "', '", "description": "', ', "description": "',
    '", "parameters": {"type": "object", "properties": {"', '", "parameters": {"type": "object", "properties": {',
    '", "parameters": {"properties": {"', '", "parameters": {"properties": {', '", "parameters": {"',
    '$schema": "http://json-schema.org/draft-07/schema#", "', 'type": "object", "properties": {"',
    *(f'": {{"type": "{kind}"' for kind in _TYPES), *(f'"type": "{kind}"' for kind in _TYPES),
    *(f'{close}}}, "' for close in ("", '"')),
    *(f'{close}}}}}, "required": ["' for close in ("", '"', "]", '"]')), ', "required": ["', '"required": ["',
    *(f'{close}}}}}, "type": "object"' for close in ("", '"')), ', "type": "object"',
    '"]}}}', "}}}", '}}}}', ', "additionalProperties": false', '"], "additionalProperties": false}}}',
    ', "enum": ["', ', "items": {"type": "string"}', ', "title": "', ', "default": ', ', "minimum": ', ', "maximum": ',
    ', "anyOf": [{"type": "', '"}, {"type": "', "The tool ", "Error: ", " = ", ", then ", ". Then ", " the result",
    *(f'{open_}, "type": "{kind}"' for open_ in ("", '"') for kind in _TYPES),
    '": {"title": "', '": {"description": "', '": {"default": ', '": {"anyOf": [{"type": "', '"], "title": "',
    '"}, {"type": "null"}], "default": null', '"}, {"type": "null"}], "default": null, "title": "', ', "default": "',
    ', "default": null', ', "default": false', ', "default": true', '"], "type": "object"', "]}}}",
    ". ", ", ", ": ", ". The ", "; ", " (", ") ", "). ", " - ", "\n- ", "\n\n", "', '", "' and '", "' is '",
)  # fmt: skip


_BETWEEN = """the a an of to in for with and or by from on at is are be as that it its this if has have was can will not
all any you your which when than into of_the in_the to_the for_the on_the of_a in_a to_a with_a from_the and_the is_the
by_the with_the if_the or_the to_be a_new are_there is_there what_is""".split()
"""Words and pairs of words of a sentence: each is one token with the spaces on both sides, so that whatever stands
between them keeps the tokens that it has anywhere else."""


def build_tokenizer(size: int = 4608) -> Qwen2Tokenizer:
    """Train the tokenizer on the lexicon; the same call gives the same bytes. `size` is the whole vocabulary."""
    learner = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"[A-Z]?[a-z]+|[A-Z]+|\s|[^\sA-Za-z]"), behavior="isolated")
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    between = (f" {words.replace('_', ' ')} " for words in _BETWEEN)
    added = list(dict.fromkeys((*FRAGMENTS, *between, *(f"{pair:02d}" for pair in range(100)))))
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL) - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(_words(), trainer)
    model = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],  # type: ignore[misc]
        unk_token=None,  # type: ignore[arg-type]
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=(Path(__file__).parent / "chat_template.jinja").read_text(),
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL], special_tokens=True)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer


def _words() -> Iterator[str]:
    """Yield words as often as they weigh: function words and lexicon words often, random syllables now and then."""
    families = (lexicon.ACTIONS, lexicon.NUMERIC, lexicon.UNARY, lexicon.TEXTUAL)
    spoken = [word for family in families for entry, others in family.items() for word in (entry, *others)]
    spoken += [name for names in lexicon.PARAMETERS.values() for text in names for name in text.split()]
    spoken += [choice for choices in lexicon.ENUMS for choice in choices]
    words = [part for phrase in spoken for part in phrase.replace("_", " ").split()]
    for word in dict.fromkeys([*_FUNCTION_WORDS.split(), *words]):
        yield from [word, word.capitalize()] * 40
    for word in dict.fromkeys((*lexicon.NOUNS, *lexicon.NAMES, *lexicon.FILLER)):
        yield from [word] * 30
        yield from [word + "s"] * 12
        yield from [word.capitalize()] * 4
    for word in dict.fromkeys((*lexicon.COMMON, *lexicon.FURTHER)):
        yield from [word] * 16
        yield from [word.capitalize()] * 4
    rng = random.Random(0)
    for _ in range(2500):
        yield rng.choice("bcdfghjklmnprstvw") + rng.choice("aeiou") + rng.choice("aeioulnrst")


_FUNCTION_WORDS = """a an the of to in for with and or by from on at is are was be been it its that this these those what
which who how much many do does did can could would will should please use using used call run tool tools then next
after before first second third last result results answer value values number numbers set as into out up down away off
if not no yes all any each only one two three four five six seven eight nine ten times more less than between both me my
you your i we need want like tell give take makes made become becomes get gets got have has had left right side square
root area long percent part whole amount together apart raised exponent base power expression arithmetic text input
output returns return given such error failed invalid unknown division zero large small too argument arguments missing
required must did mean try again have allowed within bad fails there here now when where why so but also just exactly
equal equals equally worth it's what's plus minus over under per
file files directory directories folder contents content line lines list lists system path paths read write search
match matching matches pattern supports support current multiple single complete entire detailed information about
including size permissions creation modified time type specified optional default only works use useful need"""
