"""Conversations in the form of OpenAI's chat API, one JSON object each, parsed strictly and turned into tokens.

    {"messages": [{"role": "user", …}, {"role": "assistant", "tool_calls": […]}, {"role": "tool", …}, …], "tools": […]}

Invariant: `render` gives the tokens of a rollout in which the policy says the same turns and gets the same results. The
policy's tokens are marked; nothing else is ever trained on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.calls import ParsedCall, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mcp_rl.inference.chat.chat_format import ChatFormat


def _joined(content: Any) -> Any:
    """Join content in parts, if all of them are text."""
    if isinstance(content, list) and content and all(isinstance(part, dict) for part in content):
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in content):
            raise ValueError("only parts of type text can be read")
        return "".join(part["text"] for part in content)
    return content


Text = Annotated[str, BeforeValidator(_joined)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Function(_Strict):
    name: str = Field(min_length=1)
    arguments: str


class _Call(_Strict):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Given(_Strict):
    """A system or user message."""

    role: Literal["system", "user"]
    content: Text
    name: str | None = None


class _Result(_Strict):
    role: Literal["tool"]
    content: Text
    tool_call_id: str
    name: str | None = None


class _Turn(_Strict):
    role: Literal["assistant"]
    content: Text | None = None
    tool_calls: tuple[_Call, ...] = ()
    weight: Literal[0, 1] = 1
    """0: do not train on it, as in OpenAI's format for fine-tuning."""
    name: str | None = None

    def calls(self) -> list[ParsedCall]:
        """Parse the calls. Raises ValueError if their arguments are not a JSON object."""
        return [ParsedCall(call.function.name, _object(call.function.arguments)) for call in self.tool_calls]


_Message = Annotated[_Given | _Result | _Turn, Field(discriminator="role")]


class _ToolFunction(BaseModel):
    name: str = Field(min_length=1)
    parameters: dict[str, Any] = {}


class _Tool(_Strict):
    type: Literal["function"]
    function: _ToolFunction


class _Line(_Strict):
    messages: tuple[_Message, ...] = Field(min_length=1)
    tools: tuple[_Tool, ...] = ()
    parallel_tool_calls: bool = True
    metadata: Any = None


_LINE = TypeAdapter(_Line)


@dataclass(frozen=True)
class Conversation:
    """A conversation from one line of a file."""

    where: str
    """File and line, for errors."""
    messages: tuple[_Given | _Result | _Turn, ...]
    tools: Sequence[dict[str, Any]]
    """OpenAI function schemas, unchanged."""


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Parse the non-blank lines of a file; yield each with its file and number. Raises ConfigError."""
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            yield (where := f"{path}, line {number}"), _json(line, where)


def conversation(fields: Any, where: str, tools: dict[str, list[dict[str, Any]]] | None = None) -> Conversation:
    """Check a conversation's fields. `tools` shares equal lists of tools between conversations. Raises ConfigError."""
    fields = _without_nulls(fields)
    try:
        line = _LINE.validate_python(fields)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_problem(error)}.") from error
    written = fields.get("tools", [])
    shared = written if tools is None else tools.setdefault(json.dumps(written), written)
    found = Conversation(where, line.messages, shared)
    try:
        learned = [turn for _, turn in exchanges(found) if turn.weight]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}.") from error
    if not learned:
        raise ConfigError(f"{where}: there is no assistant message to train on.")
    return found


def exchanges(of: Conversation) -> Iterator[tuple[list[dict[str, Any]], _Turn]]:
    """Yield each turn of the model with the messages that are new to it; messages after the last turn are dropped.

    Raises ValueError for an order of messages that no rollout has.
    """
    names = {str(tool["function"]["name"]) for tool in of.tools}
    new: list[_Given | _Result] = []
    said: _Turn | None = None
    for at, message in enumerate(of.messages):
        where = f"messages.{at}"
        if isinstance(message, _Turn):
            _check_new(new, said, where)
            _check_turn(message, names, where)
            yield [_plain(given, said) for given in _in_order(new, said)], message
            new, said = [], message
        else:
            if isinstance(message, _Given) and message.role == "system" and at:
                raise ValueError(f"{where}: a system message must come first")
            if isinstance(message, _Result):
                _check_result(message, new, said, where)
            new.append(message)


