"""Rows of tables and entries of lists that stand in several things, such as pages or recipes: each is told apart by its
thing and its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.edges import ends_of
from mcp_rl.explore.entities.keys import PRESENT, UNIQUE, key_of, tells_apart
from mcp_rl.explore.entities.nouns import noun_of_tool
from mcp_rl.explore.entities.things import Draft, is_key, thing_asked_about
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.forms.records import Record
    from mcp_rl.explore.entities.sightings import Sighting
    from mcp_rl.explore.entities.things import Key, Subjects, Things

_ENTRY = "entry"
"""The noun of rows whose own noun is taken."""
_FEWEST_TABLES = 2
"""Fewest things with a table of rows of one noun, for the rows to be told apart by their thing."""
_SEARCHES = re.compile(r"(?:search|find|query|lookup|match|filter)\b")
"""Begins the name of a tool whose lists hold the things that it found."""


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


@dataclass(frozen=True)
class PlacedLists:
    """Lists of one noun that stand in several things, and tell their entries apart by a name that repeats."""

    key: str
    placed: tuple[tuple[Key, Sighting], ...]
    """The lists, each with the key of its thing."""


def lists_in_things(
    groups: dict[str, list[Sighting]], answers: Sequence[Answered], subjects: Subjects
) -> dict[str, PlacedLists]:
    """Take out the lists whose names hold only inside one thing, such as the steps of recipes, and return them by their
    noun: step 2 of one recipe says something else than step 2 of another."""
    found = {}
    for noun, group in list(groups.items()):
        placed = [(thing_asked_about(answers[one.call], subjects), one) for one in group]
        within = tuple((place, one) for place, one in placed if place is not None)
        key = key_of(noun, group, subjects, by_id=False)
        if len(within) == len(group) and key is not None and _repeat(key, noun, within):
            found[noun] = PlacedLists(key, within)
            del groups[noun]
    return found


def _repeat(key: str, noun: str, placed: Sequence[tuple[Key, Sighting]]) -> bool:
    """Return whether a name stands for different entries in different things."""
    first: dict[Key, tuple[Key, Record]] = {}
    differs = False
    for place, one in placed:
        found = noun_of_tool(one.tool) == noun and _SEARCHES.match(words_of(one.tool)) is not None
        if found or ends_of(one.records) is not None:  # by a search; the relations of a graph
            return False
        for record in one.records:
            name = record.get(key)
            if not is_key(name):
                continue
            where, known = first.setdefault(name, (place, record))
            differs = differs or (
                where != place and any(known.get(each, told) != told for each, told in record.items())
            )
    return differs and not any(isinstance(place, str) and place in first for place, _ in placed)


def add_rows(result: Things, noun: str, placed: Sequence[tuple[Key, Sighting]], key: str = "") -> None:
    """Add the rows of tables, each told apart by the thing on which it stands and its name.

    `key` is the field of the names; without it, a column is found that names the rows. Tables that do not tell their
    rows apart, or of which a part is missing, are left out.
    """
    home = next((found for place, _ in placed if (found := result.noun_with(place)) is not None), None)
    columns = list(dict.fromkeys(name for _, one in placed for record in one.records for name in record))
    column = key or _naming_column(columns, [one for _, one in placed])
    noun = _ENTRY if noun in (home, *result.drafts) else noun
    if home is None or column is None or noun in result.drafts or (not key and home in map(words_of, columns)):
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
