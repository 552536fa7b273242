"""Why arguments do not fit a schema, in one sentence that names the argument and says what would fit."""

import json
from collections.abc import Sequence
from typing import Any

from jsonschema import ValidationError
from jsonschema.exceptions import best_match, relevance

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
    """The sentence about the most telling of the errors; `arguments` are the names that the tool knows."""
    top = [error for error in errors if not error.absolute_path]
    for kind in ("additionalProperties", "required"):
        for error in top:
            if error.validator == kind and isinstance(error.instance, dict):
                return _unknown(error, arguments) if kind == "additionalProperties" else _missing(error)
    error = best_match(iter(errors), key=relevance)
    return _sentence(error) if error is not None else "The arguments do not fit the tool's schema."


def _unknown(error: ValidationError, arguments: Sequence[str]) -> str:
    unknown = [name for name in error.instance if name not in (error.schema.get("properties") or {})]
    return f"Unknown argument {unknown[0]!r}; {_known(arguments)}." if unknown else _sentence(error)


def _known(arguments: Sequence[str]) -> str:
    return f"the arguments are {', '.join(arguments)}" if arguments else "the tool takes no arguments"


def _missing(error: ValidationError) -> str:
    missing = [name for name in error.validator_value if name not in error.instance]
    where = f" in {_path(error)!r}" if error.absolute_path else ""
    given = next((name for name in error.instance if name not in (error.schema.get("properties") or {})), None)
    hint = f"; there is no argument {given!r}" if given is not None and not where else ""
    return f"Missing argument {missing[0]!r}{where}{hint}."


def _sentence(error: ValidationError) -> str:
    name, got = f"Argument {_path(error)!r}", _shown(error.instance)
    match error.validator:
        case "type":
            kinds = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
            return f"{name} must be {' or '.join(_TYPES.get(kind, str(kind)) for kind in kinds)}, not {got}."
        case "enum":
            return f"{name} must be one of {', '.join(map(_shown, error.validator_value))}, not {got}."
        case "const":
            return f"{name} must be {_shown(error.validator_value)}, not {got}."
        case "minimum":
            return f"{name} must be at least {error.validator_value}, not {got}."
        case "maximum":
            return f"{name} must be at most {error.validator_value}, not {got}."
        case "required":
            return _missing(error)
        case "additionalProperties":
            return _unknown(error, list(error.schema.get("properties") or {}))
    message = error.message if len(error.message) <= 200 else f"it does not fit {error.validator!r}"
    return f"{name}: {message}." if error.absolute_path else f"The arguments do not fit: {message}."


def _path(error: ValidationError) -> str:
    """`items[2].name`, as a programmer would write it."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path]
    return "".join(parts).lstrip(".")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"
