"""JSON values: found in an answer, and compared."""

import json
import math
import re
from typing import Any

_LONGEST = 100_000
_ATTEMPTS = 200
"""Brackets that open nothing before we stop looking: keeps an answer of nothing but brackets cheap."""
_OPENING = re.compile(r"[{\[]")


class NoJson(Exception):
    """A text that holds no JSON."""


def json_in(text: str) -> Any:
    """The JSON value that an answer gives: the whole text, else its last fenced block, else its last object or list.

    Raises NoJson where there is none.
    """
    text = text[-_LONGEST:].strip()
    for candidate in (text, *_last_block(text)):
        try:
            return _loads(candidate)
        except ValueError:
            continue
    return _last_value(text)


def same_json(one: Any, other: Any, tolerance: float = 1e-12) -> bool:
    """Equality of JSON values: 3 equals 3.0, true does not equal 1, the order of keys does not count.

    `tolerance` is relative, and absolute beside 0.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_json(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return _same_scalar(one, other, tolerance)


def first_difference(given: Any, expected: Any, tolerance: float = 1e-12, path: str = "") -> str | None:
    """Where `given` does not contain `expected`, in words; None where it does.

    An object contains another one that has some of its keys; a list contains only lists of the same length.
    """
    where = path or "the answer"
    if isinstance(expected, dict):
        if not isinstance(given, dict):
            return f"{where} is no object"
        for key, value in expected.items():
            if key not in given:
                return f"{where} has no {key!r}"
            if difference := first_difference(given[key], value, tolerance, f"{path}.{key}" if path else key):
                return difference
        return None
    if isinstance(expected, list):
        if not isinstance(given, list) or len(given) != len(expected):
            return f"{where} is no list of {len(expected)}"
        differences = (
            first_difference(a, b, tolerance, f"{path}[{i}]")
            for i, (a, b) in enumerate(zip(given, expected, strict=True))
        )
        return next(filter(None, differences), None)
    if _same_scalar(given, expected, tolerance):
        return None
    return f"{where} is {_short(given)} where {_short(expected)} was expected"


def _same_scalar(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or math.isclose(
            one, other, rel_tol=tolerance, abs_tol=tolerance if 0 in (one, other) else 0.0
        )
    return bool(one == other)


def _loads(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _last_block(text: str) -> list[str]:
    """The last code block that is closed, without its fences and the language that its first line names."""
    parts = text.split("```")
    blocks = parts[1 : len(parts) - 1 : 2]
    return [re.sub(r"\A\w*\n", "", blocks[-1]).strip()] if blocks else []


def _last_value(text: str) -> Any:
    decoder = json.JSONDecoder()
    found: list[Any] = []
    at, failures = 0, 0
    while (start := _OPENING.search(text, at)) and failures < _ATTEMPTS:
        try:
            value, at = decoder.raw_decode(text, start.start())
            found = [value]
        except (ValueError, RecursionError):
            at, failures = start.end(), failures + 1
    if not found:
        raise NoJson
    return found[0]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
