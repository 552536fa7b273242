"""Detection of a chat template's tool format: calls and results are rendered, and must be parsed back unchanged.

The name of the model plays no part. The template renders two tools, a call, several calls and their results. The part
that the policy would sample is cut out of the rendering and given to every known parser.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.calls import ParsedCall
from mcp_rl.inference.chat.dialects.dialect import Dialect, properties_of
from mcp_rl.inference.chat.dialects.known import DIALECTS

if TYPE_CHECKING:
    from mcp_rl.inference.chat.thinking import Thinking

Message = dict[str, Any]
Render = Callable[[Sequence[Message], Sequence[dict[str, Any]], bool], str]
"""Renders messages with tools; the last argument asks for the generation prompt. Raises TemplateError."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "most": {"type": "integer"}, "exact": {"type": "boolean"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds numbers.",
            "parameters": {"type": "object", "properties": {"numbers": {"type": "array", "items": {"type": "number"}}}},
        },
    },
]
CALLS = [
    ParsedCall("look_up", {"city": "Graz und Linz", "most": 75001, "exact": True}),
    ParsedCall("add", {"numbers": [1, 2.5]}),
]
_ASKED: Message = {"role": "user", "content": "Where is it?"}


@dataclass(frozen=True)
class CallWriting:
    """Form in which a template takes an assistant's calls."""

    as_text: bool = False
    """True if arguments are passed as JSON text instead of an object."""
    no_content: bool = False
    """True if calls are rendered only where the content of their turn is None."""

    def turn(self, content: str, calls: Sequence[ParsedCall]) -> Message:
        """Return an assistant's turn in this form."""
        if not calls:
            return {"role": "assistant", "content": content}
        made = [
            {"id": call_id(number), "type": "function", "function": {"name": call.name, "arguments": self._given(call)}}
            for number, call in enumerate(calls)
        ]
        return {
            "role": "assistant",
            "content": None if self.no_content and not content else content,
            "tool_calls": made,
        }

    def _given(self, call: ParsedCall) -> Any:
        return json.dumps(call.arguments, ensure_ascii=False) if self.as_text else call.arguments


def call_id(number: int) -> str:
    """Return the id of a call: nine letters and digits, as Mistral's templates take no other."""
    return f"call{number + 1:05}"


@dataclass(frozen=True)
class Rehearsed:
    """Result of the detection: a template's format of tool calls."""

    dialect: Dialect
    writing: CallWriting
    several: bool
    """True if a turn may have several calls."""


def rehearse(
    render: Render, name: str, thinking: Thinking, sampled: Callable[[str, str], str], only: str | None = None
) -> Rehearsed:
    """Find the format of a template's calls.

    `sampled` returns the part of a rendering, after its opening, that a policy samples; `only` names the one format to
    try. Raises ConfigError, which says what the template lacks.
    """
    from jinja2 import TemplateError

    def reads(dialect: Dialect, text: str, calls: Sequence[ParsedCall]) -> bool:
        said, thought = thinking.split(text, (dialect.opens, dialect.closes))
        read = dialect.read(said, properties_of(TOOLS))
        return not thought and (read.content, read.calls) == ("", list(calls))

    cure = "set chat.format=hermes, which tells the model its tools in the system prompt"
    try:
        opening = render([_ASKED], TOOLS, True)
    except TemplateError as error:
        raise ConfigError(f"The chat template of {name!r} fails when it is given tools ({error}): {cure}.") from error
    if not all(word in opening for tool in TOOLS for word in _words(tool)):
        raise ConfigError(f"The chat template of {name!r} leaves the tools out of the prompt: {cure}.")
    reason, seen = "", ""
    for writing in (CallWriting(), CallWriting(as_text=True), CallWriting(no_content=True), CallWriting(True, True)):
        try:
            text = sampled(opening, render([_ASKED, writing.turn("", CALLS[:1])], TOOLS, False))
        except TemplateError as error:
            reason = reason or f"fails on a tool call ({error})"
            continue
        seen = text if CALLS[0].name in text else seen or text or "nothing"
        for dialect in DIALECTS:
            if only not in (None, dialect.name) or not reads(dialect, text, CALLS[:1]):
                continue
            try:
                several = reads(
                    dialect, sampled(opening, render([_ASKED, writing.turn("", CALLS)], TOOLS, False)), CALLS
                )
            except TemplateError:
                several = False
            return Rehearsed(dialect, writing, several)
    if seen and CALLS[0].name not in seen:
        raise ConfigError(f"The chat template of {name!r} leaves tool calls out of what the assistant said: {cure}.")
    what = f"writes tool calls as {_shown(seen)}, a format that cannot be read here" if seen else reason
    raise ConfigError(f"The chat template of {name!r} {what}: {cure}.")


def _words(tool: dict[str, Any]) -> list[str]:
    function = tool["function"]
    return [function["name"], *function["parameters"]["properties"]]


def _shown(text: str) -> str:
    return json.dumps(text if len(text) < 90 else f"{text[:88]}…", ensure_ascii=False)
