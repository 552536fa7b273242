"""Records in lines of a name and a value: "size: 12", one block after the other, and logs like git's, with patches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.fields import UNITS
from mcp_rl.explore.entities.forms.patch_form import changes_in
from mcp_rl.explore.entities.forms.records import (
    LONGEST_VALUE,
    MOST_RECORDS,
    Record,
    RecordList,
    limited,
    value_of,
    whole_lines,
    without_code,
)
from mcp_rl.explore.entities.nouns import is_plural

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAIR = re.compile(r"(?:[-*•] )?\*{0,2}([A-Za-z][\w ./()-]{0,40})\*{0,2}(?: ?:|=| = )\*{0,2}(?:\s+|$)(.*)")
_HEADED = re.compile(r"([a-z]{3,12}) ([0-9a-f]{7,64})(?: \(.{1,80}\))?")
"""The first line of an entry in a log: "commit 1f3a…"."""
_ADDRESSED = re.compile(r"([^<>@]{1,100}?) <([^<>@\s]{1,100}@[^<>@\s]{1,100})>")
"""A person with an address for mail: "Ada <ada@example.com>"."""
_QUANTITY = re.compile(r"(-?\d{1,3}(?:,\d{3})+|-?\d{1,15})((?:\.\d{1,9})?) ?([A-Za-z%]{1,10})")
_RULE = re.compile(r"[-=_*#~]{3,}")
_NUMBERED = re.compile(r"\d{1,5}[.)] +")
LABELS = {"permissions", "mode", "version", "phone", "zip", "postcode", "port"}
"""Names of values that look like numbers and are none."""
_LEAST_SHARE = 0.6
"""Least share of the lines that are pairs, where a result is read as pairs."""
_LEADING = 3
"""Pairs in the first lines that make a record of a result which goes on otherwise."""
_LONGEST_LINE = 2_000


def read_pairs(text: str) -> list[RecordList]:
    """Return the records of a result that is written in pairs."""
    lines, cut = whole_lines(text)
    title = _title(lines)
    if _is_list(lines):
        return []  # its items have names (`list_form.py`)
    if title is not None and (level := lines[0].split(" ")[0]).startswith("#") and _has_several(lines, level):
        title, lines = None, [re.sub(rf"^{level} +", "name: ", line) for line in lines]
    if any(_HEADED.fullmatch(line) for line in lines[:1]):
        return _log(lines, cut)
    told = without_code(lines[title is not None :])
    filled = [line for line in told if line.strip() and not _RULE.fullmatch(line.strip())]
    pairs = [pair_in(line) for line in filled]
    share = sum(pair is not None or line[:1] in " \t" for line, pair in zip(filled, pairs, strict=True))
    if not filled or share < _LEAST_SHARE * len(filled) or sum(pair is not None for pair in pairs) < 2:
        return _leading(lines, cut)
    records = [block for block in _blocks(told) if block][:MOST_RECORDS]
    if not records:
        return []
    shared = sum(len(record.keys() & records[0].keys()) > 0 for record in records)
    if shared < len(records):
        return _leading(lines, cut)
    if len(records) == 1:
        return [limited(records, title or "", several=False, cut=cut)] if len(records[0]) > 1 else []
    return [limited(records, title or "", cut=cut)]


def _is_list(lines: list[str]) -> bool:
    """Return whether things are listed by numbers, with the pairs of each below its name."""
    items = [line for line in lines if _NUMBERED.match(line) and pair_in(_NUMBERED.sub("", line)) is None]
    return len(items) > 1


def _has_several(lines: list[str], level: str) -> bool:
    """Return whether there are several headings of a level: each names a thing."""
    return sum(line.startswith(f"{level} ") for line in lines) > 1


def _log(lines: list[str], cut: bool) -> list[RecordList]:
    """Return the records of a log as git writes it, whose entries may be followed by their changes."""
    records = [block for block in _blocks(lines) if len(block) > 1][:MOST_RECORDS]
    if len(records) == 1 and not cut:
        records[0] |= changes_in(lines)
    return [limited(records, several=len(records) > 1, cut=cut)] if records else []


def pair_in(line: str) -> tuple[str, str] | None:
    """Return the name and the value of a line, or None."""
    line = line.strip()
    if len(line) > _LONGEST_LINE:
        return None
    if found := _HEADED.fullmatch(line):
        return found[1], found[2]
    found = _PAIR.fullmatch(line)
    if found is None or found[1].count(" ") > 3 or found[1].count("(") != found[1].count(")"):
        return None
    return found[1].strip(), found[2]


def put(record: Record, name: str, text: str) -> None:
    """Put a value into a record, unless it stands for nothing."""
    last = name.lower().split(" ")[-1]
    value = text.strip() if last in LABELS else value_of(text, several=is_plural(last))
    if value in (None, ""):
        return
    if isinstance(value, str) and (found := _QUANTITY.fullmatch(value)) and found[3].lower() in UNITS:
        record[f"{name} {found[3]}"] = value_of(found[1].replace(",", "") + found[2])
        return
    if isinstance(value, str) and (found := _ADDRESSED.fullmatch(value)):
        record[f"{name} email"] = found[2]
        value = found[1]
    record[name] = value


def _title(lines: list[str]) -> str | None:
    """Return the first line if it names what follows: "Commit history:", "# Notes"."""
    first = lines[0].strip() if lines else ""
    if first.startswith("#"):
        return first.strip("# ")
    if first.endswith(":") and len(first) <= 80 and len([line for line in lines[1:] if line.strip()]) > 1:
        return first.rstrip(": ")
    return None


def _blocks(lines: list[str]) -> Iterator[Record]:
    record: Record = {}
    body: list[str] = []
    logged = ended = False
    for line in lines:
        stripped = line.strip()
        indented = line[:1] in " \t"
        headed = _HEADED.fullmatch(line) is not None
        pair = None if logged and not headed and (indented or body) else pair_in(line)
        if (pair is not None and pair[0] in record) or (record and _RULE.fullmatch(stripped)):
            yield _with_body(record, body)
            record, body, ended = {}, [], False
        if pair is not None:
            logged = logged or headed
            put(record, *pair)
            record.setdefault(pair[0], None)
        elif stripped and not indented:
            ended = True  # what is indented below belongs to something else
        elif stripped and record and not ended:
            body.append(stripped)
    yield _with_body(record, body)


def _with_body(record: Record, body: list[str]) -> Record:
    """Return a record with the indented lines below it, as the message of a commit stands in a log."""
    kept = {name: value for name, value in record.items() if value is not None}
    text = "\n".join(body)
    empty = [name for name, value in record.items() if value is None]
    if text and len(text) <= LONGEST_VALUE:
        kept[empty[-1] if empty else "message"] = text
    return kept


def _leading(lines: list[str], cut: bool) -> list[RecordList]:
    """Return the record in the first lines of a result that goes on with something else, such as a commit's changes."""
    record: Record = {}
    for line in lines:
        pair = pair_in(line)
        if pair is None or pair[0] in record:
            break
        put(record, *pair)
    changes = {} if cut else changes_in(lines)
    return [limited([record | changes], several=False)] if len(record) >= _LEADING else []
