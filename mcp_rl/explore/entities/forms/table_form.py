"""Records in tables: Markdown, psql, columns that stand below each other, and values between commas or tabs."""

from __future__ import annotations

import csv
import re

from mcp_rl.explore.entities.forms.pair_form import LABELS
from mcp_rl.explore.entities.forms.records import (
    LONGEST_NAME,
    MOST_FIELDS,
    MOST_RECORDS,
    Record,
    RecordList,
    limited,
    value_of,
    whole_lines,
)
from mcp_rl.explore.entities.nouns import is_plural

_BOX = str.maketrans({"│": "|", "┃": "|", "║": "|", **dict.fromkeys("─━═┌┐└┘├┤┬┴┼╭╮╰╯╞╪╡┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬", "-")})
_RULE = re.compile(r"[\s|:+-]{3,}")
_COLUMN = re.compile(r"[A-Za-z#][\w #./()%-]*")
_GAP = re.compile(r" {2,}|\t+")
_BAR = re.compile(r"(?<!\\)\|")


def read_table(text: str) -> list[RecordList]:
    """Return the records of a result with a table that has a line of names."""
    lines, cut = whole_lines(text)
    lines = [line.translate(_BOX) for line in lines]
    return _with_bars(lines, cut) or _with_commas([line for line in lines if line.strip()], cut) or _aligned(lines, cut)


def _with_bars(lines: list[str], cut: bool) -> list[RecordList]:
    for at, line in enumerate(lines):
        rule = lines[at + 1] if at + 1 < len(lines) else ""
        names = _cells(line)
        if "|" in line and len(names) > 1 and _RULE.fullmatch(rule) and "-" in rule and _are_names(names):
            rows = []
            for row in lines[at + 2 :]:
                if _RULE.fullmatch(row):
                    continue
                if "|" not in row:
                    break
                rows.append(_cells(row))
            above = [above.strip("#*: ") for above in lines[:at] if above.strip() and "|" not in above]
            title = above[-1] if above and len(above[-1]) <= LONGEST_NAME and not _RULE.fullmatch(above[-1]) else ""
            return _records(names, rows, title, cut)
    return []


def _cells(line: str) -> list[str]:
    inside = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in _BAR.split(inside)][:MOST_FIELDS]


def _with_commas(lines: list[str], cut: bool) -> list[RecordList]:
    if len(lines) < 3:
        return []
    for mark in ",\t;":
        if mark not in lines[0]:
            continue
        try:
            rows = list(csv.reader(lines[: MOST_RECORDS + 1], delimiter=mark))
        except csv.Error:
            continue
        if len(rows[0]) > 1 and _are_names(rows[0]) and all(len(row) == len(rows[0]) for row in rows):
            return _records(rows[0], rows[1:], "", cut)
    return []


def _aligned(lines: list[str], cut: bool) -> list[RecordList]:
    filled = [line.strip() for line in lines if line.strip() and not _RULE.fullmatch(line.strip())]
    if len(filled) < 3:
        return []
    names = _GAP.split(filled[0])
    rows = [_GAP.split(line) for line in filled[1 : MOST_RECORDS + 1]]
    if len(names) < 2 or not _are_names(names) or not all(len(row) == len(names) for row in rows):
        return []
    return _records(names, rows, "", cut)


def _are_names(cells: list[str]) -> bool:
    """Return whether these may be the names of columns: short, different, and no data."""
    if any(len(cell) > LONGEST_NAME or _COLUMN.fullmatch(cell) is None for cell in cells):
        return False
    return len(set(cells)) == len(cells) and all(cell.count(" ") < 4 for cell in cells)


def _records(names: list[str], rows: list[list[str]], title: str, cut: bool) -> list[RecordList]:
    records: list[Record] = []
    for row in rows:
        if len(row) == len(names):
            record: Record = {}
            for name, cell in zip(names, row, strict=True):
                value = value_of(cell, several=is_plural(name))
                if isinstance(value, int | float) and name.lower().split(" ")[-1] in LABELS:
                    value = cell  # "1.10" is no number
                record |= {name: value} if value is not None else {}
            records.append(record)
        else:
            cut = True  # nobody knows what it says
    return [limited(records, title, cut=cut)] if records else []
