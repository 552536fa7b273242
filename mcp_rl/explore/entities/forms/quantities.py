"""Quantities in the columns of a table: "12 m", "$4.50", "1,200"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.fields import UNITS
from mcp_rl.explore.entities.forms.records import value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.entities.forms.records import Record

MONEY = {"$": "usd", "€": "eur", "£": "gbp"}
"""Units of amounts of money by their signs, as they stand in names of fields."""
_QUANTITY = re.compile(
    r"(?P<before>[$€£]?) ?(?P<number>-?(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,9})?) ?(?P<after>[A-Za-z%]{0,10}|[€£$])"
)


def with_numbers(records: Sequence[Record]) -> list[Record]:
    """Return the rows of a table with numbers in each column of quantities with one unit, which its name then ends in.

    The first column is left as it is: it names the rows.
    """
    columns = list(dict.fromkeys(name for record in records for name in list(record)[1:]))
    found = {name: _numbers([record.get(name) for record in records]) for name in columns}
    return [
        {new: value for name, old in record.items() for new, value in [_replaced(name, old, at, found.get(name))]}
        for at, record in enumerate(records)
    ]


def _replaced(name: str, old: Any, at: int, numbers: tuple[str, list[Any]] | None) -> tuple[str, Any]:
    return (name, old) if numbers is None else (f"{name} {numbers[0]}".strip(), numbers[1][at])


def _numbers(cells: Sequence[Any]) -> tuple[str, list[Any]] | None:
    """Return the unit of a column and its numbers, or None where it holds anything but quantities of one unit."""
    read = [(None, None) if cell is None else _quantity(cell) for cell in cells]
    units = {unit for (unit, _), cell in zip(read, cells, strict=True) if cell is not None}
    if len(units) != 1 or None in units or not any(isinstance(cell, str) for cell in cells):
        return None
    return str(units.pop()), [number for _, number in read]


def _quantity(cell: Any) -> tuple[str, Any] | tuple[None, None]:
    """Return the unit and the number of a cell; none of them where it holds something else."""
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return "", cell
    found = _QUANTITY.fullmatch(cell) if isinstance(cell, str) else None
    if found is None or (found["before"] and found["after"]):
        return None, None
    unit = found["before"] or found["after"]
    unit = MONEY.get(unit, unit)
    if unit and unit.lower() not in UNITS:
        return None, None
    return unit, value_of(found["number"].replace(",", ""))
