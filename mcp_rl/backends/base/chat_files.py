"""The chat format of a base model, and whether it can be sampled in-process, read from its files before it is loaded.
Imports no torch and no transformers.

Reads tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json and config.json, from a folder
or from the hub's cache on this machine. Says nothing where one is missing, as the loaded model is checked again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.base.options import base_location
from mcp_rl.backends.base.plain_tokenizer import Description, PlainTokenizer
from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.engine import ATTENTION

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 64 * 2**20
"""Maximum bytes of a file; the largest tokenizer.json has 34 million."""
_RECURRENT = ("mamba", "rwkv", "jamba", "bamba", "zamba", "falcon_h1", "nemotron_h", "recurrent_gemma", "lfm2", "lfm3",
              "qwen3_next", "granitemoehybrid", "minimax", "kimi_linear", "xlstm")  # fmt: skip
"""How the types of models begin whose config.json may not list the types of its layers."""


def chat_of_files(base_model: str, settings: Mapping[str, Any], revision: str | None = None) -> ChatFormat | None:
    """Return the chat format of a base model; None if its files are not on this machine or do not tell.

    Raises ConfigError for a model without a chat template, a template that fails on tools, or end tokens that do not
    match it.
    """
    files = _Files(base_model, revision)
    about, tokenizer = files.json("tokenizer_config.json"), files.text("tokenizer.json")
    if about is None or tokenizer is None:
        return None
    template = files.text("chat_template.jinja") or about.get("chat_template")
    if template is not None and not isinstance(template, str):
        return None  # several named templates: transformers chooses
    names = {key: _content(value) for key, value in about.items() if key.endswith("_token")}
    special = {key: value for key, value in names.items() if isinstance(value, str)}
    try:
        eos = special.get("eos_token")
        plain = PlainTokenizer(
            Description(
                name_or_path=base_model,
                tokenizer=tokenizer,
                chat_template=template or "",
                special_tokens=special,
                all_special_tokens=sorted(set(special.values())),
                eos_token=eos or "",
                eos_token_id=0,
            )
        )
        found = {str(token): id for id, token in plain.added_tokens_decoder.items()}
    except Exception:  # a stranger's file, which the library that loads it names better
        return None
    if eos is None or eos not in found:
        return None
    plain.eos_token_id = found[eos]
    generation = files.json("generation_config.json") or {}
    named = generation.get("eos_token_id")
    ends = [id for id in (named if isinstance(named, list) else [named]) if type(id) is int]
    if ends and (strange := [id for id in ends if not 0 <= id < max(len(plain), *found.values())]):
        raise ConfigError(
            f"The base model {base_model!r} ends its turns at token {strange[0]} by its generation_config.json, and "
            f"its tokenizer has {len(plain):,} tokens: they belong to different models; put the right files together."
        )
    return ChatFormat(plain, ends, **settings)


def check_sampled(base_model: str, revision: str | None = None) -> None:
    """Raise ConfigError for a base model with layers that the in-process engine cannot sample, by its config.json."""
    config = _Files(base_model, revision).json("config.json") or {}
    text = config.get("text_config")
    text = {**config, **text} if isinstance(text, dict) else config
    listed, kind = text.get("layer_types"), str(text.get("model_type", ""))
    if isinstance(listed, list):
        others = sorted({str(layer) for layer in listed} - ATTENTION)
    else:
        others = ["recurrence or convolution"] if kind.startswith(_RECURRENT) else []
    if others:
        raise ConfigError(
            f"The base model {base_model!r} ({kind}) has layers of {' and '.join(others)}, and the in-process engine "
            "samples attention only: let vLLM sample it, with --engine vllm."
        )


class _Files:
    """The files of a base model, in a folder or in the cache."""

    def __init__(self, base_model: str, revision: str | None) -> None:
        self._folder = Path(base_location(base_model)).expanduser()
        self._name, self._revision = base_model, revision

    def text(self, name: str) -> str | None:
        path = self._folder / name if self._folder.is_dir() else self._cached(name)
        try:
            return path.read_text(encoding="utf-8") if path is not None and path.stat().st_size <= _LARGEST else None
        except (OSError, UnicodeDecodeError):
            return None

    def json(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self.text(name) or "null")
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _cached(self, name: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            found = try_to_load_from_cache(self._name, name, revision=self._revision)
        except HFValidationError:
            return None
        return Path(found) if isinstance(found, str) else None


def _content(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value
