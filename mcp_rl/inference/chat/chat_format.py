"""Conversations as exact tokens, over the chat template that a model comes with.

Invariant: the ids of a conversation are `initial + sampled + continuation + sampled + …`. A continuation is the
rendering of the new messages alone, cut from a rendering that ends in a placeholder assistant turn, so nothing that the
policy saw or sampled is ever rendered or tokenized again.

The format of tool calls is detected from the template (`rehearsal.py`); `chat.format = "hermes"` describes the tools in
the system prompt instead (`in_prompt.py`). Thoughts are not part of an answer, and calls in them are not executed
(`thinking.py`).

A model may end its turn with any of several tokens, which generation_config.json lists; its template writes one of
them. The sampled one is kept. If it is not the template's, the template's own follows it as a given token, so that the
frame of every turn is closed before the next one opens.

Text from outside (requests, tool results) cannot forge a turn or a tag: control strings in it are broken by a space
after their first character.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion, whole_characters
from mcp_rl.inference.chat.dialects.dialect import properties_of
from mcp_rl.inference.chat.dialects.hermes import HERMES
from mcp_rl.inference.chat.dialects.known import DIALECTS
from mcp_rl.inference.chat.ends import recorded_ends
from mcp_rl.inference.chat.in_prompt import in_prompt
from mcp_rl.inference.chat.rehearsal import CallWriting, call_id, rehearse
from mcp_rl.inference.chat.remembered import Remembered
from mcp_rl.inference.chat.thinking import MARKERS, thinking_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mcp_rl.inference.chat.dialects.dialect import Properties

Message = dict[str, Any]

CHAT = "chat"
"""Key of the chat format's settings in a run's model.json."""
_OPENINGS = 64 * 2**20
"""Maximum bytes of cached openings: all rollouts of a group share one."""
_TEXTS = 16 * 2**20
"""Maximum bytes of texts whose ids are cached: rollouts of a group often get the same tool result."""
_SKELETONS = 4 * 2**20
"""Maximum bytes of cached frames around messages, by their roles."""
_OVERHEAD = 200
"""Overhead of a cache entry in bytes."""
_REQUEST, _ANSWER = "\u2402request\u2403", "\u2402answer\u2403"
_NEW, _NAME = '\u2402new{}"\u2403', "\u2402name{}\u2403"
_SLOT = re.compile(r"\u2402(new|name)(\d+)(\\?\"|)\u2403")
"""Placeholder for a content or for the name of a tool; the quote in it shows whether a template writes contents as
JSON."""


class ChatFormat:
    """Renders conversations for one tokenizer, and reads turns. Raises ConfigError if its template forbids it."""

    def __init__(
        self,
        tokenizer: Any,
        ends: Collection[int] = (),
        *,
        format: str = "auto",
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`ends`: ids that end a turn besides the tokenizer's own; ids outside its vocabulary are ignored. `format` and
        `template_arguments` are the settings `chat.format` and `chat.template_arguments`."""
        self.tokenizer = tokenizer
        self._arguments = dict(template_arguments or {})
        self._name = repr(tokenizer.name_or_path)
        if not tokenizer.chat_template:
            raise ConfigError(
                f"The tokenizer of {self._name} has no chat template, as a base model's has none; use a chat model, or "
                "save the template that the model was tuned with beside it (tokenizer.chat_template = …, then "
                "save_pretrained)."
            )
        if tokenizer.eos_token is None:
            raise ConfigError(f"The tokenizer of {self._name} has no end-of-turn token (eos_token).")
        eos, known = int(tokenizer.eos_token_id), [id for id in sorted(ends) if 0 <= id < len(tokenizer)]
        written = {id: str(tokenizer.decode([id], skip_special_tokens=False)) for id in known}
        self._listed = {eos: str(tokenizer.eos_token), **{id: text for id, text in written.items() if id != eos}}
        added = {int(id): token for id, token in tokenizer.added_tokens_decoder.items()}
        self._special = {id for id, token in added.items() if token.special or id in self._listed}
        special = {*tokenizer.all_special_tokens, *(str(added[id]) for id in self._special)}
        self._encoded: Remembered[str, array[int]] = Remembered(_TEXTS)
        self._skeletons: Remembered[tuple[str, ...], str] = Remembered(_SKELETONS)
        self._openings: Remembered[tuple[int, str], tuple[Sequence[dict[str, Any]], array[int]]] = Remembered(_OPENINGS)
        self.thinking = thinking_of(self._source(), self._rendered_as_is([{"role": "user", "content": _REQUEST}], True))
        self.in_prompt, self._system = False, True
        self.dialect, self._writing, self.several = HERMES, CallWriting(), True
        self._find_format(format, special)
        marks = (*self.dialect.opens, self.dialect.closes, *self.dialect.tags)
        controls = {*special, *(mark for mark in marks if mark[:1] in ("<", "["))}
        self._controls = re.compile("|".join(re.escape(text) for text in sorted(controls, key=len, reverse=True)))
        self._ends = {kind: self._own_end(kind) for kind in ("user", "tool")}
        own = dict.fromkeys(self._ends.values())
        self.stop_token_ids = (*own, *(id for id in self._listed if id not in own))
        """Ids that end a turn; the first is the one that the template writes after an answer."""
        self._continuation_text([{"role": "tool", "content": "probe"}])
        self._check_answer()

    @property
    def thinks(self) -> bool:
        """Return whether the model's turns begin with a thought."""
        return self.thinking.thinks or self.dialect.name == "harmony"

    @property
    def notes(self) -> list[str]:
        """Return notes on the format for the user, one sentence each; none for Hermes as a template writes it."""
        if self.in_prompt:
            return [f"{self._name} is told its tools in the system prompt, and calls them in Hermes' format."]
        one = "" if self.several else ", one in a turn"
        return (
            []
            if self.dialect is HERMES
            else [f"{self._name} writes tool calls in its own format ({self.dialect.name}){one}."]
        )

    def parse(self, text: str, tools: Sequence[dict[str, Any]] = ()) -> ParsedCompletion:
        """Parse a turn into thoughts, words outside of calls, and calls. Never raises. `tools` tell numbers from texts
        in formats without quotes."""
        said, thought = self.thinking.split(text, (self.dialect.opens, self.dialect.closes))
        read = self.dialect.read(said, self._properties(tools))
        return ParsedCompletion(read.content, read.calls, "\n".join(filter(None, (thought, read.thought))))

    def without_thoughts(self, text: str) -> str:
        """Return a turn's text, calls included, without its thoughts."""
        return self.thinking.split(text, (self.dialect.opens, self.dialect.closes))[0].strip()

    @property
    def read_in_pieces(self) -> bool:
        """Return whether a turn can be parsed while it is sampled: true for Hermes without thoughts."""
        return self.dialect is HERMES and not (self.thinking.thinks or self.thinking.written)

    def _properties(self, tools: Sequence[dict[str, Any]]) -> Properties:
        return properties_of(tools) if self.dialect.name in ("xml", "glm") else {}

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
        own = self._ends[_kind([str(m["role"]) for m in messages])]
        return ids if after is None or after == own else [own, *ids]

    def said(self, content: str, calls: Sequence[ParsedCall] = (), tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Return the ids of a turn as a policy would sample it, in the template's form and including its end.

        Raises ValueError if they would not be parsed as the same turn, because the text holds a control string or the
        template leaves a part out.
        """
        request: Message = {"role": "user", "content": _REQUEST}
        opening = self._render([request], (), prompt=True)
        text = self._sampled(opening, self._render([request, self._writing.turn(content, calls)], (), prompt=False))
        read = self.parse(text, tools)
        if calls and not read.calls and not any(mark in content for mark in self.dialect.opens):
            raise ConfigError(
                f"The chat template of {self._name} does not write an assistant's turn as a rollout samples it, with "
                f"tool calls of the format {self.dialect.name} after the generation prompt, so it cannot be trained on."
            )
        ids = [*self.encode(text), self._ends["tool" if calls else "user"]]
        if (read.content, read.calls) != (content.strip(), list(calls)) or self._forged(ids[:-1]):
            raise ValueError("it holds a control string of the chat format")
        return ids

    def _check_answer(self) -> None:
        """Raise ConfigError if an answer that the template rendered is not parsed as the same answer."""
        told: list[Message] = [{"role": "user", "content": _REQUEST}]
        opening = self._render(told, (), prompt=True)
        text = self._sampled(
            opening, self._render([*told, {"role": "assistant", "content": _ANSWER}], (), prompt=False)
        )
        if self.parse(text) != ParsedCompletion(_ANSWER):
            raise ConfigError(
                f"The chat template of {self._name} writes an answer as {text[:60]!r}, with marks that cannot be read "
                "here, so this model cannot be trained."
            )

    def _forged(self, ids: Sequence[int]) -> bool:
        """Return whether the ids of plain text hold a special token that no call of the format uses."""
        marks = (*self.dialect.opens, self.dialect.closes, *self.dialect.tags, *(m for pair in MARKERS for m in pair))
        return any(
            str(self.tokenizer.decode([id], skip_special_tokens=False)) not in marks
            for id in self._special.intersection(ids)
        )

    def _find_format(self, format: str, special: Collection[str]) -> None:
        """Detect how tools are shown and called."""
        asked = None if format in ("auto", "hermes") else format
        try:
            name = str(self.tokenizer.name_or_path)
            found = rehearse(self._rehearsed, name, self.thinking, self._sampler(special), asked)
        except ConfigError:
            if format != "hermes":
                raise
        else:
            if format != "hermes" or found.dialect is HERMES:
                self.dialect, self._writing, self.several = found.dialect, found.writing, found.several
                return
        self.in_prompt = True
        self._system = self._has_system()

    def _rehearsed(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], prompt: bool) -> str:
        return self._rendered(messages, tools, prompt=prompt)

    def _sampler(self, special: Collection[str]) -> Any:
        """Return a function that cuts the sampled part out of a rendering, with what is known of the format so far."""
        inside = {mark for pair in MARKERS for mark in pair} | {dialect.closes for dialect in DIALECTS}
        trailing = sorted({*special, "<|tool_response>"} - inside)

        def sampled(opening: str, whole: str) -> str:
            text = self._sampled(opening, whole).rstrip()
            while ends := [mark for mark in trailing if mark and text.endswith(mark)]:
                text = text.removesuffix(ends[0]).rstrip()
            return text

        return sampled

    def _has_system(self) -> bool:
        from jinja2 import TemplateError

        try:
            told = [{"role": "system", "content": _ANSWER}, {"role": "user", "content": _REQUEST}]
            return _ANSWER in self._rendered_as_is(told, True)
        except (TemplateError, ConfigError):
            return False

    def _sampled(self, opening: str, whole: str) -> str:
        """Return the part of a rendered turn that a policy samples, up to its end. Raises ConfigError."""
        text = None
        if whole.startswith(opening):
            text = whole[len(opening) :]
        for opens, closes in MARKERS:
            at = opening.rfind(opens)
            if (
                text is None
                and at >= 0
                and whole.startswith(opening[:at])
                and not opening[at:].replace(opens, "").replace(closes, "").strip()
            ):
                text = whole[at:]
                if opening.rstrip().endswith(opens):
                    text = text.removeprefix(opens) if text.startswith(opens) else f"\n{closes}\n\n{text}"
        if text is None:
            raise ConfigError(
                f"The chat template of {self._name} does not write an assistant's turn after its generation prompt, so "
                "it cannot be continued token-exactly."
            )
        ends = [found for end in self._listed.values() if end and (found := text.find(end)) >= 0]
        return text[: min(ends)] if ends else text.rstrip()

    def _continuation_text(self, messages: Sequence[Message]) -> str:
        """Insert new contents into the skeleton that was rendered once for this sequence of roles."""
        roles = tuple(str(m["role"]) for m in messages)
        if (skeleton := self._skeletons.get(roles)) is None:
            skeleton = self._skeleton(roles)
            self._skeletons.put(roles, skeleton, len(skeleton) + 8 * len(roles) + _OVERHEAD)

        def filled(slot: re.Match[str]) -> str:
            message = messages[int(slot[2])]
            if slot[1] == "name":
                return self.harmless(str(message.get("name") or "tool"))
            content = str(message["content"])
            return json.dumps(content, ensure_ascii=False)[1:-1] if slot[3].startswith("\\") else content

        return _SLOT.sub(filled, skeleton)

    def _own_end(self, kind: str) -> int:
        """Return the end token, of those listed, that the template writes after an assistant's answer ("user") or call
        ("tool")."""
        after = self._after_turn([kind])
        frame = after[: slot.start()] if (slot := _SLOT.search(after)) else after
        for text in (frame, self._after_turn([]) if kind == "user" else ""):
            found = [(text.find(end), -len(end), id) for id, end in self._listed.items() if end and end in text]
            if found:
                return min(found)[2]
        listed = " and ".join(map(repr, self._listed.values()))
        raise ConfigError(
            f"The chat template of {self._name} writes {frame.strip()[:40]!r} after an assistant's turn, and what its "
            f"tokenizer and generation_config.json name as ends ({listed}) is not in it, so no turn would end: correct "
            "eos_token in tokenizer_config.json, or eos_token_id in generation_config.json."
        )

    def _after_turn(self, roles: Sequence[str]) -> str:
        """Render the text after an assistant's words: the end of its turn, and messages of these roles."""
        tools = sum(role == "tool" for role in roles) if _kind(roles) == "tool" else 0
        count = min(tools, tools if self.several else 1)
        calls = [ParsedCall(_NAME.format(i), {"a": _ANSWER}) for i in range(count)]
        opening: list[Message] = [
            {"role": "user", "content": _REQUEST},
            self._writing.turn("" if calls else _ANSWER, calls),
        ]
        new = [
            {"role": role, "content": _NEW.format(i), **_names(role, i, min(i, max(count - 1, 0)))}
            for i, role in enumerate(roles)
        ]
        from jinja2 import TemplateError  # a dependency of template rendering

        try:
            return self._rendered(opening + new, (), prompt=bool(roles)).rpartition(_ANSWER)[2]
        except TemplateError as error:
            raise ConfigError(
                f"The chat template of {self._name} rejects {_several(roles)} messages after an assistant's: {error}."
            ) from error

    def _skeleton(self, roles: tuple[str, ...]) -> str:
        own, after = self._listed[self._ends[_kind(roles)]], self._after_turn(roles)
        slot = _SLOT.search(after)
        frame, stop, rest = after.partition(own)
        if not stop or (slot and slot.start() < len(frame)):  # the end is written at the end of a conversation alone
            frame, rest = "", after
        missing = set(range(len(roles))).difference(int(slot[2]) for slot in _SLOT.finditer(rest) if slot[1] == "new")
        if (frame.strip() and _kind(roles) == "user") or missing:
            raise ConfigError(
                f"The chat template of {self._name} does not append {_several(roles)} messages "
                f"after an assistant turn that ends in {own!r}, so it cannot be continued token-exactly."
            )
        return rest

    def _render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, prompt: bool) -> str:
        """Render messages. Raises ConfigError if the template refuses them."""
        from jinja2 import TemplateError

        try:
            return self._rendered(messages, tools, prompt=prompt)
        except TemplateError as error:
            roles = _several([str(message["role"]) for message in messages])
            raise ConfigError(f"The chat template of {self._name} cannot render {roles} messages: {error}.") from error

    def _rendered(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, prompt: bool) -> str:
        from mcp_rl.inference.chat.template import render_chat

        if self.in_prompt:
            messages, tools = in_prompt(messages, tools, system=self._system), ()
        return render_chat(self.tokenizer, messages, tools, prompt=prompt, arguments=self._arguments)

    def _rendered_as_is(self, messages: Sequence[Message], prompt: bool) -> str:
        """Render messages without tools. Raises ConfigError."""
        from jinja2 import TemplateError

        from mcp_rl.inference.chat.template import render_chat

        try:
            return render_chat(self.tokenizer, messages, (), prompt=prompt, arguments=self._arguments)
        except TemplateError as error:
            raise ConfigError(f"The chat template of {self._name} cannot render a user's message: {error}.") from error

    def _source(self) -> str:
        return self.tokenizer.chat_template if isinstance(self.tokenizer.chat_template, str) else ""

    def harmless(self, text: str) -> str:
        """Break every control string in the text, and replace unpaired surrogates."""
        return self._controls.sub(lambda m: m[0][0] + " " + m[0][1:], whole_characters(text))

    def _harmless_in(self, value: Any) -> Any:
        """Apply `harmless` to every text in JSON, as tool descriptions come from outside too."""
        if isinstance(value, str):
            return self.harmless(value)
        if isinstance(value, dict):
            return {self.harmless(key): self._harmless_in(part) for key, part in value.items()}
        return [self._harmless_in(part) for part in value] if isinstance(value, list | tuple) else value

    def _safe(self, message: Message) -> Message:
        return {**message, "content": self.harmless(message["content"])}


def recorded_chat(tokenizer: Any, loaded: Mapping[str, Any]) -> ChatFormat:
    """Return the chat format of a base from the description in a run's model.json."""
    settings = loaded.get(CHAT)
    return ChatFormat(tokenizer, recorded_ends(loaded), **(settings if isinstance(settings, dict) else {}))


def served_chat(tokenizer: Any, ends: Collection[int], settings: Any) -> ChatFormat:
    """Return the chat format of a served model. `settings` are those of its run; a model without a run whose template
    has no tools gets them in the system prompt."""
    if isinstance(settings, dict):
        return ChatFormat(tokenizer, ends, **settings)
    try:
        return ChatFormat(tokenizer, ends)
    except ConfigError as error:
        try:
            return ChatFormat(tokenizer, ends, format="hermes")
        except ConfigError:
            raise error from None


def _kind(roles: Sequence[str]) -> str:
    """Return the kind of turn before new messages: with calls ("tool") or an answer ("user")."""
    return "tool" if "tool" in roles[:1] else "user"


def _names(role: str, slot: int, call: int) -> Message:
    return {"name": _NAME.format(slot), "tool_call_id": call_id(call)} if role == "tool" else {}


def _several(roles: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(roles)) or "no"
