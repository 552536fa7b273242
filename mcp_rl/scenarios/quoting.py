"""Texts of servers in requests: data between quotes, never markup.

What a chat template, a terminal or a reader could take for more than text is escaped as in JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any

_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]")
_LIKE_MARKUP = re.compile(r"<[|/!a-zA-Z_]|\[/?INST|```|\{\{|\}\}|\|>")
_MARKUP = re.compile(r"[<>|`{}\[\]]")


def quoted_text(value: str) -> str:
    """Return a text between quotes; as a JSON string where it holds quotes, control characters or markup."""
    if is_odd(value):
        return _without_odd(_MARKUP.sub(_escaped, json.dumps(value, ensure_ascii=False)))
    return f"'{value}'" if "'" not in value else json.dumps(value, ensure_ascii=False)


def quoted_json(value: Any) -> str:
    """Return a value as JSON; the texts in it that are markup or hold control characters are escaped."""
    if isinstance(value, str):
        return quoted_text(value) if is_odd(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted_json(str(name))}: {quoted_json(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(quoted_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def is_odd(text: str) -> bool:
    """Return whether a text holds control characters, or what a chat template could take for markup."""
    return _LIKE_MARKUP.search(text) is not None or _ODD.search(text) is not None


def _without_odd(text: str) -> str:
    return _ODD.sub(lambda odd: f"\\u{ord(odd[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
