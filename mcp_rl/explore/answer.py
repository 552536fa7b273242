"""The answer in a call's result: a number, a short text, or nothing that can be checked but the calls."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.complaint import object_in, reports_failure
from mcp_rl.explore.entities.forms.outline_form import pairs_beside
from mcp_rl.rewards.dates import is_dated
from mcp_rl.rewards.json_values import is_finite, leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORT_TEXT = 60
"""Most characters of a result that a final message can be expected to repeat."""
_RESULT_KEYS = ("result", "value", "answer", "output")
_CLOSING_NUMBER = re.compile(r"(?:\bis|=|:|\bequals)\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*\.?$")
_CLOSING_AMOUNT = re.compile(r"[A-Za-z]{2,20}(?: [a-z]{2,20})?: (\d{1,15}(?:\.\d{1,9})?)(?:%| [a-z]{2,20})")
"""An amount with its name and its unit: "Total: 5 items"."""
_SECRET_LINE = re.compile(r"(?i)(?:token|secret|passw|api_?key|credential)\w{0,40}\W{0,3}[=:]\W{0,3}[^\s\"']{6}")
_OF_SECRETS = "token", "secret", "passw", "key", "credent"
"""Words of which each such line holds one. Looking for them first is far faster, since most results hold none."""
_PLACEHOLDER = re.compile(r"\[(?:image|audio|resource|link|\w+ content)\b[^\n\]]{0,300}\]")
"""A line that stands for content which is no text, as `toolserver/tools/results.py` writes it."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?Z?)?")
_READ = 20_000
"""Number of characters of a result that are searched."""


@dataclass(frozen=True)
class Answer:
    """The answer of a call. `value` is an int or float for kind "number", a str for "text", None for other kinds."""

    kind: str
    value: int | float | str | None


def read_answer(text: str, arguments: dict[str, Any]) -> Answer:
    """Return the answer in a result's text."""
    value = _scalar(text.strip()) if not holds_no_text(text) else None
    if isinstance(value, bool):
        value = json.dumps(value)
    if isinstance(value, int | float):
        return Answer("number", value) if is_finite(value) else Answer("calls", None)
    if isinstance(value, str) and pairs_beside(value):
        return Answer("calls", None)  # each of them may be asked for
    closing = _CLOSING_NUMBER.search(value or "") or _CLOSING_AMOUNT.fullmatch(value or "")
    texts = [leaf.rstrip(". ") for leaf in leaves(arguments) if isinstance(leaf, str)]
    # A number that ends an argument's own text is an echo; then the whole text is the answer.
    if closing and len(value or "") <= 2 * SHORT_TEXT and not any(text.endswith(closing[1]) for text in texts):
        return Answer("number", _number(closing[1]))
    if value and value.strip() and len(value) <= SHORT_TEXT and "\n" not in value:
        return Answer("text", value)
    return Answer("calls", None)


def holds_secret(text: str) -> bool:
    """Return whether a result seems to hold a password or key, which must not get into a scenario file."""
    folded = text.casefold()
    return any(word in folded for word in _OF_SECRETS) and _SECRET_LINE.search(text) is not None


def holds_no_text(text: str) -> bool:
    """Return whether a result is nothing but images, audio and other content that is no text."""
    lines = [line for line in text[:_READ].splitlines() if line.strip()]
    return bool(lines) and all(_PLACEHOLDER.fullmatch(line.strip()) for line in lines)


def says_nothing(text: str, arguments: Mapping[str, Any] | None = None) -> bool:
    """Return whether a successful result holds nothing: it is empty, or a complaint (`complaint.py`), for which the
    call's `arguments` tell more."""
    return not text.strip("[]{} \n") or reports_failure(text, arguments) or _is_hollow(text, arguments or {})


def shows_empty_list(text: str) -> bool:
    """Return whether a JSON object holds an empty list or object, and no list with anything in it."""
    if (value := object_in(text)) is None:
        return False
    held = [inner for inner in value.values() if isinstance(inner, list | dict)]
    return bool(held) and not any(held)


def shows_empty_overview(text: str) -> bool:
    """Return whether a JSON object holds an empty list, none with anything in it, and deeper inside no list of objects:
    the settings and counts of a server that has no things yet."""
    if (value := object_in(text)) is None:
        return False
    lists = [inner for inner in value.values() if isinstance(inner, list)]
    return bool(lists) and not any(lists) and re.search(r"\[\s*\{", text) is None


def _is_hollow(text: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a JSON result has an empty list or object, and otherwise only zeros, nulls, empty texts, and what
    was asked for: the call's arguments, and dates."""
    if text[:1] not in "[{" or not re.search(r"\[\s*\]|\{\s*\}", text):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, dict):
        value = {name: one for name, one in value.items() if name not in arguments or arguments[name] != one}
    asked = {leaf for leaf in leaves(dict(arguments)) if isinstance(leaf, str)}
    found = (leaf for leaf in leaves(value) if leaf)
    return all(isinstance(leaf, str) and (leaf in asked or _DATE.fullmatch(leaf)) for leaf in found)


def call_key(tool: str, arguments: dict[str, Any]) -> str:
    """Return a key that all spellings of the same call have in common: keys sorted, 3.0 equal to 3."""
    return f"{tool} {json.dumps(_canonical(arguments), sort_keys=True, ensure_ascii=False)}"


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _scalar(text: str) -> int | float | str | None:
    """Return the single value of a result, or None for a structure of several."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    while isinstance(value, dict):
        named = [value[key] for key in _RESULT_KEYS if key in value]
        value = named[0] if named else next(iter(value.values())) if len(value) == 1 else None
    return value if isinstance(value, str | int | float) else None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def lasting_answer(text: str, arguments: dict[str, Any]) -> Answer:
    """Return the answer in a result; of kind "calls" for a result with a time of day, which will not last."""
    return Answer("calls", None) if is_dated(text) else read_answer(text, arguments)
