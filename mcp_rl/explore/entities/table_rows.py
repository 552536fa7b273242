"""Rows of tables that stand on several things, such as pages: each is told apart by its thing and its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.explore.entities.keys import PRESENT, UNIQUE, tells_apart
from mcp_rl.explore.entities.things import Draft, thing_asked_about
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.sightings import Sighting
    from mcp_rl.explore.entities.things import Key, Subjects, Things

_ENTRY = "entry"
"""The noun of rows whose own noun is taken."""
_FEWEST_TABLES = 2
"""Fewest things with a table of rows of one noun, for the rows to be told apart by their thing."""


def tables_of_things(
    groups: dict[str, list[Sighting]], answers: Sequence[Answered], subjects: Subjects
) -> dict[str, list[tuple[Key, Sighting]]]:
    """Take out the tables that stand on several things, and return them by the noun of their rows, each with the key
    of its thing."""
    found = {}
    for noun, group in list(groups.items()):
        tables = [one for one in group if one.rows and not any("url" in record for record in one.records)]
        placed = [
            (place, one) for one in tables if (place := thing_asked_about(answers[one.call], subjects)) is not None
        ]
        if len({place for place, _ in placed}) < _FEWEST_TABLES:
            continue
        others = [one for one in group if one not in tables]
        found[_ENTRY if others else noun] = placed
        if others:
            groups[noun] = others
        else:
            del groups[noun]
    return found


def add_rows(result: Things, noun: str, placed: Sequence[tuple[Key, Sighting]]) -> None:
    """Add the rows of tables, each told apart by the thing on which it stands and its name.

    Tables that do not tell their rows apart, or of which a part is missing, are left out.
    """
    home = next((found for place, _ in placed if (found := result.noun_with(place)) is not None), None)
    columns = list(dict.fromkeys(name for _, one in placed for record in one.records for name in record))
    column = _naming_column(columns, [one for _, one in placed])
    noun = _ENTRY if noun in (home, *result.drafts) else noun
    if home is None or column is None or noun in result.drafts or home in map(words_of, columns):
        return
    draft = Draft(noun, column, within=home)
    by_call: dict[int, list[tuple[Key, Sighting]]] = {}
    for place, one in placed:
        by_call.setdefault(one.call, []).append((place, one))
    for call, tables in by_call.items():
        (place, first), records = tables[0], [record for _, one in tables for record in one.records]
        names = [str(record.get(column, "")).casefold() for record in records]
        whole = all(names) and len(set(names)) == len(names) and not any(one.cut for _, one in tables)
        if not whole or place not in result.drafts[home].things:
            draft.left_out += len(records)
            continue
        for record in records:
            draft.tell(f"{place} {record[column]}", {**record, home: place}, first.tool, call)
    if draft.things:
        result.drafts[noun] = draft


def _naming_column(columns: Sequence[str], tables: Sequence[Sighting]) -> str | None:
    """Return the column that names the rows of nearly all tables: the first of texts, else the first one."""
    telling = [
        name for name in columns
        if sum(tells_apart(name, [one], UNIQUE) for one in tables) >= PRESENT * len(tables)
    ]  # fmt: skip
    records = [record for one in tables for record in one.records]
    texts = [name for name in telling if all(isinstance(record.get(name, ""), str) for record in records)]
    return next(iter([*texts, *telling]), None)
