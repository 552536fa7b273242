"""A tokenizer without transformers, which imports torch, for a trainer whose learner is in a child process.

The child describes its transformers tokenizer: the Rust tokenizer inside, the chat template and the special tokens. It
first compares both on conversations of every kind; if they differ, it describes nothing, and the parent loads
transformers' own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from pydantic import BaseModel, ConfigDict
from tokenizers import AddedToken, Tokenizer

from mcp_rl.inference.chat.template import render_template

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds <two> numbers & says so: “à 1.5”.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number", "default": 0.1}},
                "required": ["a"],
            },
        },
    }
]
_ASKED = {"role": "user", "content": "Was macht 1 + 2?\n\n  <b>'quoted' & \"so\"</b> 日本語 \U0001f600 {{x}} {% y %}"}
_CALL = {"id": "call", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [True, None, "é"]}}}
_CONVERSATIONS: list[list[dict[str, Any]]] = [
    [_ASKED],
    [{"role": "system", "content": "Be brief. "}, _ASKED, {"role": "assistant", "content": " Three."}],
    [
        _ASKED,
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": '{"result": 3}', "name": "tool", "tool_call_id": "call"},
        {"role": "tool", "content": "4", "name": "tool", "tool_call_id": "call"},
        {"role": "assistant", "content": "It is 3.", "tool_calls": [_CALL]},
        {"role": "user", "content": "And more?"},
    ],
]


class Description(BaseModel):
    """All that a chat format uses of a tokenizer."""

    model_config = ConfigDict(extra="forbid")

    name_or_path: str
    tokenizer: str
    """JSON of the Rust tokenizer."""
    chat_template: str
    special_tokens: dict[str, Any]
    """Tokens that templates know by name: `eos_token` and others."""
    all_special_tokens: list[str]
    eos_token: str
    eos_token_id: int


class PlainTokenizer:
    """The part of a transformers tokenizer that `ChatFormat` uses."""

    def __init__(self, description: Description) -> None:
        self.name_or_path, self.chat_template = description.name_or_path, description.chat_template
        self.eos_token, self.eos_token_id = description.eos_token, description.eos_token_id
        self.all_special_tokens = description.all_special_tokens
        self._special = description.special_tokens
        self._tokenizer: Tokenizer = Tokenizer.from_str(description.tokenizer)

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        added: dict[int, AddedToken] = self._tokenizer.get_added_tokens_decoder()
        return added

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool = True) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None,
        tokenize: bool,
        add_generation_prompt: bool,
        **arguments: Any,
    ) -> str:
        """Return the rendered text; `tokenize` must be False. `arguments` are further variables of the template."""
        assert not tokenize
        kept = [{name: value for name, value in message.items() if value is not None} for message in messages]
        return render_template(
            self.chat_template,
            **arguments,
            messages=kept,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special,
        )


def described(tokenizer: Any) -> Description | None:
    """Describe a transformers tokenizer for `PlainTokenizer`; None if that would behave differently."""
    try:
        description = Description(
            name_or_path=str(tokenizer.name_or_path),
            tokenizer=tokenizer.backend_tokenizer.to_str(),
            chat_template=tokenizer.chat_template,
            special_tokens=tokenizer.special_tokens_map,
            all_special_tokens=[str(token) for token in tokenizer.all_special_tokens],
            eos_token=str(tokenizer.eos_token),
            eos_token_id=int(tokenizer.eos_token_id),
        )
        return description if _is_same(PlainTokenizer(description), tokenizer) else None
    except (AttributeError, TypeError, ValueError, TemplateError):
        return None


def _is_same(plain: PlainTokenizer, tokenizer: Any) -> bool:
    """Return whether both render, encode and decode conversations of every kind alike."""
    if {id: str(token) for id, token in plain.added_tokens_decoder.items()} != {
        id: str(token) for id, token in tokenizer.added_tokens_decoder.items()
    }:
        return False
    texts = [message["content"] for conversation in _CONVERSATIONS for message in conversation]
    for conversation in _CONVERSATIONS:
        for tools in (None, _TOOLS):
            for prompt in (True, False):
                asked: dict[str, Any] = {"tools": tools, "tokenize": False, "add_generation_prompt": prompt}
                one, other = _rendered(plain, conversation, asked), _rendered(tokenizer, conversation, asked)
                if one != other:
                    return False
                texts.append(one or "")
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if plain.encode(text, add_special_tokens=False) != ids:
            return False
        if plain.decode(ids, skip_special_tokens=False) != tokenizer.decode(ids, skip_special_tokens=False):
            return False
    return len(plain) == len(tokenizer)


def _rendered(tokenizer: Any, conversation: list[dict[str, Any]], asked: dict[str, Any]) -> str | None:
    """Render a conversation; None if the template refuses it."""
    try:
        return str(tokenizer.apply_chat_template(conversation, **asked))
    except TemplateError:
        return None
