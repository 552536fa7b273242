"""Rows without names, as some servers of databases give them: "[(1, 'Ada'), (2, 'Omar')]"."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.forms.json_form import literal
from mcp_rl.explore.entities.forms.records import CUT, LONGEST_TEXT, RecordList, is_scalar, limited

if TYPE_CHECKING:
    from collections.abc import Sequence


def rows_in(text: str) -> list[list[Any]]:
    """Return the rows of a result, as JSON or as Python writes them; none for anything else."""
    if text[:1] not in ("[", "(") or CUT in text or len(text) > LONGEST_TEXT:
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = literal(text)
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        return []
    return value if len({len(row) for row in value}) == 1 else []


def row_width(text: str) -> int:
    """Return the number of columns of rows without names; 0 where there are none."""
    rows = rows_in(text)
    return len(rows[0]) if rows else 0


def first_column(text: str) -> list[str]:
    """Return the texts in the first column of rows, with names or without."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = literal(text)
    firsts = [
        next(iter(row.values()), None) if isinstance(row, dict) else row[0] if isinstance(row, list) and row else None
        for row in (value if isinstance(value, list) else [])
    ]
    return [one for one in firsts if isinstance(one, str)]


def read_rows(text: str, columns: Sequence[str]) -> list[RecordList]:
    """Return the records of rows with columns of these names."""
    rows = [row for row in rows_in(text) if len(row) == len(columns)]
    records = [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None and is_scalar(value)}
        for row in rows
    ]
    return [limited(records)] if records else []
