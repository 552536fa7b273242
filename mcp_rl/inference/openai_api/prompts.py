"""Turn messages into the ids of a prompt: those that a rollout of the same conversation would hold.

A turn that was sampled here and comes back unchanged is replaced by its sampled ids, as long as they are remembered. So
a conversation continues token-exactly, and the engine finds its beginning in the cache. The chat template renders every
other turn anew.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.calls import ParsedCall, read_object, whole_characters
from mcp_rl.inference.chat.remembered import Remembered
from mcp_rl.inference.openai_api.reading import CLOSE, OPEN
from mcp_rl.inference.openai_api.refusals import Refusal
from mcp_rl.inference.openai_api.requests import AssistantMessage, Message, ToolResultMessage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from hashlib import _Hash

    from mcp_rl.inference.chat.chat_format import ChatFormat

REMEMBERED = 32 * 2**20
"""Bytes of remembered turns: about 50,000 of 60 tokens with a call."""
_TOOLS = 16 * 2**20
"""Bytes of remembered lists of tools, so that equal ones are rendered once."""
_OVERHEAD = 200
"""Bytes that each remembered entry takes beside its content."""


class RememberedTurns:
    """The ids of sampled turns, found by the ids before them and by the answer."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._ids: Remembered[bytes, array[int]] = Remembered(most)

    def remember(self, before: Sequence[int], content: str, calls: Sequence[tuple[str, str]], ids: list[int]) -> None:
        """Remember a turn; `calls` are the names and arguments in the answer.

        Clients that parse arguments write them anew, and those that are not a JSON object as an empty one, so the turn
        is also found by what its arguments are.
        """
        digest, kept = Digest(before), array("i", ids)
        self._ids.put(digest.of_turn(content, calls), kept, 4 * len(ids) + _OVERHEAD)
        if calls:
            self._ids.put(digest.of_turn(content, calls, normal=True), kept, _OVERHEAD)

    def recall(self, before: Digest, content: str, calls: Sequence[tuple[str, str]]) -> list[int] | None:
        found = self._ids.get(before.of_turn(content, calls))
        if found is None and calls:
            found = self._ids.get(before.of_turn(content, calls, normal=True))
        return None if found is None else found.tolist()


