"""States to be brought about: a choice of things, and an effect on each of them, in words and as calls."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.explore import plausible
from mcp_rl.scenarios.goals.lookups import Lookups
from mcp_rl.scenarios.goals.program import (
    CountOf,
    Evaluated,
    ExtremeOf,
    Program,
    Unanswerable,
    evaluate,
)
from mcp_rl.scenarios.goals.propose import ProgramDrawer
from mcp_rl.scenarios.goals.question import given_values
from mcp_rl.scenarios.goals.requests import Requests, ToolNames, sentence
from mcp_rl.scenarios.goals.values import number, shown
from mcp_rl.scenarios.goals.words import English, can_be_said, is_plural, quoted, singular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Effect, Entity, WorldModel
    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.twice import ReadingCall

_MOST_CHANGED = 4
_MOST_LISTED = 8
_TRIES = 40
"""Draws for one change that is wanted."""
_ONE = 0.45
"""Share of the changes of one thing that the request names or describes."""


@dataclass(frozen=True)
class StateChange:
    """A change in words, with the calls that make it."""

    text: str
    does: str
    level: Level
    program: Program | None
    """The program that chooses things; None where nothing is chosen."""
    lookups: tuple[ReadingCall, ...]
    """Calls that a solution looks at first."""
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

    @property
    def apart(self) -> tuple[str, ...]:
        """Traces that a task in another split must not have."""
        calls = [f"change {tool} {sorted(dict(arguments).items())!r}" for tool, arguments in self.calls]
        return (f"program {self.does} {self.program!r}", *calls)


class Changes:
    """Draws changes over one world, from the names of its server's tools and a seed."""

    def __init__(self, world: WorldModel, tools: Sequence[str], seed: int) -> None:
        self._world = world
        self._random = random.Random(f"{seed}:changes")
        self._english = English(world, self._random)
        self._tools = ToolNames(tools)
        self._requests = Requests(self._english, self._tools)
        self._proposer = ProgramDrawer(self._english, self._random)
        self._lookups = Lookups(world)
        self._effects = [effect for effect in world.effects if effect.kind in world.kinds and self._sayable(effect)]

    def draw(self, count: int) -> Iterator[StateChange]:
        """Yield up to `count` distinct changes, with the effects in turn."""
        seen: set[str] = set()
        for attempt in range(_TRIES * count if self._effects else 0):
            if len(seen) >= count:
                return
            change = self._one(self._effects[attempt % len(self._effects)])
            if change is not None and change.text not in seen and not self._tools.in_text(change.text):
                seen.add(change.text)
                yield change

    def _sayable(self, effect: Effect) -> bool:
        fields = self._world.kinds[effect.kind].fields
        if effect.kind not in self._proposer.kinds:
            return False
        named = [name for name in effect.valued_by.values() if name in fields]
        if effect.does == "removes":
            return effect.keyed_by is not None
        if effect.does == "creates":
            return bool(named) and all(self._english.usable(effect.kind, name) for name in named)
        known = effect.field in fields and self._english.usable(effect.kind, str(effect.field))
        return known and effect.keyed_by is not None and effect.field in effect.valued_by.values()

    def _one(self, effect: Effect) -> StateChange | None:
        try:
            match effect.does:
                case "adds" | "takes":
                    return self._list_change(effect)
                case "removes":
                    return self._removal(effect)
                case "sets":
                    return self._setting(effect)
                case "creates":
                    return self._listing(effect) if self._random.random() < 0.7 else self._creation(effect)
        except Unanswerable:
            return None

    # Choosing

    def _choose(self, kind: str, *, without: Sequence[str] = (), one: bool) -> tuple[Program, Evaluated] | None:
        """Choose some things of a kind, or `one`; None where that draw did not give a good number of them."""
        if one and self._random.random() < 0.4:
            drawn = self._proposer.draw_for("extreme", kind)
            program: Program | None = drawn if isinstance(drawn, ExtremeOf) else None
            if isinstance(program, ExtremeOf):
                program = ExtremeOf(program.things, program.by, program.most, self._english.name_field(kind))
        elif one and self._random.random() < 0.4:
            named = self._proposer.named(kind)
            program = CountOf(named) if named else None
        else:
            program = CountOf(self._proposer.select(kind, without=without))
        if program is None or (isinstance(program, CountOf) and not program.things.conditions):
            return None
        evaluated = evaluate(self._world, program)
        chosen, every = len(evaluated.chosen), len(self._world.of_kind(kind))
        fits = chosen == 1 if one else 1 < chosen <= _MOST_CHANGED
        return (program, evaluated) if fits and chosen < every else None

    def _said(self, program: Program) -> str:
        """Say the one thing that a program chooses."""
        assert isinstance(program, ExtremeOf | CountOf)
        if isinstance(program, ExtremeOf):
            return self._requests.the_extreme(program)
        return self._english.the_one(program.things)

    def _entities(self, evaluated: Evaluated, kind: str) -> list[Entity]:
        return [one for one in self._world.of_kind(kind) if str(one.key) in evaluated.chosen]

    # Effects

    def _list_change(self, effect: Effect) -> StateChange | None:
        kind, name = effect.kind, str(effect.field)
        one = self._random.random() < _ONE
        found = self._choose(kind, without=[name] if effect.does == "adds" else [], one=one)
        if found is None:
            return None
        program, evaluated = found
        chosen = self._entities(evaluated, kind)
        lists = [fact.value for entity in chosen if (fact := entity.facts.get(name))]
        if effect.does == "takes":
            common = [v for v in _items(lists) if all(isinstance(value, list) and v in value for value in lists)]
            value = self._random.choice(common) if common and len(lists) == len(chosen) else None
        else:
            every = [entity.facts[name].value for entity in self._world.of_kind(kind) if name in entity.facts]
            fresh = [*_items(every), *self._random.sample(plausible.WORDS, 3)]
            fresh = [v for v in fresh if not any(isinstance(value, list) and v in value for value in lists)]
            value = self._random.choice(fresh) if fresh else None
        if value is None or value in given_values(program, self._english) or not can_be_said(value):
            return None
        forms = self._list_forms(effect, program, value, one=one)
        return self._finish(effect, program, evaluated, {name: value}, forms)

    def _list_forms(self, effect: Effect, program: Program, value: JsonValue, *, one: bool) -> list[str]:
        english, kind = self._english, effect.kind
        words, said = english.words(kind, str(effect.field)), quoted(value)
        label = singular(words)
        is_label = english.sort(kind, str(effect.field)) == "label"
        if one:
            it = self._said(program)
            if effect.does == "takes":
                return [
                    f"{it} should lose the {label} {said}.",
                    f"The {label} {said} does not belong on {it} any more.",
                ]
            forms = [f"{it} should also have the {label} {said}.", f"{said} should be among the {words} of {it}."]
            return [*forms, f"I would like {it} to carry the {label} {said} too."] if is_label else forms
        assert isinstance(program, CountOf)
        several, each = english.things(program.things), english.things(program.things, one=True)
        if effect.does == "takes":
            return [
                f"The {label} {said} should disappear from all {several}.",
                f"No {each} should keep the {label} {said}; leave their other {words} as they are.",
            ]
        forms = [f"Every {each} should also have the {label} {said}.", f"All {several} should get the {label} {said}."]
        if is_label:
            forms.append(f"See to it that every {each} carries the {label} {said} as well.")
        return forms

    def _removal(self, effect: Effect) -> StateChange | None:
        one = self._random.random() < 0.7
        if (found := self._choose(effect.kind, one=one)) is None:
            return None
        program, evaluated = found
        noun = self._english.plural(effect.kind)
        if one:
            it = self._said(program)
            forms = [
                f"I no longer need {it}; all other {noun} should stay.",
                f"{it} can go for good.",
                f"Get rid of {it}, and of nothing else.",
                f"There should be no trace of {it} in the end, while everything else stays.",
            ]
        else:
            assert isinstance(program, CountOf)
            several = self._english.things(program.things)
            forms = [
                f"I no longer need the {several}; everything else should stay.",
                f"All {several} can go, and nothing else.",
                f"Get rid of the {several}.",
            ]
        return self._finish(effect, program, evaluated, {}, forms)

    def _setting(self, effect: Effect) -> StateChange | None:
        english, kind, name = self._english, effect.kind, str(effect.field)
        is_name = name in (english.name_field(kind), self._world.kinds[kind].key)
        one = is_name or self._random.random() < 0.75
        if (found := self._choose(kind, without=[name], one=one)) is None:
            return None
        program, evaluated = found
        value = self._value(kind, name, fresh=is_name)
        chosen = self._entities(evaluated, kind)
        if value is None or any(one.facts[name].value == value for one in chosen if name in one.facts):
            return None
        words, said = english.words(kind, name), quoted(value)
        if one:
            it = self._said(program)
            if is_name and name == english.name_field(kind):
                forms = [
                    f"{it} should be called {said} from now on.",
                    f"From now on, {it} should go by the name {said}.",
                ]
            elif english.sort(kind, name) == "contents" and not is_plural(words):
                forms = [
                    f"{it} should say {said} and nothing else.",
                    f"The {words} of {it} should now read {said}.",
                    f"I want {it} to say only this: {said}.",
                ]
            else:
                forms = [f"The {words} of {it} should be {said}.", f"Make {said} the {words} of {it}."]
        else:
            assert isinstance(program, CountOf)
            each = english.things(program.things, one=True)
            forms = [f"The {words} of every {each} should be {said}.", f"Every {each} should have the {words} {said}."]
        return self._finish(effect, program, evaluated, {name: value}, forms)

    def _creation(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing whose values the request states."""
        english, kind = self._english, effect.kind
        values = {name: self._value(kind, name, fresh=True) for name in effect.valued_by.values()}
        names = [name for name in values if name in self._world.kinds[kind].fields]
        if len(names) != len(values) or any(value is None for value in values.values()):
            return None
        parts = [f"the {_one_of(english.words(kind, name), values[name])} {_said(values[name])}" for name in names]
        noun = english.noun(kind)
        listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
        forms = [f"I want a new {noun} with {listed}.", f"There should be another {noun}, with {listed}."]
        return self._finish(effect, None, None, values, forms)

    def _listing(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing whose text lists the names of others."""
        english, kind = self._english, effect.kind
        texts = [name for name in effect.valued_by.values() if english.sort(kind, name) == "contents"]
        name_field = english.name_field(kind)
        if not texts or name_field not in effect.valued_by.values():
            return None
        things = self._proposer.select(self._random.choice(self._proposer.kinds))
        evaluated = evaluate(self._world, CountOf(things))
        entities = self._entities(evaluated, things.kind)
        names = sorted(
            (str(one.facts[english.name_field(things.kind)].value) for one in entities),
            key=lambda text: text.casefold(),
        )
        every = len(self._world.of_kind(things.kind))
        if not 2 <= len(names) <= _MOST_LISTED or len(names) == every or any("\n" in one for one in names):
            return None
        title = self._value(kind, name_field, fresh=True)
        if title is None:
            return None
        values: dict[str, JsonValue] = {name_field: title, texts[0]: "\n".join(names)}
        their = english.words(things.kind, english.name_field(things.kind))
        noun, several = english.noun(kind), english.things(things)
        forms = [
            f"I want a new {noun} called {quoted(title)} that lists the {their}s of the {several}, in alphabetical "
            "order and one on each line, and says nothing else.",
            f"There should be a new {noun} called {quoted(title)}. Its {english.words(kind, texts[0])} should be the "
            f"{their}s of all {several}, one on each line and in alphabetical order.",
        ]
        program = CountOf(things)
        return self._finish(effect, program, evaluated, values, forms)

    # Values and calls

    def _value(self, kind: str, name: str, *, fresh: bool) -> JsonValue:
        """Draw a value that a field could have: one that other things have, or a fresh one."""
        about = self._world.kinds[kind].fields.get(name)
        if about is None:
            return None
        seen = [one.facts[name].value for one in self._world.of_kind(kind) if name in one.facts]
        match about.kind:
            case "list":
                items = _items(seen)
                return [self._random.choice(items)] if items else [self._random.choice(plausible.WORDS)]
            case "prose":
                return sentence(plausible.sentence(self._random)) + "."
            case "number":
                known = [value for one in seen if (value := number(one)) is not None]
                return round(self._random.choice(known) + self._random.randint(1, 9)) if known else None
            case "text":
                shared = [value for value in dict.fromkeys(map(str, seen)) if seen.count(value) > 1]
                if shared and not fresh:
                    return self._random.choice(shared)
                words = self._random.sample(plausible.WORDS, 2)
                if self._english.sort(kind, name) == "contents":
                    return sentence(plausible.sentence(self._random)) + "."
                return sentence(" ".join(words)) if all(str(one)[:1].isupper() for one in seen) else "-".join(words)
        return None

    def _finish(
        self,
        effect: Effect,
        program: Program | None,
        evaluated: Evaluated | None,
        values: dict[str, JsonValue],
        forms: Sequence[str],
    ) -> StateChange | None:
        given = list(given_values(program, self._english)) if program else []
        lookups: list[ReadingCall] = []
        if evaluated is not None:
            indices = self._lookups.to_choose(evaluated, given)
            lookups = list(self._lookups.calls(indices, given))
        target_kind = effect.kind
        chosen: list[Entity | None] = [None]
        rest: list[Entity] = []
        if evaluated is not None and effect.does != "creates":
            chosen = [*self._entities(evaluated, target_kind)]
            keys = set(evaluated.chosen)
            rest = [one for one in self._world.of_kind(target_kind) if str(one.key) not in keys]
        calls = [self._call(effect, one, values, given) for one in chosen]
        if not calls or any(call is None for call in calls):
            return None
        spare = self._call(effect, self._random.choice(rest), values, []) if rest else None
        again = [self._call(effect, one, values, [], otherwise=True) for one in reversed(chosen)]
        alone = not lookups and len(calls) == 1
        return StateChange(
            sentence(self._english.pick(forms)),
            effect.does,
            "told" if alone else "brought-about",
            program,
            tuple(lookups),
            tuple(call for call in calls if call is not None),
            (spare,) if spare is not None else (),
            tuple(call for call in again if call is not None),
            tuple(str(one.key) for one in chosen if one is not None),
            tuple(shown(item) for value in values.values() for item in (value if isinstance(value, list) else [value]))
            if effect.does in ("creates", "sets", "adds")
            else (),
            tuple(self._looks_at_new(effect, values)),
        )

    def _looks_at_new(self, effect: Effect, values: dict[str, JsonValue]) -> Iterator[ReadingCall]:
        """Yield reading calls that name a new thing by a value that the request gives."""
        changing = {one.tool for one in self._world.effects}
        for slot in self._world.slots if effect.does == "creates" else ():
            if slot.kind == effect.kind and slot.tool not in changing and slot.field in values:
                value = values[slot.field]
                if isinstance(value, str) and slot.field in self._english.naming(effect.kind):
                    yield slot.tool, {slot.parameter: value}

    def _call(
        self,
        effect: Effect,
        entity: Entity | None,
        values: dict[str, JsonValue],
        given: Sequence[JsonValue],
        *,
        otherwise: bool = False,
    ) -> ReadingCall | None:
        """Return the changing call for a thing; `otherwise` names the thing by another field that the tool takes."""
        arguments: dict[str, Any] = {}
        if effect.keyed_by is not None:
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
            arguments[effect.keyed_by] = entity.facts[chosen].value
        for parameter, name in effect.valued_by.items():
            if name in values:
                arguments[parameter] = values[name]
        spare = {name: value for name, value in effect.example.items() if name not in effect.valued_by}
        return effect.tool, {**{n: v for n, v in spare.items() if n != effect.keyed_by}, **arguments}


def _items(lists: Sequence[JsonValue]) -> list[str]:
    return list(
        dict.fromkeys(item for value in lists if isinstance(value, list) for item in value if isinstance(item, str))
    )


def _one_of(words: str, value: JsonValue) -> str:
    return singular(words) if isinstance(value, list) and len(value) == 1 else words


def _said(value: JsonValue) -> str:
    return " and ".join(map(quoted, value)) if isinstance(value, list) else quoted(value)
