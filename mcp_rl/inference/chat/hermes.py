"""The Hermes tool-call format, token-exact, over any Hugging Face chat template that supports it.

Invariant: the ids of a conversation are `initial + sampled + continuation + sampled + …`. A continuation is the
rendering of the new messages alone, cut from a rendering that ends in a placeholder assistant turn, so nothing that the
policy saw or sampled is ever rendered or tokenized again.

A model may end its turn with several tokens (generation_config.json lists them), and its template writes one of them.
The sampled one is kept. If it is not the template's, the template's own follows it as a given token, so the frame of
every turn is closed before the next one opens.

Text from outside (requests, tool results) cannot forge a turn or a tag: control strings in it are broken by a space
after their first character.
"""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Message = dict[str, Any]

_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_OPENINGS = 64 * 2**20
"""Bytes of cached openings: all rollouts of a group begin with the same one."""
_TEXTS = 16 * 2**20
"""Bytes of texts with cached ids: rollouts of a group often get the same tool result."""
_SKELETONS = 4 * 2**20
"""Bytes of cached frames around messages, by their roles."""
_OVERHEAD = 200
"""Bytes of a cache entry beside its content."""
_REQUEST, _ANSWER, _NEW = "\u2402request\u2403", "\u2402answer\u2403", "\u2402new{}\u2403"
_SLOT = re.compile(_NEW.format(r"(\d+)"))


@dataclass(frozen=True)
class ParsedCall:
    """A tool call of the model. `arguments` is None if it could not be parsed; `error` says why."""

    name: str
    arguments: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True)
class ParsedCompletion:
    """A parsed turn: the stripped text outside tool calls, and the calls in order."""

    content: str
    calls: list[ParsedCall] = field(default_factory=list)


def parse_completion(text: str) -> ParsedCompletion:
    """Parse `<tool_call>{"name": …, "arguments": {…}}</tool_call>` blocks. Never raises.

    A malformed call has an error, one sentence that is returned to the model. An unclosed block extends to the end.
    """
    return ParsedCompletion(_CALL.sub("", text).strip(), [_parse_call(body) for body in _CALL.findall(text)])


def _parse_call(body: str) -> ParsedCall:
    try:
        call = read_json(body)
    except (ValueError, RecursionError) as error:
        return ParsedCall("", None, f"The tool call is not valid JSON: {error}.")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ParsedCall("", None, 'The tool call must be a JSON object with a "name" and "arguments".')
    return parsed_call(call["name"], call.get("arguments", {}))  # some models encode the arguments twice


def parsed_call(name: str, arguments: Any) -> ParsedCall:
    """Check a call's arguments, a JSON object or the text of one. Never raises: `error` says what is wrong."""
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except (ValueError, RecursionError) as error:
            return ParsedCall(name, None, f"The arguments are not valid JSON: {error}.")
    if not isinstance(arguments, dict):
        return ParsedCall(name, None, "The arguments must be a JSON object.")
    return ParsedCall(name, arguments)


def read_json(text: str) -> Any:
    """Parse JSON. Raises ValueError, RecursionError.

    Half of a surrogate pair is an error too: JSON can escape it, but no tokenizer or server can encode it.
    """
    found = json.loads(text, parse_constant=_no_constant)
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start]!a} is half of a character") from error
    return found


