"""JSON values: finding them in answers, comparing them, and their leaves."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LONGEST = 100_000
_ATTEMPTS = 200
"""Limit on brackets that open no JSON value: keeps an answer of nothing but brackets cheap."""
_OPENING = re.compile(r"[{\[]")


class NoJson(Exception):
    """Raised for a text that holds no JSON."""


def json_in(text: str) -> Any:
    """Return the JSON value of an answer: the whole text, else its last fenced block, else its last object or list.

    Raises NoJson where the answer holds none.
    """
    text = text[-_LONGEST:].strip()
    for candidate in (text, *_last_block(text)):
        try:
            return _loads(candidate)
        except ValueError:
            continue
    return _last_value(text)


def same_json(one: Any, other: Any, tolerance: float = 1e-12) -> bool:
    """Return whether JSON values are equal: 3 equals 3.0, true does not equal 1, the order of keys does not count.

    `tolerance` is relative, and absolute in comparisons with 0.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_json(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return _same_scalar(one, other, tolerance)


def unordered(value: Any, seen: Callable[[str], str] = str) -> Any:
    """Return a JSON value whose lists of objects are in an order of their own, so that their order does not count.

    `seen` returns what of an object's text decides the order.
    """
    if isinstance(value, dict):
        return {key: unordered(inner, seen) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    inner = [unordered(each, seen) for each in value]
    return sorted(inner, key=lambda each: seen(json.dumps(each, sort_keys=True))) if _all_objects(inner) else inner


def lists_objects(value: Any) -> bool:
    """Return whether a JSON value holds a list of two or more objects."""
    if isinstance(value, dict):
        return any(map(lists_objects, value.values()))
    return isinstance(value, list) and ((len(value) > 1 and _all_objects(value)) or any(map(lists_objects, value)))


def _all_objects(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, dict) for each in values)


def first_difference(given: Any, expected: Any, tolerance: float = 1e-12, path: str = "") -> str | None:
    """Return in words where `given` does not contain `expected`, or None where it contains it.

    An object contains objects with some of its keys; a list contains only lists of the same length.
    """
    where = path or "the answer"
    if isinstance(expected, dict):
        if not isinstance(given, dict):
            return f"{where} is not an object"
        for key, value in expected.items():
            if key not in given:
                return f"{where} has no {key!r}"
            if difference := first_difference(given[key], value, tolerance, f"{path}.{key}" if path else key):
                return difference
        return None
    if isinstance(expected, list):
        if not isinstance(given, list) or len(given) != len(expected):
            return f"{where} is not a list of {len(expected)}"
        differences = (
            first_difference(a, b, tolerance, f"{path}[{i}]")
            for i, (a, b) in enumerate(zip(given, expected, strict=True))
        )
        return next(filter(None, differences), None)
    if _same_scalar(given, expected, tolerance):
        return None
    return f"{where} is {_short(given)}, not {_short(expected)}"


def leaves(value: Any) -> Iterator[Any]:
    """Yield the texts, numbers, booleans and nulls inside a JSON value, in order."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    else:
        yield value


def is_finite(value: float) -> bool:
    """Return whether a number is finite as a float, which integers above 1e308 are not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_close(one: float, other: float, *, tolerance: float, absolute: float = 0.0) -> bool:
    """Return whether two numbers are equal up to a relative tolerance, or an absolute one."""
    try:
        return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=absolute)
    except OverflowError:  # an integer that no float holds
        return False


def _same_scalar(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return is_close(one, other, tolerance=tolerance, absolute=tolerance if 0 in (one, other) else 0.0)
    return bool(one == other)


def _loads(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _last_block(text: str) -> list[str]:
    """Return the last closed code block, without its fences and the language in its first line."""
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
