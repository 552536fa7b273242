"""Records as they stand in a result, before it is known what they are about."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
"""Fields with their values: text, a number, true or false, or a list of those."""

LONGEST_TEXT = 100_000
"""Characters of a result that are read."""
MOST_RECORDS = 2_000
"""Most records of one result."""
MOST_FIELDS = 40
LONGEST_VALUE = 4_000
LONGEST_NAME = 60
"""Most characters of a field's name."""
MOST_ITEMS = 100
"""Most entries of a list in a field."""
CUT = "\n[… cut: "
"""Begins the mark in a result whose middle was cut out."""
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,14})")
_DECIMAL = re.compile(r"-?\d{1,15}\.\d{1,12}")
_NOTHING = {"", "-", "\u2013", "\u2014", "none", "null", "n/a", "(none)", "(empty)", "undefined", "nil", "[]", "{}"}
_CODE = re.compile(
    r"```(?!(?:text|txt|plain|plaintext|yaml|yml|toml|ini|env|md|markdown|csv|properties|console|log|output)\b)[A-Za-z]"
)
"""Begins a block of program text."""
_REPRESENTED = re.compile(r"<[\w.]{1,60} \"(.{1,200})\">")


@dataclass(frozen=True)
class RecordList:
    """Records that stand together in a result."""

    records: tuple[Record, ...]
    name: str = ""
    """The name under which they stand, such as "notes"; empty where the result gives none."""
    several: bool = True
    """False for one record that is told by itself."""
    cut: bool = False
    """True if the result holds more than was read."""
    rows: bool = False
    """True for the rows of a table on a page: other pages may have rows of the same names."""


def limited(
    records: list[Record], name: str = "", *, several: bool = True, cut: bool = False, rows: bool = False
) -> RecordList:
    """Return records within the limits."""
    kept = [dict(list(record.items())[:MOST_FIELDS]) for record in records[:MOST_RECORDS]]
    return RecordList(tuple(kept), name[:LONGEST_NAME].strip(), several, cut or len(records) > MOST_RECORDS, rows)


def is_scalar(value: Any) -> bool:
    """Return whether a value can stand in a field by itself: a text that is not too long, a finite number, a flag."""
    if isinstance(value, str):
        return len(value) <= LONGEST_VALUE
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def value_of(text: str, *, several: bool = False) -> Any:
    """Return the value that a text stands for: a number, true or false, a list if `several`, the text, or None."""
    text = text.strip().strip("*`").strip()
    if found := _REPRESENTED.fullmatch(text):
        text = found[1]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1] or None
    if text.lower() in _NOTHING or len(text) > LONGEST_VALUE:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if several:
        inner = text[1:-1] if text[0] == "[" and text[-1] == "]" else text
        parts = [part.strip().strip("'\"`#") for part in inner.split(",")]
        if all(0 < len(part) <= LONGEST_NAME for part in parts):
            return parts[:MOST_ITEMS]
    return text


def without_code(lines: list[str]) -> list[str]:
    """Return the lines outside of blocks of program text, which begin with "```" and the name of a language."""
    kept: list[str] = []
    inside = False
    for line in lines:
        if inside or _CODE.match(line.strip()):
            inside = not inside or line.strip() != "```"
        else:
            kept.append(line)
    return kept


def whole_lines(text: str) -> tuple[list[str], bool]:
    """Return the lines of a text, and whether it was cut: then only those before the cut."""
    head, mark, _ = text[:LONGEST_TEXT].partition(CUT)
    lines = head.split("\n")
    return [line.rstrip() for line in (lines[:-1] if mark else lines)], bool(mark) or len(text) > LONGEST_TEXT
