"""The real chat templates of model families, read from TRL, on a tokenizer of ours that has their tokens."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.tiny import weights_path

BAR = "\uff5c"
EOS = f"<{BAR}end\u2581of\u2581sentence{BAR}>"
_MARKS = re.compile(rf"<[|{BAR}][\w\u2581]+[|{BAR}]>|<\|\"\|>|<\|\w+>|<\w+\|>|</?think>|<(?:start|end)_of_turn>")


@dataclass(frozen=True)
class Family:
    """A template, the ends that its model's generation configuration names, and what must be found out of it."""

    template: str
    ends: tuple[str, ...]
    dialect: str
    thinks: bool = False
    told: bool = False
    """Its tools are told in the system prompt, by chat.format = "hermes"."""
    several: bool = True
    whole: bool = True
    """Turn by turn, its conversation is what its template makes of all of it."""


FAMILIES = [
    Family("qwen2_5", ("<|im_end|>",), "hermes"),
    Family("qwen3", ("<|im_end|>",), "hermes", thinks=True),
    Family("qwen3_instruct_2507", ("<|im_end|>",), "hermes"),
    Family("qwen3_5_think", ("<|im_end|>",), "xml", thinks=True),
    Family("qwen3_8", ("<|im_end|>",), "xml", thinks=True),
    Family("nemotron_3_nano", ("<|im_end|>",), "xml", thinks=True, whole=False),
    Family("llama3_1", ("<|eot_id|>", "<|eom_id|>"), "llama", several=False),
    Family("llama3_2", ("<|eot_id|>", "<|eom_id|>"), "llama", several=False),
    Family("gptoss", ("<|return|>", "<|call|>"), "harmony", thinks=True, several=False),
    Family("glm4moe", ("<|user|>", "<|observation|>"), "glm", thinks=True),
    Family("gemma4_v5", ("<turn|>", "<|tool_response>"), "gemma", thinks=True),
    Family("lfm2_2_5", ("<|im_end|>",), "lfm", thinks=True),
    Family("llama3", ("<|eot_id|>",), "hermes", told=True),
    Family("gemma3", ("<end_of_turn>",), "hermes", told=True),
    Family("phi3_5", ("<|end|>",), "hermes", told=True, whole=False),
    Family("deepseek_r1_distill", (EOS,), "hermes", thinks=True, told=True, whole=False),
]


def templates() -> Path | None:
    """Return TRL's folder of templates, without importing TRL; None if it is not installed."""
    found = find_spec("trl")
    return Path(str(found.origin)).parent / "chat_templates" if found is not None else None


def tokenizer_of(family: Family) -> Any:
    """Return our tokenizer with a family's template and special tokens."""
    folder = templates()
    assert folder is not None
    source = (folder / f"{family.template}.jinja").read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    marks = {*_MARKS.findall(source), *family.ends, "<bos>"}
    tokenizer.add_tokens(sorted(marks - set(tokenizer.get_vocab())), special_tokens=True)
    tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token = source, "<bos>", family.ends[0]
    return tokenizer


def chat_of(family: Family, **settings: Any) -> ChatFormat:
    """Return the chat format of a family, told in the system prompt where its template has no tools."""
    tokenizer = tokenizer_of(family)
    ends = tokenizer.convert_tokens_to_ids(list(family.ends))
    return ChatFormat(tokenizer, ends, format="hermes" if family.told else "auto", **settings)
