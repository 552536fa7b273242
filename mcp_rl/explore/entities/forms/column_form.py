"""Records in columns without names: lines of a name with numbers, sizes or ages, two or more blanks apart.

    0d     552B  reports/copper5.txt
    0d     455B  drafts/pocket14.log

Nothing says what a number without a unit counts, so such a column is left out. The column of names is certain, and so
are sizes in bytes; a size in kilobytes is rounded, and counts only where the whole column has that unit.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.forms.list_form import is_path
from mcp_rl.explore.entities.forms.records import Record, RecordList, limited, value_of, whole_lines
from mcp_rl.explore.entities.nouns import is_plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GAP = re.compile(r" {2,}|\t+")
_SIZE = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,15}(?:\.\d{1,3})?) ?([kKMGT]?)(?:i?B|bytes)")
_SHAPES = (
    ("size", _SIZE),
    ("number", re.compile(r"[-+]?\d{1,15}(?:[.,]\d{1,9})*%?")),
    ("age", re.compile(r"\d{1,9}(?:ms|[smhdwy]|mo)(?: ago)?")),
    ("date", re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?")),
)
_NUMBERED = re.compile(r"[-+]?\d[\d.,]{0,15}[A-Za-z%]{0,3} ")
_HEADING = re.compile(r"(?:(by) )?([A-Za-z][A-Za-z ]{1,40}?)(?: *\(\d{1,9}\))?:?")
_SOME = re.compile(
    r"(?i)\b(?:top|largest|smallest|biggest|newest|oldest|latest|recent|first|last|most|least|best|worst|other)\b"
)
"""A heading of a list that leaves things out."""
_TOTAL = re.compile(r"(?<![\w.])(\d{1,9}) [a-z]{2,20}\b")
_FEWEST_ROWS = 3
_LEAST_SHARE = 0.5
"""Least share of the lines that are rows."""
_LONGEST_LINE, _MOST_CELLS, _LONGEST_CELL = 500, 12, 300


def read_columns(text: str) -> list[RecordList]:
    """Return the records of rows in columns without names, each block under the heading above it."""
    lines, cut = whole_lines(text)
    lines = [line for line in lines if len(line) <= _LONGEST_LINE]
    found: list[RecordList] = []
    rows_read = 0
    above: list[str] = []
    for block in _blocks(lines):
        rows = [_GAP.split(line.strip()) for line in block if _is_row(line)]
        heads = [line for line in block if not _is_row(line)]
        records = _records(rows)
        bare = all(record.keys() == {"name"} for record in records)
        if not records or (bare and not heads) or heads != block[: len(heads)]:
            above += block
            continue
        rows_read += len(rows)
        heading = _heading(heads[-1]) if heads else ""
        left_out = _SOME.search(heads[-1] if heads else "") is not None or (not heads and _more(above, len(rows)))
        if heading is not None:
            found.append(limited(records, heading, cut=cut or left_out))
    return found if rows_read >= _LEAST_SHARE * sum(bool(line.strip()) for line in lines) else []


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    for filled, block in groupby(lines, key=lambda line: bool(line.strip())):
        if filled:
            yield list(block)


def _is_row(line: str) -> bool:
    return 1 < len(_GAP.split(line.strip(), maxsplit=_MOST_CELLS)) <= _MOST_CELLS


def _heading(line: str) -> str | None:
    """Return the plural that a block of rows stands under; None for a heading that says no plural."""
    found = _HEADING.fullmatch(line.strip())
    return found[2] if found and not found[1] and is_plural(found[2]) else None


def _more(above: Sequence[str], length: int) -> bool:
    """Return whether the lines above say that there are more things than these rows."""
    return any(int(count) > length for line in above for count in _TOTAL.findall(line))


def _records(rows: Sequence[Sequence[str]]) -> list[Record]:
    """Return the records of rows that agree in the number and the kinds of their columns; none of any others."""
    if len(rows) < _FEWEST_ROWS or len({len(row) for row in rows}) != 1:
        return []
    columns = list(zip(*rows, strict=True))
    shapes = [_shape(column) for column in columns]
    texts = [column for column, shape in zip(columns, shapes, strict=True) if shape == "text"]
    if len(texts) != 1 or "mixed" in shapes:
        return []
    names = texts[0]
    if all(map(_NUMBERED.match, names)):  # a column whose gap is but one blank
        return []
    if len(set(names)) < len(names) or any(len(name) > _LONGEST_CELL for name in names):
        return []
    field = "path" if all(map(is_path, names)) else "name"
    sizes = [column for column, shape in zip(columns, shapes, strict=True) if shape == "size"]
    told = _sizes(sizes[0]) if len(sizes) == 1 else [{} for _ in names]
    return [{field: name, **size} for name, size in zip(names, told, strict=True)]


def _shape(column: Sequence[str]) -> str:
    for name, pattern in _SHAPES:
        if all(pattern.fullmatch(cell) for cell in column):
            return name
    return "text" if not any(pattern.fullmatch(cell) for cell in column for _, pattern in _SHAPES) else "mixed"


def _sizes(column: Sequence[str]) -> list[Record]:
    """Return the sizes that are exact: those in bytes, or all where they have one unit."""
    read = [found for cell in column if (found := _SIZE.fullmatch(cell))]
    units = {found[2].lower() for found in read}
    name = f"size {units.pop()}b" if len(units) == 1 and units != {""} else "size bytes"
    whole = name != "size bytes" and name.removeprefix("size ") in ("kb", "mb", "gb")
    return [
        {name: value_of(found[1].replace(",", ""))}
        if whole or (not found[2] and "." not in found[1] and name == "size bytes")
        else {}
        for found in read
    ]