class Digest:
    """A running hash of ids."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._hash: _Hash = hashlib.sha256()
        self.add(ids)

    def add(self, ids: Sequence[int]) -> None:
        self._hash.update(array("i", ids).tobytes())

    def of_turn(self, content: str, calls: Sequence[tuple[str, str]], *, normal: bool = False) -> bytes:
        """Return the hash of the ids and of a turn after them, as it was answered or in its normal form."""
        said = [(name, _normal(arguments)) for name, arguments in calls] if normal else list(calls)
        digest = self._hash.copy()
        digest.update(json.dumps([content, said, normal]).encode())
        return digest.digest()


class Prompts:
    """Renders conversations for one chat format."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self.turns = RememberedTurns()
        self._tools: Remembered[str, list[dict[str, Any]]] = Remembered(_TOOLS)

    def apart(self) -> Prompts:
        """Return prompts that share the lists of tools, and remember turns of their own."""
        other = Prompts(self.chat)
        other._tools = self._tools
        return other

    def of_messages(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> list[int]:
        """Return the ids up to and including the generation prompt. Raises Refusal for messages that form no
        conversation."""
        try:
            return self._render(messages, self._shared(tools))
        except ConfigError as error:
            raise Refusal(str(error), param="messages") from error
        except UnicodeError as error:
            raise Refusal(f"The chat template cannot render these messages: {error}", param="messages") from error
        except RecursionError as error:
            raise Refusal("The messages or tools are nested too deeply to be rendered.", param="tools") from error

    def _render(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> list[int]:
        ids: list[int] = []
        digest = Digest()
        new: list[dict[str, Any]] = []
        said: AssistantMessage | None = None
        called: set[str] = set()
        answered: set[str] = set()
        for at, message in enumerate(messages):
            where = f"messages.{at}"
            if isinstance(message, AssistantMessage):
                if said is None and not new:
                    raise Refusal(f"{where}: the assistant cannot speak first.", param="messages")
                _check_answered(said, answered, where)
                digest.add(given := self._render_new(ids, new, said, tools))
                digest.add(turn := self._assistant_turn(digest, message, where, tools))
                ids += given + turn
                new, said, answered = [], message, set()
                called = {call.id for call in message.tool_calls}
            elif isinstance(message, ToolResultMessage):
                _check_result(message, called, new[-1:], answered, where)
                answered.add(message.tool_call_id)
                made = said.tool_calls if said else []
                name = next((call.function.name for call in made if call.id == message.tool_call_id), "")
                about = {"tool_call_id": message.tool_call_id, "name": name}
                new.append({"role": "tool", "content": message.content, **about})
            else:
                role = "system" if message.role == "developer" else message.role
                new.append({"role": role, "content": message.content})
        if not new:
            raise Refusal(
                "The last message is the assistant's own; it must be the user's or a tool's.",
                param="messages",
            )
        _check_answered(said, answered, "messages")
        return ids + self._render_new(ids, new, said, tools)

    def _render_new(
        self, ids: list[int], new: list[dict[str, Any]], said: AssistantMessage | None, tools: list[dict[str, Any]]
    ) -> list[int]:
        """Render the new messages, with results in the order of their calls, as a rollout does."""
        order = {call.id: number for number, call in enumerate(said.tool_calls if said else ())}
        new = sorted(new, key=lambda m: order.get(m.get("tool_call_id", ""), len(order)))
        return self.chat.continuation(new, after=ids[-1]) if ids else self.chat.initial(new, tools)

    def _assistant_turn(
        self, before: Digest, turn: AssistantMessage, where: str, tools: Sequence[dict[str, Any]]
    ) -> list[int]:
        content = turn.content or ""
        calls = [(call.function.name, call.function.arguments) for call in turn.tool_calls]
        if (known := self.turns.recall(before, content, calls)) is not None:
            return known
        if len({call.id for call in turn.tool_calls}) < len(calls):
            raise Refusal(f"{where}: two tool calls have the same id.", param="messages")
        parsed = [ParsedCall(whole_characters(name), read_object(arguments)) for name, arguments in calls]
        content = self.chat.harmless(content)
        if all(call.arguments is not None for call in parsed):
            try:
                return self.chat.said(content, parsed, tools)
            except ValueError:  # the arguments hold a control string
                pass
        written = [self.chat.harmless(_written(name, arguments)) for name, arguments in calls]
        text = "\n".join([*filter(None, [content]), *(f"{OPEN}\n{body}\n{CLOSE}" for body in written)])
        return [*self.chat.encode(text), *self.chat.stop_token_ids[:1]]

    def begun_call(self, name: str | None, schema: dict[str, Any] | None) -> list[int]:
        """Return the ids with which every call begins, or every call of one function, up to the model's first
        choice."""
        if name is None:
            return _common(self._call("a", {}), self._call("b", {"a": 1}))
        begun = _common(self._call(name, {}), self._call(name, {"a": 1}))
        if f'"{name}"' in self.chat.decode(begun).partition('"name"')[2]:
            return begun
        if (schema or {}).get("properties"):
            return _common(self._call(name, {"a": 1}), self._call(name, {"b": 1}))
        ids = self._call(name, {})
        while "}" in self.chat.decode(ids):
            ids.pop()
        return ids

    def _call(self, name: str, arguments: dict[str, Any]) -> list[int]:
        try:
            return self.chat.said("", [ParsedCall(name, arguments)])
        except ValueError as error:
            raise Refusal(f"The function {name!r} cannot be called by that name.", param="tool_choice") from error

    def _shared(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the same list for equal ones: a chat format recognises rendered tools by identity."""
        key = json.dumps(tools)
        if (known := self._tools.get(key)) is not None:
            return known
        self._tools.put(key, tools, 10 * len(key) + _OVERHEAD)  # objects take more than their text
        return tools


def _check_answered(said: AssistantMessage | None, answered: set[str], where: str) -> None:
    missing = [call.id for call in (said.tool_calls if said else ()) if call.id not in answered]
    if missing:
        raise Refusal(f"{where}: the tool call {missing[0]!r} has no tool message that answers it.", param="messages")


def _check_result(
    result: ToolResultMessage, called: set[str], before: Sequence[dict[str, Any]], answered: set[str], where: str
) -> None:
    """Check a tool's result. `before` is the previous message, if it is new too."""
    if result.tool_call_id not in called:
        raise Refusal(
            f"{where}: there is no tool call {result.tool_call_id!r} in the assistant's message before it.",
            param="messages",
        )
    if result.tool_call_id in answered:
        raise Refusal(f"{where}: the tool call {result.tool_call_id!r} is answered twice.", param="messages")
    if any(message["role"] != "tool" for message in before):
        raise Refusal(f"{where}: a tool message comes after a user's.", param="messages")


def _common(one: list[int], other: list[int]) -> list[int]:
    length = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _written(name: str, arguments: str) -> str:
    """Write a call that cannot be parsed, as the model may have written it."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}' if name else arguments


def _normal(arguments: str) -> str:
    """Return the one form of arguments that are equal as JSON, in whatever form a client writes them back."""
    return json.dumps(_whole_numbers(read_object(arguments) or {}), sort_keys=True)


def _whole_numbers(value: Any) -> Any:
    """Replace whole floats by integers, as JavaScript writes them."""
    if isinstance(value, dict):
        return {key: _whole_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