def render(of: Conversation, chat: ChatFormat) -> tuple[list[int], list[bool]]:
    """Return the ids of a conversation up to the end of its last turn, and which of them to train on.

    Raises ConfigError if a turn holds a control string, so it could not have been sampled as one turn.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for new, turn in exchanges(of):
        given = chat.continuation(new) if ids else chat.initial(new, of.tools)
        try:
            said = chat.said(turn.content or "", turn.calls(), of.tools)
        except ValueError as error:
            at = of.messages.index(turn)
            raise ConfigError(
                f"{of.where}: messages.{at}: {error}; a tool call belongs in tool_calls, and a turn ends by itself."
            ) from error
        ids += [*given, *said]
        learned += [False] * len(given) + [bool(turn.weight)] * len(said)
    return ids, learned


def _check_new(new: Sequence[_Given | _Result], said: _Turn | None, where: str) -> None:
    if not new:
        raise ValueError(f"{where}: the assistant speaks twice in a row")
    if said is None and all(message.role == "system" for message in new):
        raise ValueError(f"{where}: the assistant speaks before any user")
    answered = {message.tool_call_id for message in new if isinstance(message, _Result)}
    if missing := [call.id for call in (said.tool_calls if said else ()) if call.id not in answered]:
        raise ValueError(f"{where}: the call {missing[0]!r} of the turn before has no tool message")


def _check_turn(turn: _Turn, names: set[str], where: str) -> None:
    if not turn.tool_calls and not (turn.content or "").strip():
        raise ValueError(f"{where}: the assistant says nothing: neither content nor tool_calls")
    if len({call.id for call in turn.tool_calls}) < len(turn.tool_calls):
        raise ValueError(f"{where}: two tool calls have the same id")
    for number, call in enumerate(turn.tool_calls):
        try:
            _object(call.function.arguments)
        except ValueError as error:
            raise ValueError(f"{where}.tool_calls.{number}.function.arguments: {error}") from error
        if turn.weight and names and call.function.name not in names:
            raise ValueError(
                f"{where}.tool_calls.{number}: the line's tools have no {call.function.name!r}; give the message "
                '"weight": 0 to leave this mistake out of training'
            )


def _check_result(result: _Result, new: Sequence[_Given | _Result], said: _Turn | None, where: str) -> None:
    if result.tool_call_id not in {call.id for call in (said.tool_calls if said else ())}:
        raise ValueError(f"{where}: the turn before made no call {result.tool_call_id!r}")
    if any(isinstance(other, _Given) for other in new):
        raise ValueError(f"{where}: a tool message comes after a user's")
    if any(isinstance(other, _Result) and other.tool_call_id == result.tool_call_id for other in new):
        raise ValueError(f"{where}: the call {result.tool_call_id!r} is answered twice")


def _in_order(new: Sequence[_Given | _Result], said: _Turn | None) -> list[_Given | _Result]:
    """Sort results in the order of their calls, as a rollout gives them."""
    order = {call.id: number for number, call in enumerate(said.tool_calls if said else ())}
    return sorted(new, key=lambda m: order[m.tool_call_id] if isinstance(m, _Result) else len(order))


def _plain(message: _Given | _Result, said: _Turn | None) -> dict[str, Any]:
    """Return a message in a rollout's form, in which a result carries the name of its tool."""
    plain = message.model_dump(exclude_none=True)
    if isinstance(message, _Result) and said is not None:
        plain["name"] = next(call.function.name for call in said.tool_calls if call.id == message.tool_call_id)
    return plain


def _object(arguments: str) -> dict[str, Any]:
    try:
        found = read_json(arguments)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("the JSON of an object is needed")
    return found


def _without_nulls(fields: Any) -> Any:
    """Remove null fields, which clients write for unset ones."""
    if not isinstance(fields, dict) or not isinstance(fields.get("messages"), list):
        return fields
    messages = [
        {key: value for key, value in message.items() if value is not None} if isinstance(message, dict) else message
        for message in fields["messages"]
    ]
    return {key: value for key, value in fields.items() if value is not None} | {"messages": messages}


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("system", "user", "assistant", "tool"))
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    if first["type"] == "extra_forbidden":
        message = "this field of OpenAI's chat format is not supported"
    return f"{where}: {message[0].lower()}{message[1:]}" if where else f"{message[0].lower()}{message[1:]}"


def _json(line: str, where: str) -> Any:
    try:
        found = read_json(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: this is not valid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: this is not a JSON object; each line must be one with messages.")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot read the conversations {path}: {reason}.") from error
