"""Calls of a change: those that make it, those that check it, and wrong ones that nearly make it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.statements import filled
from mcp_rl.scenarios.goals.lookups import Lookups
from mcp_rl.scenarios.goals.question import given_values
from mcp_rl.scenarios.goals.values import shown
from mcp_rl.scenarios.goals.words import sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Effect, Entity
    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.changes.draws import ChangeDraws
    from mcp_rl.scenarios.goals.program import Evaluated, Program
    from mcp_rl.scenarios.goals.twice import ReadingCall

    Values = Mapping[str, JsonValue] | Callable[[Entity], Mapping[str, JsonValue]]

_MOST_NEW = 2
"""Maximum number of calls that look at new things."""


@dataclass(frozen=True)
class StateChange:
    """A change in words, with the calls that make it."""

    text: str
    does: str
    level: Level
    program: Program | None
    """The program that chooses things; None where nothing is chosen."""
    lookups: tuple[ReadingCall, ...]
    """Calls that a solution makes first, to find out what to change."""
    calls: tuple[ReadingCall, ...]
    """The changing calls."""
    too_much: tuple[ReadingCall, ...]
    """A further call that changes what should stay; empty where there is none."""
    otherwise: tuple[ReadingCall, ...]
    """The changing calls in another order, with things named otherwise where a tool takes that."""
    touched: tuple[str, ...]
    """The keys of the things that are changed."""
    values: tuple[str, ...]
    """The values that the end state must show."""
    looks: tuple[ReadingCall, ...] = ()
    """Calls that show a new thing."""
    near: tuple[tuple[ReadingCall, ...], ...] = ()
    """Calls that nearly bring the state about: with another value, or without one thing."""

    @property
    def apart(self) -> tuple[str, ...]:
        """Fingerprints that no task of another split may share."""
        calls = [f"change {tool} {sorted(dict(arguments).items())!r}" for tool, arguments in self.calls]
        return (*([] if self.program is None else [f"program {self.does} {self.program!r}"]), *calls)


class ChangeCalls:
    """Makes the calls of changes over one world."""

    def __init__(self, draws: ChangeDraws) -> None:
        self._draws = draws
        self._world, self._random, self._english = draws.world, draws.random, draws.english
        self._lookups, self._placed = Lookups(draws.world), draws.placed

    def finish(
        self,
        effect: Effect,
        program: Program | None,
        evaluated: Evaluated | None,
        values: Values,
        forms: Sequence[str],
        *,
        right: Sequence[str] = (),
    ) -> StateChange | None:
        """Make the calls of a change; `values` are the new values, or a function that returns them for each thing.

        `right` are the keys of chosen things that need no change.
        """
        given = list(given_values(program, self._english)) if program else []
        kind = effect.kind
        chosen: list[Entity | None] = [None]
        rest: list[Entity] = []
        if evaluated is not None and effect.does != "creates":
            chosen = [*self._draws.entities(evaluated, kind)]
            rest = [one for one in self._world.of_kind(kind) if str(one.key) not in (*evaluated.chosen, *right)]
        each = [(one, _values_of(values, one)) for one in chosen]
        calls = [call for one, told in each if (call := self._call(effect, one, told, given)) is not None]
        if not calls or len(calls) < len(chosen):
            return None
        if evaluated is not None and effect.statement and effect.does != "creates":
            evaluated = self._draws.seen(evaluated, kind, self._world.kinds[kind].key)
        lookups: list[ReadingCall] = []
        indices = self._lookups.to_choose(evaluated, given) if evaluated is not None else []
        indices = self._lookups.to_know(indices, calls, given)
        lookups = list(self._lookups.calls(indices, given))
        other = self._random.choice(rest) if rest else None
        spare = self._call(effect, other, _values_of(values, other), []) if other is not None else None
        again = [self._call(effect, one, told, [], otherwise=True) for one, told in reversed(each)]
        first, told = each[0]
        near = [
            [*calls[1:], call]
            for changed in self._altered(effect, told)
            if (call := self._call(effect, first, changed, given)) is not None
        ]
        if spare is None and effect.does == "creates" and near:
            spare = near[0][-1]
        listed = [value for _, told in each for value in told.values()]
        placed = self._placed[kind]
        if placed is not None:
            listed = [
                posixpath.basename(str(v)) if n == self._world.kinds[kind].key else v
                for _, t in each
                for n, v in t.items()
            ]
        alone = not lookups and len(calls) == 1
        return StateChange(
            sentence(self._english.pick(forms)),
            effect.does,
            "told" if alone else "brought-about",
            program,
            tuple(lookups),
            tuple(calls),
            (spare,) if spare is not None else (),
            tuple(call for call in again if call is not None),
            tuple(str(one.key) for one in chosen if one is not None),
            tuple(shown(item).rstrip() for value in listed for item in (value if isinstance(value, list) else [value]))
            if effect.does in ("creates", "sets", "adds") and effect.value is None
            else (),
            tuple(look for one, told in each for look in self._looks_at_new(effect, told))[:_MOST_NEW],
            tuple(map(tuple, near)),
        )

    def _altered(self, effect: Effect, values: Mapping[str, JsonValue]) -> Iterator[dict[str, JsonValue]]:
        """Yield near misses of values: copies with one value slightly wrong."""
        for name, value in values.items() if effect.does in ("creates", "sets") and effect.value is None else ():
            if isinstance(value, str) and value:
                stem, ending = posixpath.splitext(value) if " " not in value else (value.rstrip("."), "")
                yield {**values, name: f"{stem}x{ending}"}
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield {**values, name: value + 1}

    def _looks_at_new(self, effect: Effect, values: Mapping[str, JsonValue]) -> Iterator[ReadingCall]:
        """Yield reading calls that refer to a thing by its new value."""
        changing = {one.tool for one in self._world.effects}
        key = self._world.kinds[effect.kind].key
        wanted = effect.does == "creates" or (effect.does == "sets" and effect.field == key)
        for slot in self._world.slots if wanted else ():
            if slot.kind == effect.kind and slot.tool not in changing and slot.field in values:
                value = values[slot.field]
                if isinstance(value, str) and slot.field in (*self._english.naming(effect.kind), key):
                    seen = next(
                        (
                            o.arguments
                            for o in self._world.observations
                            if o.tool == slot.tool and slot.parameter in o.arguments
                        ),
                        {},
                    )
                    listed = isinstance(seen.get(slot.parameter), list)
                    yield slot.tool, {**seen, slot.parameter: [value] if listed else value}

    def _call(
        self,
        effect: Effect,
        entity: Entity | None,
        values: Mapping[str, JsonValue],
        given: Sequence[JsonValue],
        *,
        otherwise: bool = False,
    ) -> ReadingCall | None:
        """Return the changing call for a thing; `otherwise` names the thing by another field that the tool takes."""
        if effect.statement:
            held = {name: fact.value for name, fact in entity.facts.items()} if entity is not None else {}
            statement = filled(effect.statement, {**held, **values})
            return None if statement is None else (effect.tool, dict.fromkeys(effect.example, statement))
        unsaid = [parameter for parameter, name in effect.valued_by.items() if name not in values]
        arguments: dict[str, Any] = {name: value for name, value in effect.example.items() if name not in unsaid}
        if effect.keyed_by is not None and effect.does != "creates":
            if entity is None:
                return None
            fields = self._lookups.fields_of(effect.tool, effect.keyed_by, effect.kind) or [
                self._world.kinds[effect.kind].key
            ]
            known = [name for name in fields if name in entity.facts]
            if not known:
                return None
            named = [name for name in known if entity.facts[name].value in given]
            chosen = named[0] if named else known[-1] if otherwise else known[0]
            arguments = with_argument(arguments, effect.keyed_by, entity.facts[chosen].value)
        for parameter, name in effect.valued_by.items():
            if name in values:
                arguments = with_argument(arguments, parameter, values[name])
        return effect.tool, arguments


def with_argument(arguments: Any, parameter: str, value: JsonValue) -> Any:
    """Return arguments with a value for a parameter such as `title`, or `entities[].name` in a list of objects.

    A list that holds single values takes the value as its only one.
    """
    first, _, rest = parameter.partition(".")
    name, listed = first.removesuffix("[]"), first.endswith("[]")
    before = arguments.get(name) if isinstance(arguments, dict) else None
    if not rest:
        new: Any = [value] if isinstance(before, list) and not isinstance(value, list) else value
    elif listed:
        new = [with_argument(before[0] if isinstance(before, list) and before else {}, rest, value)]
    else:
        new = with_argument(before or {}, rest, value)
    return {**(arguments if isinstance(arguments, dict) else {}), name: new}


def _values_of(values: Values, entity: Entity | None) -> Mapping[str, JsonValue]:
    if not callable(values):
        return values
    assert entity is not None
    return values(entity)
