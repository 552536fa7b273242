"""Random programs over the rows of tables, with the outcomes in turn."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.program import (
    Commonest,
    Condition,
    CountOf,
    ExtremeOf,
    FieldOf,
    GapAmong,
    IfAny,
    MoreOf,
    NamesOf,
    PlacesOf,
    Program,
    TotalOf,
)
from mcp_rl.scenarios.goals.propose import threshold
from mcp_rl.scenarios.goals.rows.choice import RowChoice
from mcp_rl.scenarios.goals.values import number
from mcp_rl.scenarios.goals.words import can_be_said

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Entity, EntityKind
    from mcp_rl.scenarios.goals.words import English

_FEWEST_ROWS = 4
_NUMBERS = ("number", "size", "length", "age", "cost", "count", "mass")
"""Sorts of fields whose values can be compared and added up."""
_TIMES = ("year", "dated", "time", "changed", "created", "due")
_PLAIN = (*_NUMBERS, *_TIMES, "text", "label", "contents", "place")
"""Sorts of fields that are asked for."""


class Rows:
    """The rows of one kind, by the things on which they stand and by their names."""

    def __init__(self, english: English, kind: EntityKind) -> None:
        self.kind, self.every = kind, english.world.of_kind(kind.name)
        self.on: dict[JsonValue, list[Entity]] = defaultdict(list)
        self.named: dict[JsonValue, list[Entity]] = defaultdict(list)
        spellings: dict[str, set[JsonValue]] = defaultdict(set)
        for one in self.every:
            self.on[self.place(one)].append(one)
            spellings[str(self.name(one)).casefold()].add(self.name(one))
        for one in self.every:
            name = self.name(one)
            if can_be_said(name) and len(spellings[str(name).casefold()]) == 1:
                self.named[name].append(one)
        sorts = {
            name: english.sort(kind.name, name)
            for name, about in kind.fields.items()
            if name not in (kind.key, kind.within) and english.usable(kind.name, name) and about.kind != "list"
        }
        self.asked = [name for name, sort in sorts.items() if sort in _PLAIN and self._varies(name)]
        self.amounts = [name for name in self.asked if sorts[name] in _NUMBERS]
        self.ordered = [name for name in self.asked if sorts[name] in (*_NUMBERS, *_TIMES)]
        self.shared = [name for name in self.asked if sorts[name] in ("text", "label", "place")]

    def place(self, one: Entity) -> JsonValue:
        return one.facts[self.kind.within].value

    def name(self, one: Entity) -> JsonValue:
        return one.facts[self.kind.key].value

    def values(self, rows: Sequence[Entity], field: str) -> list[JsonValue]:
        """Return what is known of a field of these rows."""
        return [one.facts[field].value for one in rows if field in one.facts]

    def _varies(self, field: str) -> bool:
        return len(set(map(str, self.values(self.every, field)))) >= 3


class RowDrawer:
    """Draws programs over the rows of tables that may make a task."""

    def __init__(self, english: English, random: random.Random) -> None:
        self._random = random
        kinds = [Rows(english, kind) for kind in english.world.kinds.values() if kind.within]
        self.kinds = [rows for rows in kinds if len(rows.every) >= _FEWEST_ROWS and rows.asked and rows.named]
        """The kinds of rows of which something can be asked."""

    def proposals(self, tries: int) -> Iterator[tuple[str, Program]]:
        """Yield distinct programs with their outcomes in turn, of so many draws."""
        seen: set[str] = set()
        for _, (outcome, draw) in zip(
            range(tries if self.kinds else 0), itertools.cycle(OUTCOMES.items()), strict=False
        ):
            program = draw(self, self._random.choice(self.kinds))
            if program is not None and repr(program) not in seen:
                seen.add(repr(program))
                yield outcome, program

    # What is chosen

    def _one(self, rows: Rows) -> Entity:
        return self._random.choice([one for named in rows.named.values() for one in named])

    def _place(self, rows: Rows) -> JsonValue:
        return self._random.choice(list(rows.on))

    def _name(self, rows: Rows, *, several: bool) -> JsonValue:
        """Draw the name of rows on several things, or of one on a single thing; None where there is none."""
        fitting = [name for name, found in rows.named.items() if (len(found) > 1) == several]
        return self._random.choice(fitting) if fitting else None

    def _limit(self, rows: Rows, among: Sequence[Entity]) -> Condition | None:
        """Draw a condition on the values of these rows."""
        field = self._random.choice(rows.asked)
        values = rows.values(among, field)
        if field in rows.amounts:
            return threshold(self._random, field, [found for one in values if (found := number(one)) is not None])
        values = [value for value in values if can_be_said(value)]
        return Condition(field, "is", self._random.choice(values)) if values and field in rows.shared else None

    # Outcomes

    def _field_of(self, rows: Rows) -> Program | None:
        draws = (self._cell, self._cell, self._row_with, self._place_with, self._only_one)
        return self._random.choice(draws)(rows)

    def _cell(self, rows: Rows) -> Program | None:
        one = self._one(rows)
        return FieldOf(RowChoice(rows.place(one), rows.name(one)).things(rows.kind), self._random.choice(rows.asked))

    def _row_with(self, rows: Rows) -> Program | None:
        one, field = self._one(rows), self._random.choice(rows.asked)
        return FieldOf(RowChoice(rows.place(one), other=_equal(one, field)).things(rows.kind), rows.kind.key)

    def _place_with(self, rows: Rows) -> Program | None:
        name, field = self._name(rows, several=True), self._random.choice(rows.asked)
        if name is None:
            return None
        one = self._random.choice(rows.named[name])
        return FieldOf(RowChoice(name=name, other=_equal(one, field)).things(rows.kind), rows.kind.within)

    def _only_one(self, rows: Rows) -> Program | None:
        name = self._name(rows, several=False)
        asked = self._random.choice([*rows.asked, rows.kind.within])
        return None if name is None else FieldOf(RowChoice(name=name).things(rows.kind), asked)

    def _extreme_of(self, rows: Rows) -> Program | None:
        if not rows.ordered:
            return None
        by, most, kind = self._random.choice(rows.ordered), self._random.random() < 0.5, rows.kind
        where = self._random.random()
        others = [name for name in rows.asked if name != by]
        if where < 0.55:
            asked = self._random.choice([kind.key, kind.key, by, *others])
            return ExtremeOf(RowChoice(self._place(rows)).things(kind), by, most, asked)
        if where < 0.9:
            name = self._name(rows, several=True)
            asked = self._random.choice([kind.within, kind.within, by])
            return None if name is None else ExtremeOf(RowChoice(name=name).things(kind), by, most, asked)
        return ExtremeOf(RowChoice().things(kind), by, most, self._random.choice([kind.key, kind.within]))

    def _count_of(self, rows: Rows) -> Program | None:
        if self._random.random() < 0.6:
            limit = self._limit(rows, rows.every)
            choice = RowChoice(self._place(rows), other=limit)
        else:
            name = self._name(rows, several=True)
            limit = self._limit(rows, rows.named[name]) if self._random.random() < 0.6 else None
            choice = RowChoice(name=name, other=limit)
        return CountOf(choice.things(rows.kind)) if choice.place or choice.name else None

    def _total_of(self, rows: Rows) -> Program | None:
        if not rows.amounts:
            return None
        name = self._name(rows, several=True) if self._random.random() < 0.3 else None
        choice = RowChoice(self._place(rows)) if name is None else RowChoice(name=name)
        return TotalOf(choice.things(rows.kind), self._random.choice(rows.amounts))

    def _more_of(self, rows: Rows) -> Program | None:
        """Draw the comparison of the rows on two things, or of how often two names occur."""
        by_name = self._random.random() < 0.3
        values = list(rows.named if by_name else rows.on)
        if len(values) < 2:
            return None
        one, other = self._random.sample(values, 2)
        field = rows.kind.key if by_name else rows.kind.within
        amount = self._random.choice(["", *rows.amounts, *rows.amounts]) if not by_name else ""
        return MoreOf(rows.kind.name, Condition(field, "is", one), other, amount)

    def _gap_on(self, rows: Rows) -> Program | None:
        """Draw the difference of two rows on one thing."""
        place = self._place(rows)
        names = [name for one in rows.on[place] if can_be_said(name := rows.name(one))]
        if not rows.amounts or len(names) < 2:
            return None
        one, other = self._random.sample(names, 2)
        return GapAmong(
            RowChoice(place).things(rows.kind), rows.kind.key, one, other, self._random.choice(rows.amounts)
        )

    def _gap_between(self, rows: Rows) -> Program | None:
        """Draw the difference of the rows of one name on two things."""
        name = self._name(rows, several=True)
        if not rows.amounts or name is None:
            return None
        one, other = self._random.sample([rows.place(row) for row in rows.named[name]], 2)
        return GapAmong(
            RowChoice(name=name).things(rows.kind), rows.kind.within, one, other, self._random.choice(rows.amounts)
        )

    def _commonest(self, rows: Rows) -> Program | None:
        if rows.shared and self._random.random() < 0.8:
            return Commonest(RowChoice(self._place(rows)).things(rows.kind), self._random.choice(rows.shared))
        return Commonest(RowChoice().things(rows.kind), rows.kind.key)

    def _names_of(self, rows: Rows) -> Program | None:
        place = self._place(rows)
        limit = self._limit(rows, rows.on[place])
        return None if limit is None else NamesOf(RowChoice(place, other=limit).things(rows.kind))

    def _places_of(self, rows: Rows) -> Program | None:
        name = self._name(rows, several=True)
        if name is None:
            return None
        limit = self._limit(rows, rows.named[name]) if self._random.random() < 0.5 else None
        return PlacesOf(RowChoice(name=name, other=limit).things(rows.kind))

    def _if_any(self, rows: Rows) -> Program | None:
        limit = self._limit(rows, rows.every)
        return (
            None if limit is None else IfAny(RowChoice(self._place(rows), other=limit).things(rows.kind), rows.kind.key)
        )


def _equal(one: Entity, field: str) -> Condition | None:
    """Return the condition that a field has the value of this row."""
    value = one.facts[field].value if field in one.facts else None
    return Condition(field, "is", value) if can_be_said(value) else None


OUTCOMES: dict[str, Callable[[RowDrawer, Rows], Program | None]] = {
    "field": RowDrawer._field_of,
    "names": RowDrawer._names_of,
    "extreme": RowDrawer._extreme_of,
    "count": RowDrawer._count_of,
    "total": RowDrawer._total_of,
    "more": RowDrawer._more_of,
    "gap": RowDrawer._gap_on,
    "gap between": RowDrawer._gap_between,
    "commonest": RowDrawer._commonest,
    "places": RowDrawer._places_of,
    "if any": RowDrawer._if_any,
}
"""For each outcome how a program with it is drawn."""