def whole_characters(text: str) -> str:
    """Replace unpaired surrogates, which cannot be encoded."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class ChatFormat:
    """Renders conversations for one tokenizer. Raises ConfigError if its template cannot be continued exactly."""

    def __init__(self, tokenizer: Any, ends: Collection[int] = ()) -> None:
        """`ends`: ids that end a turn besides the tokenizer's own; ids outside its vocabulary are ignored."""
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise ConfigError(
                f"The tokenizer of {tokenizer.name_or_path!r} has no chat template; use a chat model, or save the "
                "template that the model was tuned with beside it (tokenizer.chat_template = …, then save_pretrained)."
            )
        if tokenizer.eos_token is None:
            raise ConfigError(f"The tokenizer of {tokenizer.name_or_path!r} has no end-of-turn token (eos_token).")
        eos, known = int(tokenizer.eos_token_id), [id for id in sorted(ends) if 0 <= id < len(tokenizer)]
        written = {id: str(tokenizer.decode([id], skip_special_tokens=False)) for id in known}
        listed = {eos: str(tokenizer.eos_token), **{id: text for id, text in written.items() if id != eos}}
        added = {int(id): token for id, token in tokenizer.added_tokens_decoder.items()}
        self._special = {id for id, token in added.items() if token.special or id in listed}
        special = {str(added[id]) for id in self._special}
        controls = {*tokenizer.all_special_tokens, *special, *_TAGS}
        self._controls = re.compile("|".join(re.escape(text) for text in sorted(controls, key=len, reverse=True)))
        self._encoded: Remembered[str, array[int]] = Remembered(_TEXTS)
        self._skeletons: Remembered[tuple[str, ...], str] = Remembered(_SKELETONS)
        self._openings: Remembered[tuple[int, str], tuple[Sequence[dict[str, Any]], array[int]]] = Remembered(_OPENINGS)
        own = self._own_end(listed)
        self.stop_token_ids = (own, *(id for id in listed if id != own))
        """Ids that end a turn; the first is the one that the template writes."""
        self._end = listed[own]
        self._continuation_text([{"role": "tool", "content": "probe"}])

    def encode(self, text: str) -> list[int]:
        """Return the ids of text, with control strings as control tokens."""
        if (known := self._encoded.get(text)) is not None:
            return known.tolist()
        ids: list[int] = self._encode(text)
        self._encoded.put(text, array("i", ids), len(text) + 4 * len(ids) + _OVERHEAD)
        return ids

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False, verbose=False))  # no warnings about length

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled ids without a stop token at the end."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def initial(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids of the opening messages and tool schemas, including the generation prompt."""
        key = (id(tools), json.dumps(messages, sort_keys=True, default=str))
        known = self._openings.get(key)
        if known is not None and known[0] is tools:
            return known[1].tolist()
        ids = self._encode(self._render([self._safe(m) for m in messages], self._harmless_in(tools), prompt=True))
        weight = len(key[1]) + (16 if tools else 4) * len(ids) + _OVERHEAD  # the tools' objects are kept too
        self._openings.put(key, (tools, array("i", ids)), weight)
        return ids

    def continuation(self, messages: Sequence[Message], after: int | None = None) -> list[int]:
        """Return the ids that follow a sampled turn: the rest of its frame, new messages, the next generation prompt.

        `after`: the turn's last token; None: the template's own end.
        """
        ids = self.encode(self._continuation_text([self._safe(m) for m in messages]))
        return ids if after is None or after == self.stop_token_ids[0] else [self.stop_token_ids[0], *ids]

    def said(self, content: str, calls: Sequence[ParsedCall] = ()) -> list[int]:
        """Return the ids that a policy samples to say this, as the template writes it, including its end.

        Raises ValueError if they would not be parsed as the same turn, because the text holds a control string.
        """
        request: Message = {"role": "user", "content": _REQUEST}
        turn: Message = {"role": "assistant", "content": content}
        if calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
            turn["tool_calls"] = [{"id": "call", "type": "function", "function": function} for function in functions]
        opening, whole = self._render([request], (), prompt=True), self._render([request, turn], (), prompt=False)
        text, stop, rest = whole.removeprefix(opening).partition(self._end)
        read = parse_completion(text)
        if not whole.startswith(opening) or not stop or (calls and not read.calls):
            raise ConfigError(
                f"The chat template of {self.tokenizer.name_or_path!r} does not write an assistant's turn as a rollout "
                "samples it, with Hermes tool calls after the generation prompt, so it cannot be trained on."
            )
        ids = [*self.encode(text), self.stop_token_ids[0]]
        if rest.strip() or read != ParsedCompletion(content.strip(), list(calls)) or self._special & set(ids[:-1]):
            raise ValueError("it holds a control string of the chat format")
        return ids

    def _continuation_text(self, messages: Sequence[Message]) -> str:
        """Insert new contents into the skeleton that was rendered once for this sequence of roles."""
        roles = tuple(str(m["role"]) for m in messages)
        if (skeleton := self._skeletons.get(roles)) is None:
            skeleton = self._skeleton(roles)
            self._skeletons.put(roles, skeleton, len(skeleton) + 8 * len(roles) + _OVERHEAD)
        return _SLOT.sub(lambda slot: str(messages[int(slot[1])]["content"]), skeleton)

    def _own_end(self, listed: dict[int, str]) -> int:
        """Return which of these ids, given with their texts, the template writes after an assistant's words."""
        after = self._after_answer(["tool"])
        found = [(after.find(text), -len(text), id) for id, text in listed.items() if text and text in after]
        return min(found)[2] if found else next(iter(listed))

    def _after_answer(self, roles: Sequence[str]) -> str:
        """Render what follows an assistant's words: the end of its turn, and messages of these roles."""
        opening: list[Message] = [{"role": "user", "content": _REQUEST}, {"role": "assistant", "content": _ANSWER}]
        new = [
            {"role": role, "content": _NEW.format(i), "name": "tool", "tool_call_id": "call"}
            for i, role in enumerate(roles)
        ]
        from jinja2 import TemplateError  # a dependency of template rendering

        try:
            return self._rendered(opening + new, (), prompt=True).partition(_ANSWER)[2]
        except TemplateError as error:
            raise ConfigError(
                f"The chat template of {self.tokenizer.name_or_path!r} rejects {_several(roles)} messages after an "
                f"assistant's: {error}."
            ) from error

    def _skeleton(self, roles: tuple[str, ...]) -> str:
        frame, stop, rest = self._after_answer(roles).partition(self._end)
        missing = set(range(len(roles))).difference(map(int, _SLOT.findall(rest)))
        if frame.strip() or not stop or missing:
            raise ConfigError(
                f"The chat template of {self.tokenizer.name_or_path!r} does not append {_several(roles)} messages "
                f"after an assistant turn that ends in {self._end!r}, so it cannot be continued token-exactly."
            )
        return rest

    def _render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, prompt: bool) -> str:
        """Render messages. Raises ConfigError if the template refuses them."""
        from jinja2 import TemplateError

        try:
            return self._rendered(messages, tools, prompt=prompt)
        except TemplateError as error:
            roles = _several([str(message["role"]) for message in messages])
            raise ConfigError(
                f"The chat template of {self.tokenizer.name_or_path!r} cannot render {roles} messages: {error}."
            ) from error

    def _rendered(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, prompt: bool) -> str:
        from mcp_rl.inference.chat.template import render_chat

        return render_chat(self.tokenizer, messages, tools, prompt=prompt)

    def harmless(self, text: str) -> str:
        """Break every control string in the text, and replace unpaired surrogates."""
        return self._controls.sub(lambda m: m[0][0] + " " + m[0][1:], whole_characters(text))

    def _harmless_in(self, value: Any) -> Any:
        """Apply `harmless` to every text in JSON: tool descriptions come from outside too."""
        if isinstance(value, str):
            return self.harmless(value)
        if isinstance(value, dict):
            return {self.harmless(key): self._harmless_in(part) for key, part in value.items()}
        return [self._harmless_in(part) for part in value] if isinstance(value, list | tuple) else value

    def _safe(self, message: Message) -> Message:
        return {**message, "content": self.harmless(message["content"])}


def _several(roles: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(roles)) or "no"
