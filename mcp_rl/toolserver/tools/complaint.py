"""Validation errors for the model: one sentence that names the argument and says what would fit the schema."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from jsonschema.exceptions import best_match, relevance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsonschema import ValidationError

_TYPES = {
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def complaint(errors: Sequence[ValidationError], arguments: Sequence[str]) -> str:
    """Return a sentence on the most telling error; `arguments` are the names that the tool knows."""
    top = [error for error in errors if not error.absolute_path]
    for kind in ("additionalProperties", "required"):
        for error in top:
            if error.validator == kind and isinstance(error.instance, dict):
                return _unknown(error, arguments) if kind == "additionalProperties" else _missing(error)
    error = best_match(iter(errors), key=relevance)
    if error is None:
        return "The arguments do not fit the tool's schema."
    if error.parent is not None and error.validator == "type" and not error.relative_path:
        error = error.parent  # a sentence on one alternative would hide the others
    return _sentence(error)


def unknown_tool(name: str, names: Sequence[str]) -> str:
    """Return a sentence on a tool that is not there, with those of a similar name, or the first ten."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:10]
    return f"There is no tool named {json.dumps(name, ensure_ascii=False)}. Try one of: {', '.join(near)}."


def _unknown(error: ValidationError, arguments: Sequence[str]) -> str:
    unknown = _not_in_schema(error)
    known = f"the arguments are {', '.join(arguments)}" if arguments else "the tool takes no arguments"
    return f"Unknown argument {unknown[0]!r}; {known}." if unknown else f"The arguments do not fit: {error.message}."


def _missing(error: ValidationError) -> str:
    required: Any = error.validator_value
    missing = [name for name in required if name not in _names_in(error)]
    if error.absolute_path:
        return f"Missing argument {missing[0]!r} in {_path(error)!r}."
    unknown = _not_in_schema(error)
    hint = f"; there is no argument {unknown[0]!r}" if unknown else ""
    return f"Missing argument {missing[0]!r}{hint}."


def _names_in(error: ValidationError) -> list[str]:
    value: Any = error.instance
    return list(value)


def _not_in_schema(error: ValidationError) -> list[str]:
    schema: Any = error.schema
    return [name for name in _names_in(error) if name not in (schema.get("properties") or {})]


def _sentence(error: ValidationError) -> str:
    name, got = f"Argument {_path(error)!r}", _shown(error.instance)
    rule: Any = error.validator_value
    schema: Any = error.schema
    match error.validator:
        case "anyOf" | "oneOf" if all("type" in choice for choice in rule):
            return f"{name} must be {_kinds([choice['type'] for choice in rule])}, not {got}."
        case "type":
            return f"{name} must be {_kinds([rule] if isinstance(rule, str) else rule)}, not {got}."
        case "enum":
            return f"{name} must be one of {', '.join(map(_shown, rule))}, not {got}."
        case "const":
            return f"{name} must be {_shown(rule)}, not {got}."
        case "minimum":
            return f"{name} must be at least {rule}, not {got}."
        case "maximum":
            return f"{name} must be at most {rule}, not {got}."
        case "required":
            return _missing(error)
        case "additionalProperties":
            return _unknown(error, list(schema.get("properties") or {}))
    message = error.message if len(error.message) <= 200 else f"it does not fit {error.validator!r}"
    return f"{name}: {message}." if error.absolute_path else f"The arguments do not fit: {message}."


def _kinds(types: Sequence[Any]) -> str:
    return " or ".join(_TYPES.get(str(kind), str(kind)) for kind in types)


def _path(error: ValidationError) -> str:
    """Return the path in the form `items[2].name`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path]
    return "".join(parts).lstrip(".")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"
