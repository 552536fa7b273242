"""A format of tool calls: the parser of a model's text, and the control strings that outside text must not contain.

Rendering is left to the model's own template. Every parser takes any text, never raises, and gives a malformed call an
error: one sentence that is returned to the model. Nothing in the text is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.chat.calls import read_json

if TYPE_CHECKING:
    from mcp_rl.inference.chat.calls import ParsedCompletion

Properties = Mapping[str, Mapping[str, Any]]
"""Schemas of the parameters of each tool, by the name of the tool."""


@dataclass(frozen=True)
class Dialect:
    """A format of tool calls."""

    name: str
    """Name in settings, model.json and the documentation."""
    read: Callable[[str, Properties], ParsedCompletion]
    """Parser of a turn's text without thoughts. The tools' schemas tell numbers from texts where the format does not.
    """
    opens: tuple[str, ...]
    """Strings that open a call; one of them precedes every call."""
    closes: str = ""
    """String that closes every call; empty if calls are not closed."""
    tags: tuple[str, ...] = ()
    """Further control strings of the format."""
    spoken: str = ""
    """Value of vLLM's --tool-call-parser for this format; empty if vLLM has none."""


def properties_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters' schemas of OpenAI function schemas, by the functions' names."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function") or {}
        parameters = function.get("parameters") or {}
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        found[str(function.get("name"))] = properties if isinstance(properties, Mapping) else {}
    return found


def typed(text: str, schema: Any) -> Any:
    """Return the value of an argument written without quotes.

    Text that reads as JSON of a type that the schema allows becomes that value; any other text stays text.
    """
    types = _types(schema, 8)
    if types == {"string"}:
        return text
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        if types and text in ("True", "False", "None") and types & {"boolean", "null"}:
            return {"True": True, "False": False, "None": None}[text]
        return text
    return text if "string" in types and not types & _types_of(value) else value


def _types(schema: Any, depth: int) -> set[str]:
    """Return the types that a schema names; empty if it leaves them open."""
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    named = schema.get("type")
    found = (
        {named}
        if isinstance(named, str)
        else {t for t in named if isinstance(t, str)}
        if isinstance(named, list)
        else set()
    )
    for union in ("anyOf", "oneOf"):
        for choice in schema.get(union) or ():
            found |= _types(choice, depth - 1)
    if not found:
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        for value in values if isinstance(values, list) else ():
            found |= _types_of(value)
    return found


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    kinds = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {kinds[type(value)]}
