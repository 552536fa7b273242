"""Tool calls and turns, parsed from a model's text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ParsedCall:
    """A tool call of the model. `arguments` is None if it could not be parsed; `error` says why."""

    name: str
    arguments: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True)
class ParsedCompletion:
    """A parsed turn: the stripped text outside thoughts and tool calls, the calls in order, and the thoughts."""

    content: str
    calls: list[ParsedCall] = field(default_factory=list)
    thought: str = ""


def unreadable(reason: str) -> ParsedCall:
    """Return a call that cannot be read; `reason` is one sentence for the model."""
    return ParsedCall("", None, reason)


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
    return _encodable(json.loads(text, parse_constant=_no_constant))


def read_object(text: str) -> dict[str, Any] | None:
    """Parse a call's arguments, of which an empty text is an empty object; return None if they are no JSON object."""
    try:
        found = read_json(text or "{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at an index; return it and the index after it. Raises ValueError,
    RecursionError."""
    found, end = json.JSONDecoder(parse_constant=_no_constant).raw_decode(text, start)
    return _encodable(found), end


def whole_characters(text: str) -> str:
    """Replace unpaired surrogates, which cannot be encoded."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _encodable(found: Any) -> Any:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start]!a} is half of a character") from error
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
