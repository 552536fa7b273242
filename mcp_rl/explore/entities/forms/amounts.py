"""Amounts as people write them: "$100,000", "24 months", "25% default", "12 files, 3 folders"."""

from __future__ import annotations

import calendar
import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.fields import UNITS
from mcp_rl.explore.entities.forms.pair_form import put
from mcp_rl.explore.entities.forms.quantities import MONEY
from mcp_rl.explore.entities.forms.records import MOST_ITEMS, value_of
from mcp_rl.explore.entities.nouns import is_plural, singular
from mcp_rl.rewards.answers import UNIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.entities.forms.records import Record

_AMOUNT = re.compile(
    r"(?P<money>[$€£]?)(?P<number>-?(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,9})?)"
    r"(?: ?(?P<unit>%|[A-Za-z]{1,12}))?(?: (?P<what>[A-Za-z][a-z]{1,20}))?"
)
_BESIDE = re.compile(rf"%|{UNIT}")
"""Units that follow a number without a blank."""
_NO_UNITS = frozenset(
    [
        *("am", "pm", "noon", "k", "m", "g", "bn", "hundred", "thousand", "million", "billion", "trillion", "dozen"),
        *(name.lower() for month in calendar.month_name[1:] for name in (month, month[:3])),
    ]
)
"""Words behind a number that make it a time, a date or another number."""
_SPELLED = {"%": "percent"}
"""Words for signs that names of fields do not hold."""
_CELL = ("description", "value")
"""Fields of an entry that hold what stands beside its name."""


def put_amount(record: Record, name: str, text: str) -> None:
    """Put a value into a record: of an amount the number, with its unit in the field's name."""
    found = _AMOUNT.fullmatch(text)
    unit = _unit(found) if found and not found["what"] else ""
    if found and unit:
        record[f"{name} {unit}"] = value_of(found["number"].replace(",", ""))
    elif found and found["unit"] and not found["what"]:
        counts = singular(found["unit"].lower()) in singular(name.lower()).split()  # "Rowing lanes: 6 lanes"
        record[name] = value_of(found["number"].replace(",", "")) if counts else text
    elif is_plural(name) and any(sign in text for sign in MONEY) and ", " in text:
        record[name] = text.split(", ")[:MOST_ITEMS]
    else:
        put(record, name, text)


def amounts_in(records: Sequence[Record]) -> list[Record]:
    """Return the entries of a list with fields for the amounts beside their names, where all of them have the same.

    "Marketing: 25% default" has the field "default %", and "notes: 12 files" the field "files".
    """
    read = [_amounts(record) for record in records]
    if any(found is None for found in read) or len({tuple(found or ()) for found in read}) != 1:
        return list(records)
    return [
        {**{name: value for name, value in record.items() if name not in _CELL}, **(found or {})}
        for record, found in zip(records, read, strict=True)
    ]


def number_in(text: str) -> int | float | None:
    """Return the number of a text that is one amount, such as "$100,000" or "5 items"; None for any other text."""
    found = _AMOUNT.fullmatch(text)
    if found is None or (found["what"] and found["unit"] != "%") or (found["unit"] or "").lower() in _NO_UNITS:
        return None
    if found["unit"] and text[found.end("number")] != " " and _BESIDE.fullmatch(found["unit"]) is None:
        return None  # "$2.5K" stands for a number that it does not hold
    number = value_of(found["number"].replace(",", ""))
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def _amounts(record: Record) -> Record | None:
    """Return the amounts beside the name of an entry, or None where something else stands there."""
    cell = next((record[name] for name in _CELL if name in record), None)
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return {"value": cell}
    if not isinstance(cell, str):
        return None
    found: Record = {}
    for part in re.split(r", | [-|\u2013\u2014] ", cell):
        amount = _AMOUNT.fullmatch(part)
        if amount is None:
            return None
        unit, what = _unit(amount), amount["what"] or ""
        if amount["unit"] and not unit:
            if amount["unit"].lower() in _NO_UNITS:
                return None
            what = f"{amount['unit']} {what}".strip()
        name = f"{what or 'value'} {unit}".strip()
        if name in found:
            return None
        found[name] = value_of(amount["number"].replace(",", ""))
    return found


def _unit(found: re.Match[str]) -> str:
    """Return the unit of an amount as it stands in names of fields; empty where it has none that is known."""
    if found["money"]:
        return MONEY[found["money"]] if not found["unit"] else ""
    unit = _SPELLED.get(found["unit"], found["unit"] or "")
    return unit if unit in UNITS or (len(unit) > 1 and unit.lower() in UNITS) else ""
