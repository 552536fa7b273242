"""Questions about a world as programs, and their answers.

A program selects things of a kind by conditions on their fields, or on fields of what they refer to, and asks for one
outcome. Answering one records every value that was looked at, since these are what a solution must see.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.explore.answer import call_key
from mcp_rl.scenarios.goals.values import mentions, moment, number

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Entity, WorldModel

Relation = Literal["is", "holds", "ends", "above", "below", "has", "lacks"]
"""`holds` and `ends` are for texts, `above` and `below` for numbers and times, `has` and `lacks` for lists."""
AnswerForm = Literal["text", "number", "set", "pair", "time", "none"]
FactName = tuple[str, str, str]
"""A kind, the key of a thing as text, and a field."""


class Unanswerable(Exception):
    """Raised where the world does not tell the answer, or tells several."""


@dataclass(frozen=True)
class Condition:
    """A condition on a field of a thing, or of the thing that its field `through` refers to."""

    field: str
    relation: Relation
    value: JsonValue
    through: str = ""


@dataclass(frozen=True)
class ChosenThings:
    """The things of a kind that satisfy all conditions."""

    kind: str
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class ProgramAnswer:
    """The answer of a program. A pair is a list of two."""

    value: JsonValue
    form: AnswerForm


class _Index:
    """A world by kinds, made once for many views."""

    def __init__(self, world: WorldModel) -> None:
        self.of_kind: dict[str, list[Entity]] = defaultdict(list)
        for entity in world.entities:
            self.of_kind[entity.kind].append(entity)
        self.naming: dict[str, list[str]] = {}
        self.to = {(reference.kind, reference.field): reference.to for reference in world.references}


class View:
    """A world as a solution sees it: it remembers each value that was looked at."""

    def __init__(self, world: WorldModel, known: View | None = None) -> None:
        """`known` is another view of the same world, whose indices are used again."""
        self.world = world
        self.facts: dict[FactName, None] = {}
        """The values that were looked at, in order."""
        self.kinds: dict[str, None] = {}
        """The kinds of which every thing was needed."""
        self._index: _Index = known._index if known is not None else _Index(world)

    @classmethod
    def of_observations(cls, world: WorldModel, made: Collection[int]) -> View:
        """Return a view of as much of a world as these observations, by their indices, show."""
        calls = {call_key(one.tool, dict(one.arguments)) for one in (world.observations[index] for index in made)}
        known = {
            index
            for index, one in enumerate(world.observations)
            if index in made or call_key(one.tool, dict(one.arguments)) in calls
        }
        shown = []
        for entity in world.entities:
            facts = {name: fact for name, fact in entity.facts.items() if not known.isdisjoint(fact.shown_by)}
            if facts:
                shown.append(entity.model_copy(update={"facts": facts}))
        kinds = {
            name: kind.model_copy(
                update={"complete": kind.complete and not any(known.isdisjoint(part) for part in parts_of(world, name))}
            )
            for name, kind in world.kinds.items()
        }
        view = cls(world.model_copy(update={"entities": tuple(shown), "kinds": kinds}))
        view._index.naming = {kind: naming(world, kind) for kind in world.kinds}
        return view

    def naming(self, kind: str) -> list[str]:
        """Return the fields that name a thing of a kind."""
        if kind not in self._index.naming:
            self._index.naming[kind] = naming(self.world, kind)
        return self._index.naming[kind]

    def every(self, kind: str) -> list[Entity]:
        """Return all things of a kind. Raises Unanswerable where no listing shows them all."""
        if not self.world.kinds[kind].complete:
            raise Unanswerable(f"no listing shows every {kind}")
        self.kinds[kind] = None
        return self._index.of_kind[kind]

    def of_value(self, kind: str, name: str, value: JsonValue) -> list[Entity]:
        """Return the things of a kind whose field has a value that the request gives, so that nobody must look."""
        return [one for one in self._index.of_kind[kind] if name in one.facts and one.facts[name].value == value]

    def on(self, kind: str, place: JsonValue) -> list[Entity]:
        """Return the rows of a kind that stand on one thing, as one look at it shows them. Raises Unanswerable where
        none is known."""
        within = self.world.kinds[kind].within
        rows = self.of_value(kind, within, place)
        if not rows:
            raise Unanswerable(f"no {kind} is known to stand on {place!r}")
        for one in rows:
            self.value(one, within)
        return rows

    def value(self, entity: Entity, name: str) -> JsonValue:
        """Look at a value. Raises Unanswerable where no call shows it."""
        fact = entity.facts.get(name)
        if fact is None or fact.value is None:
            raise Unanswerable(f"no call shows the {name} of {entity.key!r}")
        self.facts[entity.kind, str(entity.key), name] = None
        return fact.value

    def referred(self, entity: Entity, through: str) -> Entity:
        """Return the one thing that a field refers to. Raises Unanswerable for none or several."""
        kind, value = self._index.to.get((entity.kind, through)), self.value(entity, through)
        keys = value if isinstance(value, list) else [value]
        found = [one for one in self._index.of_kind[kind] if one.key in keys] if kind else []
        if len(found) != 1 or len(keys) != 1:
            raise Unanswerable(f"the {through} of {entity.key!r} is not one known thing")
        return found[0]

    def select(self, things: ChosenThings) -> list[Entity]:
        """Return the things that satisfy all conditions, in the order in which they were seen."""
        if within := self.world.kinds[things.kind].within:
            return self._select_rows(things, within)
        first = things.conditions[0] if things.conditions else None
        if first and first.relation == "is" and not first.through and first.field in self.naming(things.kind):
            found = self.of_value(things.kind, first.field, first.value)
            return [one for one in found if all(self._satisfies(one, other) for other in things.conditions[1:])]
        return [one for one in self.every(things.kind) if all(self._satisfies(one, each) for each in things.conditions)]

    def _select_rows(self, things: ChosenThings, within: str) -> list[Entity]:
        place = next((one for one in things.conditions if (one.field, one.relation) == (within, "is")), None)
        rows = self.every(things.kind) if place is None else self.on(things.kind, place.value)
        return [one for one in rows if all(self._satisfies(one, each) for each in things.conditions)]

    def _satisfies(self, entity: Entity, condition: Condition) -> bool:
        if condition.through:
            entity = self.referred(entity, condition.through)
        return satisfies(self.value(entity, condition.field), condition)


def parts_of(world: WorldModel, kind: str) -> list[tuple[int, ...]]:
    """Return observations that show every thing of a complete kind: one of each tuple is needed.

    One listing shows most kinds; the rows of tables are read on each of their pages.
    """
    within = world.kinds[kind].within
    listings = [index for index, seen in enumerate(world.observations) if seen.lists == (within or kind)]
    if not within:
        return [tuple(listings)]
    slots = [(slot.tool, slot.parameter) for slot in world.slots if slot.kind == within]
    read: dict[JsonValue, list[int]] = {one.key: [] for one in world.of_kind(within)}
    for index, seen in enumerate(world.observations):
        for tool, parameter in slots:
            value = seen.arguments.get(parameter) if seen.tool == tool else None
            if isinstance(value, str | int | float) and value in read:
                read[value].append(index)
    return [tuple(listings), *map(tuple, read.values())]


def identity(world: WorldModel, one: Entity) -> tuple[Condition, ...]:
    """Return the conditions that only this thing satisfies."""
    about = world.kinds[one.kind]
    if not about.within:
        return (Condition(about.key, "is", one.key),)
    return tuple(Condition(name, "is", one.facts[name].value) for name in (about.within, about.key))


def naming(world: WorldModel, kind: str) -> list[str]:
    """Return the fields of a kind that name a thing, with a value of its own for each: the best for people first."""
    about = world.kinds[kind]
    ranked = sorted(
        (name for name, one in about.fields.items() if one.kind == "text" and _is_name(name)),
        key=lambda name: (_NAMES.index(_last(name)), name),
    )
    things = world.of_kind(kind)
    unique = [name for name in [*ranked, about.key] if _tells_apart(things, name)]
    return list(dict.fromkeys(unique)) or [about.key]


_NAMES = ("name", "title", "subject", "label", "heading", "filename", "message", "path", "file")


def _last(name: str) -> str:
    return name.lower().replace("-", "_").rsplit("_", 1)[-1]


def _is_name(name: str) -> bool:
    return _last(name) in _NAMES


def _tells_apart(things: Sequence[Entity], name: str) -> bool:
    values = [str(one.facts[name].value).casefold() for one in things if name in one.facts]
    return len(values) == len(things) == len(set(values)) and all(value.strip() for value in values)


def satisfies(value: JsonValue, condition: Condition) -> bool:
    """Return whether a value satisfies a condition. Raises Unanswerable for a value of another kind than it needs."""
    wanted = condition.value
    match condition.relation:
        case "is":
            return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
        case "holds":
            return mentions(str(value), str(wanted))
        case "ends":
            return str(value).casefold().endswith(str(wanted).casefold())
        case "has" | "lacks":
            if not isinstance(value, list):
                raise Unanswerable(f"{condition.field} is not a list")
            return (wanted in value) == (condition.relation == "has")
    one, other = ordinal(value), ordinal(wanted)
    if one is None or other is None:
        raise Unanswerable(f"{condition.field} has no order")
    return one > other if condition.relation == "above" else one < other


def ordinal(value: JsonValue) -> float | None:
    """Return a number by which numbers and times are put in order; None for anything else."""
    found = number(value)
    if found is not None:
        return found
    when = moment(value)
    return when.timestamp() if when else None


# Outcomes


@dataclass(frozen=True)
class FieldOf:
    """A field of the one thing selected, or of the thing that its field `through` refers to."""

    things: ChosenThings
    field: str
    through: str = ""


@dataclass(frozen=True)
class NamesOf:
    """The names of the things selected: which one, or which ones."""

    things: ChosenThings


@dataclass(frozen=True)
class ExtremeOf:
    """The thing with the largest or smallest value of a field, by a field of it."""

    things: ChosenThings
    by: str
    most: bool
    field: str


@dataclass(frozen=True)
class CountOf:
    """The number of things selected."""

    things: ChosenThings


@dataclass(frozen=True)
class TotalOf:
    """The sum of a field over the things selected."""

    things: ChosenThings
    field: str


@dataclass(frozen=True)
class MoreOf:
    """Which of two values of a condition selects more things, or more of a field, and by how much."""

    kind: str
    condition: Condition
    other: JsonValue
    field: str = ""
    """The field that is added up; empty: the things are counted."""


@dataclass(frozen=True)
class Gap:
    """Which of two named things has more of a field, and by how much."""

    kind: str
    named_by: str
    one: JsonValue
    other: JsonValue
    field: str


@dataclass(frozen=True)
class GapAmong:
    """Which of two things selected has more of a field, and by how much, by their values of the field `named_by`."""

    things: ChosenThings
    named_by: str
    one: JsonValue
    other: JsonValue
    field: str


@dataclass(frozen=True)
class PlacesOf:
    """The things, such as pages, on which the rows selected stand."""

    things: ChosenThings


@dataclass(frozen=True)
class Commonest:
    """The commonest value of a field among the things selected, and on how many of them it is."""

    things: ChosenThings
    field: str


@dataclass(frozen=True)
class IfAny:
    """A field of the one thing selected, or `none` where there is no such thing."""

    things: ChosenThings
    field: str


Program = FieldOf | NamesOf | ExtremeOf | CountOf | TotalOf | MoreOf | Gap | GapAmong | PlacesOf | Commonest | IfAny


def kind_of(program: Program) -> str:
    """Return the kind of things that a program is about."""
    return program.kind if isinstance(program, Gap | MoreOf) else program.things.kind


@dataclass(frozen=True)
class Evaluated:
    """A program with its answer and all that was looked at."""

    program: Program
    answer: ProgramAnswer
    facts: tuple[FactName, ...]
    kinds: tuple[str, ...]
    chosen: tuple[str, ...] = field(default=())
    """The keys of the things that the conditions select."""


def evaluate(world: WorldModel, program: Program, known: View | None = None) -> Evaluated:
    """Answer a program. Raises Unanswerable where the world does not tell, or tells more than one answer.

    `known` is a view of this world, kept to answer many programs fast.
    """
    view = View(world, known)
    answer, chosen = _answer(view, program)
    return Evaluated(program, answer, tuple(view.facts), tuple(view.kinds), tuple(str(one.key) for one in chosen))


def _answer(view: View, program: Program) -> tuple[ProgramAnswer, list[Entity]]:
    match program:
        case FieldOf(things, name, through):
            one = _only(view.select(things))
            return _value_answer(view, view.referred(one, through) if through else one, name), [one]
        case NamesOf(things):
            found = view.select(things)
            if not found:
                raise Unanswerable("nothing is selected")
            name = view.naming(things.kind)[0]
            names = [view.value(one, name) for one in found]
            return (ProgramAnswer(names[0], "text") if len(names) == 1 else ProgramAnswer(names, "set")), found
        case ExtremeOf(things, by, most, name):
            found = view.select(things)
            one = _extreme(view, found, by, most)
            return _value_answer(view, one, name), [one]
        case CountOf(things):
            found = view.select(things)
            return ProgramAnswer(len(found), "number"), found
        case TotalOf(things, name):
            found = view.select(things)
            return ProgramAnswer(tidy(sum(_amount(view, one, name) for one in found)), "number"), found
        case Commonest(things, name):
            found = view.select(things)
            return _commonest(view, found, name), found
        case IfAny(things, name):
            found = view.select(things)
            if not found:
                return ProgramAnswer("none", "none"), []
            return _value_answer(view, _only(found), name), found
        case GapAmong(things, named_by, first, second, name):
            both = [Condition(named_by, "is", value) for value in (first, second)]
            pair = [_only(view.select(replace(things, conditions=(*things.conditions, one)))) for one in both]
            return _difference([first, second], [_amount(view, one, name) for one in pair]), pair
        case PlacesOf(things):
            found = view.select(things)
            places = [view.value(one, view.world.kinds[things.kind].within) for one in found]
            if not places:
                raise Unanswerable("nothing is selected")
            return (ProgramAnswer(places[0], "text") if len(places) == 1 else ProgramAnswer(places, "set")), found
        case Gap(kind, named_by, first, second, name):
            pair = [_only(view.of_value(kind, named_by, value)) for value in (first, second)]
            return _difference([first, second], [_amount(view, one, name) for one in pair]), pair
        case MoreOf(kind, condition, other, name):
            sides = [condition, Condition(condition.field, condition.relation, other, condition.through)]
            groups = [view.select(ChosenThings(kind, (side,))) for side in sides]
            if not all(groups):
                raise Unanswerable("one side is empty")
            sums = [sum(_amount(view, one, name) for one in group) if name else float(len(group)) for group in groups]
            return _difference([side.value for side in sides], sums), [*groups[0], *groups[1]]


def _only(found: Sequence[Entity]) -> Entity:
    if len(found) != 1:
        raise Unanswerable(f"{len(found)} things are selected, not one")
    return found[0]


def _value_answer(view: View, entity: Entity, name: str) -> ProgramAnswer:
    value = view.value(entity, name)
    if isinstance(value, bool | dict) or value in ("", []):
        raise Unanswerable(f"the {name} is no answer in words")
    if isinstance(value, list):
        if any(isinstance(item, list | dict) for item in value):
            raise Unanswerable(f"the {name} is a nested list")
        return ProgramAnswer(value, "set")
    if isinstance(value, int | float):
        return ProgramAnswer(value, "number")
    about = view.world.kinds[entity.kind].fields.get(name)
    return ProgramAnswer(value, "time" if about is not None and about.kind == "time" else "text")


def _extreme(view: View, found: Sequence[Entity], by: str, most: bool) -> Entity:
    if len(found) < 2:
        raise Unanswerable("there is nothing to compare")
    ranked = [(ordinal(view.value(one, by)), one) for one in found]
    if any(rank is None for rank, _ in ranked):
        raise Unanswerable(f"{by} has no order")
    best = (max if most else min)(rank for rank, _ in ranked if rank is not None)
    return _only([one for rank, one in ranked if rank == best])


def _commonest(view: View, found: Sequence[Entity], name: str) -> ProgramAnswer:
    counts: Counter[Any] = Counter()
    for one in found:
        value = view.value(one, name)
        counts.update({str(item) for item in value} if isinstance(value, list) else [str(value)])
    top = counts.most_common(2)
    if not top or top[0][1] < 2 or (len(top) > 1 and top[0][1] == top[1][1]):
        raise Unanswerable(f"no {name} is alone at the top")
    return ProgramAnswer([top[0][0], top[0][1]], "pair")


def _amount(view: View, entity: Entity, name: str) -> float:
    found = number(view.value(entity, name))
    if found is None:
        raise Unanswerable(f"{name} is no number")
    return found


def _difference(names: Sequence[JsonValue], amounts: Sequence[float]) -> ProgramAnswer:
    if amounts[0] == amounts[1]:
        raise Unanswerable("both are equal")
    return ProgramAnswer([names[0 if amounts[0] > amounts[1] else 1], tidy(abs(amounts[0] - amounts[1]))], "pair")


def tidy(value: float) -> int | float:
    """Return a whole number as an int, and any other without the last digits of floating point."""
    return int(value) if float(value).is_integer() else round(value, 6)
