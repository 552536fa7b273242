"""Programs drawn at random over a world, with the outcomes in turn."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.program import (
    ChosenThings,
    Commonest,
    Condition,
    CountOf,
    ExtremeOf,
    FieldOf,
    Gap,
    IfAny,
    MoreOf,
    NamesOf,
    Program,
    Relation,
    TotalOf,
    Unanswerable,
    View,
)
from mcp_rl.scenarios.goals.values import mentions, moment, number, telling_words
from mcp_rl.scenarios.goals.words import can_be_said, is_address

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence, Set

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Entity, Reference
    from mcp_rl.scenarios.goals.words import English

_FEWEST = 4
"""ChosenThings of a kind below which there is nothing to choose among."""
_MOST_THINGS = 400
"""ChosenThings of a kind that are looked at for values."""
_BY_ADDRESS = 0.4
"""Probability that a thing with a page of its own is named by the address of that."""
_NO_NOUNS = frozenset(
    "missing pending existing remaining matching failing upcoming following related failed skipped completed removed "  # noqa: SIM905
    "added changed modified updated deleted created recommended suggested supported unsupported available unavailable "
    "similar recent valid invalid unused used unread closed active inactive overdue done missed archived blocked other "
    "more rest best worst staged unstaged untracked".split()
)
"""Words by which lists are called, but not the things in them: nobody asks for "the missing called 'Sound'"."""
_LABELS = frozenset(("port", "code", "zip", "postcode", "version"))
"""Words for numbers that name something, of which nobody wants the difference either."""
_NO_SUMS = _LABELS | set(
    "rating score rank position latitude longitude temperature average mean median rate ratio percentage age "  # noqa: SIM905
    "elevation altitude level priority maximum minimum max min speed density total".split()
)
"""Words for numbers of which nobody wants the sum."""
_RATES = frozenset({"%", "°C", "°F", "km/h", "mph", "hPa"})
_SECOND, _ALL = 0.3, 0.35
"""Probability of a second condition, and of no condition where none is needed."""
_ANY = 0.3
"""Probability of a condition such as "at least one word"."""


@dataclass(frozen=True)
class _Fields:
    """The fields of a kind that can be spoken of, by what can be done with them."""

    asked: list[str]
    """Can be an answer."""
    amounts: list[str]
    ordered: list[str]
    grouped: list[str]
    """Several things share a value of it."""


class ProgramDrawer:
    """Draws programs over a world that may make a task; most of them can be answered."""

    def __init__(self, english: English, random: random.Random) -> None:
        self._english, self._world, self._random = english, english.world, random
        self._view = View(self._world)
        self._things = {kind: self._world.of_kind(kind)[:_MOST_THINGS] for kind in self._world.kinds}
        self.kinds = [kind for kind, things in self._things.items() if len(things) >= _FEWEST and self._speakable(kind)]
        self.kinds = [kind for kind in self.kinds if not self._world.kinds[kind].within]
        """Kinds with enough things to choose among, and a noun of their own; rows have programs of their own."""
        self._fields = {kind: self._sorted(kind) for kind in self._world.kinds}

    def draw(self, outcome: str) -> Program | None:
        """Return a random program with this outcome (see `OUTCOMES`), or None where the draw led to nothing."""
        if not self.kinds:
            return None
        return OUTCOMES[outcome](self, self._random.choice(self.kinds))

    def draw_for(self, outcome: str, kind: str) -> Program | None:
        """Return a random program with this outcome over the things of a kind, or None."""
        return OUTCOMES[outcome](self, kind)

    def select(self, kind: str, *, without: Sequence[str] = ()) -> ChosenThings:
        """Draw a choice of things of a kind by one or two conditions, on other fields than these."""
        return self._select(kind, without=without, must=True)

    def named(self, kind: str) -> ChosenThings | None:
        """Draw the choice of one thing by its name."""
        return self._named(kind)

    def _speakable(self, kind: str) -> bool:
        noun = self._english.noun(kind)
        plain = all(part.isalpha() and part.islower() for part in noun.split()) and len(noun) > 1
        return plain and noun.split()[-1] not in _NO_NOUNS

    def _sorted(self, kind: str) -> _Fields:
        english, things = self._english, self._things[kind]
        usable = [name for name in self._world.kinds[kind].fields if english.usable(kind, name)]
        shared = []
        for name in usable:
            values: Counter[str] = Counter()
            for one in things:
                value = _value(one, name)
                values.update({str(item) for item in value} if isinstance(value, list) else [str(value)])
            if any(count > 1 for count in values.values()) and len(values) > 1:
                shared.append(name)
        kinds = {name: english.about(kind, name).kind for name in usable}
        varied = [name for name in usable if len({str(_value(one, name)) for one in things}) >= 3]
        told = [name for name in varied if name not in (english.name_field(kind), self._world.kinds[kind].key)]
        return _Fields(
            asked=[name for name in varied if kinds[name] != "flag"],
            amounts=[name for name in told if kinds[name] == "number" and english.sort(kind, name) != "year"],
            ordered=[name for name in told if kinds[name] in ("number", "time")],
            grouped=[name for name in shared if kinds[name] in ("text", "list") and self._is_condition(kind, name)],
        )

    # Conditions

    def _condition(self, kind: str, *, without: Sequence[str] = ()) -> Condition | None:
        """Draw a condition that some things of the kind may satisfy and others not."""
        references = [r for r in self._references(kind) if r.to in self.kinds and r.field not in without]
        references = [r for r in references if self._english.sort(kind, r.field) != "place"]
        if references and self._random.random() < 0.3:
            reference = self._random.choice(references)
            inner = self._condition_on(reference.to, without)
            return replace(inner, through=reference.field) if inner else None
        return self._condition_on(kind, without)

    def _references(self, kind: str) -> list[Reference]:
        """Return the fields of a kind that refer to one thing, and can be spoken of."""
        english = self._english
        return [
            reference
            for reference in self._world.references
            if reference.kind == kind and reference.field in self._world.kinds[kind].fields
            if english.usable(kind, reference.field) and english.about(kind, reference.field).kind == "text"
        ]

    def _condition_on(self, kind: str, without: Sequence[str]) -> Condition | None:
        english = self._english
        names = [n for n in self._world.kinds[kind].fields if n not in without and english.usable(kind, n)]
        names = [n for n in names if self._is_condition(kind, n)]
        if not names:
            return None
        name = self._random.choice(names)
        values = [value for one in self._things[kind] if (value := _value(one, name)) is not None]
        if not values:
            return None
        match english.about(kind, name).kind:
            case "list":
                items = [item for value in values if isinstance(value, list) for item in value if can_be_said(item)]
                if items and sum(" " in str(item).strip() for item in items) > len(items) / 2:  # sentences
                    return self._word(name, items)
                relation: Relation = "has" if self._random.random() < 0.8 else "lacks"
                return Condition(name, relation, self._random.choice(items)) if items else None
            case "flag":
                return Condition(name, "is", self._random.random() < 0.5)
            case "number":
                known = [found for value in values if (found := number(value)) is not None]
                return threshold(self._random, name, known, counts=self._are_counts(kind, name))
            case "time":
                return self._day(name, values)
            case "prose":
                return self._word(name, values)
        return self._text(kind, name, values)

    def _are_counts(self, kind: str, name: str) -> bool:
        return self._english.sort(kind, name) == "count" and self._english.are_whole(kind, name)

    def _is_condition(self, kind: str, name: str) -> bool:
        """Return whether people would choose things by a field: an address of somebody is asked for, but no choice, and
        the number of a thing is a name."""
        if name == self._world.kinds[kind].key and self._english.about(kind, name).kind == "number":
            return False
        return self._english.about(kind, name).kind != "text" or " of the " not in self._english.words(kind, name)

    def _text(self, kind: str, name: str, values: Sequence[JsonValue]) -> Condition | None:
        if name in self._fields[kind].grouped or self._english.refers(kind, name):
            value = self._random.choice(values)
            return Condition(name, "is", value) if can_be_said(value) else None
        endings = Counter("." + str(v).rsplit(".", 1)[1] for v in values if "." in str(v)[1:-1] and " " not in str(v))
        common = [ending for ending, count in endings.items() if count > 1 and ending[1:].isalnum() and len(ending) < 7]
        if common and self._random.random() < 0.7:
            return Condition(name, "ends", self._random.choice(common))
        return self._word(name, values)

    def _word(self, name: str, values: Sequence[JsonValue]) -> Condition | None:
        text = str(self._random.choice(values))
        words = [word for word in telling_words(text) if word.casefold() != text.casefold()]
        words = [word for word in words if not all(mentions(str(value), word) for value in values)]
        return Condition(name, "holds", self._random.choice(words)) if words else None

    def _day(self, name: str, values: Sequence[JsonValue]) -> Condition | None:
        moments = sorted({found for value in values if (found := moment(value)) is not None})
        days = sorted({found.date() for found in moments})
        if len(days) < 3:
            return None
        day = self._random.choice(days[1:-1]).isoformat()
        relation: Relation = "above" if self._random.random() < 0.5 else "below"
        return Condition(name, relation, day)

    def _select(self, kind: str, *, without: Sequence[str] = (), must: bool = False) -> ChosenThings:
        conditions: list[Condition] = []
        if must or self._random.random() > _ALL:
            wanted = 2 if self._random.random() < _SECOND else 1
            for _ in range(6):
                drawn = self._condition(kind, without=[*without, *(c.field for c in conditions)])
                if drawn is not None:
                    conditions.append(drawn)
                if len(conditions) == wanted:
                    break
        return self._plainest(ChosenThings(kind, tuple(sorted(conditions, key=_order))))

    def _plainest(self, things: ChosenThings) -> ChosenThings:
        """Return a choice without conditions that leave out nothing: words to search for go first."""
        if len(things.conditions) < 2 or (chosen := self._chosen(things)) is None:
            return things
        for condition in reversed(things.conditions):
            rest = replace(things, conditions=tuple(one for one in things.conditions if one != condition))
            if self._chosen(rest) == chosen:
                return self._plainest(rest)
        return things

    def _chosen(self, things: ChosenThings) -> list[str] | None:
        """Return the keys of the things chosen; None where the world does not tell."""
        try:
            return [str(one.key) for one in View(self._world, self._view).select(things)]
        except Unanswerable:
            return None

    def _named(self, kind: str) -> ChosenThings | None:
        name, one = self._english.name_field(kind), self._random.choice(self._things[kind])
        if is_address(one.key) and self._random.random() < _BY_ADDRESS:
            name = self._world.kinds[kind].key
        value = _value(one, name)
        return ChosenThings(kind, (Condition(name, "is", value),)) if can_be_said(value) else None

    # Outcomes

    def _field_of(self, kind: str) -> Program | None:
        asked = self._fields[kind].asked
        if not asked:
            return None
        name = self._random.choice(asked)
        if self._random.random() < 0.4:
            named = self._named(kind)
            return FieldOf(named, name) if named and name != self._english.name_field(kind) else None
        things = self._select(kind, without=[name], must=True)
        return FieldOf(things, name) if things.conditions else None

    def _joined(self, kind: str) -> Program | None:
        references = [r for r in self._references(kind) if r.to in self._fields]
        if not references:
            return None
        reference = self._random.choice(references)
        asked = [n for n in self._fields[reference.to].asked if n != self._world.kinds[reference.to].key]
        things = (
            self._named(kind)
            if self._random.random() < 0.6
            else self._select(kind, without=[reference.field], must=True)
        )
        if not asked or things is None or not things.conditions:
            return None
        return FieldOf(things, self._random.choice(asked), reference.field)

    def _names_of(self, kind: str) -> Program | None:
        things = self._select(kind, without=[self._english.name_field(kind)], must=True)
        return NamesOf(things) if things.conditions else None

    def _extreme_of(self, kind: str) -> Program | None:
        fields = self._fields[kind]
        if not fields.ordered:
            return None
        by = self._random.choice(fields.ordered)
        name = self._english.name_field(kind)
        others = [one for one in fields.asked if one not in (by, name)]
        asked = self._random.choice(others) if others and self._random.random() < 0.6 else name
        return ExtremeOf(self._select(kind, without=[by]), by, self._random.random() < 0.5, asked)

    def _count_of(self, kind: str) -> Program | None:
        things = self._select(kind, must=self._random.random() < 0.95)
        return CountOf(things)

    def _total_of(self, kind: str) -> Program | None:
        amounts = self._fields[kind].amounts
        if not amounts:
            return None
        amounts = [one for one in amounts if self._adds_up(kind, one)]
        if not amounts:
            return None
        name = self._random.choice(amounts)
        return TotalOf(self._select(kind, without=[name]), name)

    def _adds_up(self, kind: str, name: str) -> bool:
        """Return whether a sum over several things means something: none of ratings does."""
        return self._english.about(kind, name).unit not in _RATES and not self._is_any_of(kind, name, _NO_SUMS)

    def _is_any_of(self, kind: str, name: str, words: Set[str]) -> bool:
        return not words.isdisjoint(self._english.words(kind, name).lower().split())

    def _more_of(self, kind: str) -> Program | None:
        fields = self._fields[kind]
        if not fields.grouped:
            return None
        name = self._random.choice(fields.grouped)
        values: list[JsonValue] = []
        for one in self._things[kind]:
            value = _value(one, name)
            values += value if isinstance(value, list) else [value]
        distinct = [value for value in dict.fromkeys(map(_scalar, values)) if can_be_said(value)]
        if len(distinct) < 2:
            return None
        one_value, other = self._random.sample(distinct, 2)
        relation: Relation = "has" if self._english.about(kind, name).kind == "list" else "is"
        amounts = [one for one in fields.amounts if self._adds_up(kind, one)]
        amount = self._random.choice(amounts) if amounts and self._random.random() < 0.5 else ""
        return MoreOf(kind, Condition(name, relation, one_value), other, amount)

    def _gap(self, kind: str) -> Program | None:
        name = self._english.name_field(kind)
        amounts = [one for one in self._fields[kind].amounts if not self._is_any_of(kind, one, _LABELS)]
        values = [value for one in self._things[kind] if can_be_said(value := _value(one, name))]
        if not amounts or len(values) < 2:
            return None
        one, other = self._random.sample(values, 2)
        return Gap(kind, name, one, other, self._random.choice(amounts))

    def _commonest(self, kind: str) -> Program | None:
        grouped = self._fields[kind].grouped
        if not grouped:
            return None
        name = self._random.choice(grouped)
        return Commonest(self._select(kind, without=[name]), name)

    def _if_any(self, kind: str) -> Program | None:
        asked = self._fields[kind].asked
        if not asked:
            return None
        name = self._random.choice(asked)
        things = self._select(kind, without=[name], must=True)
        return IfAny(things, name) if things.conditions else None


OUTCOMES: dict[str, Callable[[ProgramDrawer, str], Program | None]] = {
    "field": ProgramDrawer._field_of,
    "join": ProgramDrawer._joined,
    "names": ProgramDrawer._names_of,
    "extreme": ProgramDrawer._extreme_of,
    "count": ProgramDrawer._count_of,
    "total": ProgramDrawer._total_of,
    "more": ProgramDrawer._more_of,
    "gap": ProgramDrawer._gap,
    "commonest": ProgramDrawer._commonest,
    "if any": ProgramDrawer._if_any,
}
"""For each outcome how a program with it is drawn for a kind."""


def proposals(proposer: ProgramDrawer, tries: int) -> Iterator[tuple[str, Program]]:
    """Yield distinct programs with their outcomes in turn, of so many draws."""
    seen: set[str] = set()
    names = list(OUTCOMES)
    for number_of_try in range(tries):
        outcome = names[number_of_try % len(names)]
        program = proposer.draw(outcome)
        if program is not None and repr(program) not in seen:
            seen.add(repr(program))
            yield outcome, program


def alternating(
    first: Iterator[tuple[str, Program]], second: Iterator[tuple[str, Program]]
) -> Iterator[tuple[str, Program]]:
    """Yield from both in turn, and then the rest of the longer one."""
    for pair in itertools.zip_longest(first, second):
        yield from (one for one in pair if one is not None)


def _value(entity: Entity, name: str) -> JsonValue:
    fact = entity.facts.get(name)
    return None if fact is None else fact.value


def _scalar(value: JsonValue) -> JsonValue:
    return value if isinstance(value, str | int | float) else None


def _order(condition: Condition) -> int:
    """Conditions that follow a noun best come first: "tagged x", then "with …", "that …", "whose …"."""
    return ("is", "has", "lacks", "above", "below", "ends", "holds").index(condition.relation)


def threshold(random: random.Random, name: str, values: Sequence[float], *, counts: bool = False) -> Condition | None:
    """Draw a limit between two values, as round as it can be.

    No limit separates zero from the rest, except for `counts`, which are said as "at least one" and "without any".
    """
    distinct = sorted(set(values))
    if len(distinct) < 3:
        return None
    first = 1 if distinct[0] == 0 and not (counts and random.random() < _ANY) else 0
    at = random.randrange(first, len(distinct) - 1)
    relation: Relation = "above" if random.random() < 0.5 else "below"
    if distinct[at] == 0 == at:
        return Condition(name, relation, 0 if relation == "above" else 1)
    limit = round_limit(distinct[at], distinct[at + 1], above=relation == "above")
    return None if limit is None else Condition(name, relation, limit)


def round_limit(low: float, high: float, *, above: bool) -> int | float | None:
    """Return the roundest limit that tells two numbers apart: "above 17" for 17 and 18, "below 18" too."""
    for digits in range(math.floor(math.log10(max(abs(high), abs(low), 1))), -4, -1):
        for unit in (10.0**digits, 10.0**digits / 2):
            found = (math.ceil(low / unit) if above else math.floor(high / unit)) * unit
            if (low <= found < high) if above else (low < found <= high):
                return int(found) if float(found).is_integer() else round(found, 6)
    return None
