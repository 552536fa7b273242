"""States to be brought about: a choice of things, and an effect on each of them, in words and as calls."""

from __future__ import annotations

import posixpath
import random
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mcp_rl.explore import plausible
from mcp_rl.explore.entities.statements import filled
from mcp_rl.scenarios.goals.lookups import Lookups
from mcp_rl.scenarios.goals.placed import Placing, new_name, placing
from mcp_rl.scenarios.goals.program import (
    CountOf,
    Evaluated,
    ExtremeOf,
    Program,
    TotalOf,
    Unanswerable,
    evaluate,
)
from mcp_rl.scenarios.goals.propose import ProgramDrawer
from mcp_rl.scenarios.goals.question import given_values
from mcp_rl.scenarios.goals.requests import Requests, ToolNames, sentence
from mcp_rl.scenarios.goals.values import number, shown, telling_words
from mcp_rl.scenarios.goals.words import English, can_be_said, is_plural, quoted, singular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Effect, Entity, WorldModel
    from mcp_rl.scenario import Level
    from mcp_rl.scenarios.goals.twice import ReadingCall

    Values = Mapping[str, JsonValue] | Callable[[Entity], Mapping[str, JsonValue]]

_MOST_CHANGED = 4
_MOST_LISTED = 8
_TRIES = 40
"""Draws for one change that is wanted."""
_ONE = 0.45
"""Share of the changes of one thing that the request names or describes."""
_LONGEST_EDITED = 3000
"""Most characters of a text that is changed or copied."""
_MOST_NEW = 2
"""Most calls that look at new things."""


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
    near: tuple[tuple[ReadingCall, ...], ...] = ()
    """Calls that nearly bring the state about: with another value, or without one thing."""

    @property
    def apart(self) -> tuple[str, ...]:
        """Traces that a task in another split must not have."""
        calls = [f"change {tool} {sorted(dict(arguments).items())!r}" for tool, arguments in self.calls]
        return (f"program {self.does} {self.program!r}", *calls)


@dataclass(frozen=True)
class _New:
    """A new thing: the values that name it, and a noun phrase for it."""

    values: Mapping[str, JsonValue]
    noun: str


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
        self._placed = {kind: placing(world, kind) for kind in world.kinds}
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
        if effect.kind not in self._proposer.kinds and effect.does != "creates":
            return False
        named = [name for name in effect.valued_by.values() if name in fields]
        if effect.does == "removes":
            return effect.keyed_by is not None
        if effect.does == "creates":
            return bool(named) and all(self._can_be_given(effect.kind, name) for name in named)
        known = effect.field in fields and self._can_be_given(effect.kind, str(effect.field))
        return known and effect.keyed_by is not None and effect.field in effect.valued_by.values()

    def _can_be_given(self, kind: str, name: str) -> bool:
        """Return whether a request can give a value of a field; a path as a name in a place."""
        if self._placed[kind] is not None and name == self._world.kinds[kind].key:
            return True
        return self._english.usable(kind, name)

    def _one(self, effect: Effect) -> StateChange | None:
        try:
            return self._random.choice(self._makers(effect))(effect)
        except Unanswerable:
            return None

    def _makers(self, effect: Effect) -> Sequence[Callable[[Effect], StateChange | None]]:
        """Return the ways to make a task of an effect, the telling ones several times."""
        match effect.does:
            case "adds" | "takes":
                return [self._list_change]
            case "removes":
                return [self._removal]
            case "sets":
                if self._placed[effect.kind] is not None and effect.field == self._world.kinds[effect.kind].key:
                    return [self._renaming, *[self._moving] * 3]
                if self._english.sort(effect.kind, str(effect.field)) == "contents":
                    return [self._setting, *[self._editing] * 2]
                return [self._setting]
        if any(
            self._english.sort(effect.kind, n) == "contents"
            for n in effect.valued_by.values()
            if self._has(effect.kind, n)
        ):
            return [self._creation, *[self._listing] * 2, *[self._noting] * 2, self._copying]
        return [self._creation]

    def _has(self, kind: str, name: str) -> bool:
        return name in self._world.kinds[kind].fields

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
            fresh = self._new_items(kind, name)
            fresh = [v for v in fresh if not any(isinstance(value, list) and v in value for value in lists)]
            value = self._random.choice(fresh) if fresh else None
        if value is None or value in given_values(program, self._english) or not can_be_said(value):
            return None
        forms = self._list_forms(effect, program, value, one=one)
        return self._finish(effect, program, evaluated, {name: value}, forms)

    def _new_items(self, kind: str, name: str) -> list[str]:
        """Return values that a list could get: names of what it refers to, else such as others have, and new ones."""
        to = next((r.to for r in self._world.references if (r.kind, r.field) == (kind, name)), None)
        if to is not None and self._english.about(kind, name).kind == "text":
            return [str(one.key) for one in self._world.of_kind(to)]
        items = _items([one.facts[name].value for one in self._world.of_kind(kind) if name in one.facts])
        if sum(len(item.split()) > 2 for item in items) * 2 > len(items):
            return [sentence(plausible.sentence(self._random)) for _ in range(3)]
        return [*items, *self._random.sample(plausible.WORDS, 3)]

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
            forms = [f"{it} should also have the {label} {said}."]
            forms += [f"{said} should be among the {words} of {it}."] if is_plural(words) else []
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
        new = self._new(effect)
        if new is None:
            return None
        others = {
            name: self._value(kind, name, fresh=False) for name in effect.valued_by.values() if name not in new.values
        }
        if any(value is None or not self._has(kind, name) for name, value in others.items()):
            return None
        parts = [f"the {_one_of(english.words(kind, name), value)} {_said(value)}" for name, value in others.items()]
        listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
        forms = [
            f"I want {new.noun}{' with ' if listed else ''}{listed}.",
            f"There should be {new.noun}{', with ' if listed else ''}{listed}.",
        ]
        texts = [name for name in others if english.sort(kind, name) == "contents"]
        if len(others) == len(texts) == 1:
            forms = [
                f"I want {new.noun} that says {_said(others[texts[0]])} and nothing else.",
                f"There should be {new.noun}, which says only this: {_said(others[texts[0]])}",
            ]
        return self._finish(effect, None, None, {**new.values, **others}, forms)

    def _new(self, effect: Effect) -> _New | None:
        """Name a new thing; None where the request gives it no name of its own."""
        english, kind = self._english, effect.kind
        key, place, noun = self._world.kinds[kind].key, self._placed[kind], english.noun(kind)
        if place is not None and key in effect.valued_by.values():
            folder = self._random.choice(place.places)
            name = self._new_name(effect, place)
            path = place.key(folder, name)
            if path is None:
                return None
            return _New({key: path}, f"a new {noun} called {quoted(name)} in {self._the_place(place, folder)}")
        name_field = english.name_field(kind)
        value = self._value(kind, name_field, fresh=True) if name_field in effect.valued_by.values() else None
        if value is None or not english.usable(kind, name_field):
            return None
        return _New({name_field: value}, f"a new {noun} called {quoted(value)}")

    def _new_name(self, effect: Effect, place: Placing) -> str:
        names = [place.of(one)[1] for one in self._world.of_kind(effect.kind)]
        words = self._random.sample(plausible.WORDS, self._random.choice([1, 1, 2]))
        text = any(
            self._english.sort(effect.kind, n) == "contents"
            for n in effect.valued_by.values()
            if self._has(effect.kind, n)
        )
        return new_name(words, names, self._random, text=text)

    def _the_place(self, place: Placing, folder: str) -> str:
        return f"the {place.noun} {quoted(self._english.spoken(place.kind, place.place, folder))}"

    def _with_text(
        self, effect: Effect, program: Program, evaluated: Evaluated, text: str, said: str
    ) -> StateChange | None:
        """Ask for a new thing with a text that must be found out, which `said` describes."""
        english, kind = self._english, effect.kind
        contents = [
            name
            for name in effect.valued_by.values()
            if self._has(kind, name) and english.sort(kind, name) == "contents"
        ]
        new = self._new(effect)
        if not contents or new is None or not text.strip():
            return None
        forms = [
            f"I want {new.noun} that says {said}, and nothing else.",
            f"There should be {new.noun}. Its {english.words(kind, contents[0])} should be {said} and nothing else.",
        ]
        return self._finish(effect, program, evaluated, {**new.values, contents[0]: text}, forms)

    def _listing(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing whose text lists the names of others."""
        english = self._english
        things = self._proposer.select(self._random.choice(self._proposer.kinds))
        evaluated = evaluate(self._world, CountOf(things))
        name_field = english.name_field(things.kind)
        names = sorted(
            (str(one.facts[name_field].value) for one in self._entities(evaluated, things.kind)), key=str.casefold
        )
        every = len(self._world.of_kind(things.kind))
        if not 2 <= len(names) <= _MOST_LISTED or len(names) == every or any("\n" in one for one in names):
            return None
        their, several = english.words(things.kind, name_field), english.things(things)
        their = their if english.usable(things.kind, name_field) and their != "path" else "name"
        every_one = self._random.choice(["all", "the"])
        said = f"the {_several(their)} of {every_one} {several}, in alphabetical order and one on each line"
        return self._with_text(effect, CountOf(things), evaluated, "\n".join(names), said)

    def _noting(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing whose text is an answer that must be worked out."""
        english = self._english
        program = self._proposer.draw(self._random.choice(["count", "total", "extreme"]))
        if program is None:
            return None
        evaluated = evaluate(self._world, program)
        answer = evaluated.answer.value
        if isinstance(program, ExtremeOf):
            program = replace(program, field=english.name_field(program.things.kind))
            evaluated = evaluate(self._world, program)
            answer = evaluated.answer.value
            said = f"the {english.words(program.things.kind, program.field)} of {self._requests.the_extreme(program)}"
        elif isinstance(program, CountOf) and program.things.conditions and len(evaluated.chosen) > 1:
            said = f"the number of {english.things(program.things)}, in digits"
        elif isinstance(program, TotalOf) and len(evaluated.chosen) > 1:
            words, unit = (
                english.words(program.things.kind, program.field),
                english.about(program.things.kind, program.field).unit,
            )
            what = (
                f"how many {words}" if english.sort(program.things.kind, program.field) == "count" else f"what {words}"
            )
            in_unit = f", in {unit}" if unit else ""
            said = f"{what} the {english.things(program.things)} have in all{in_unit}, as a bare number"
        else:
            return None
        return self._with_text(effect, program, evaluated, shown(answer), said)

    def _copying(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing with the same text as another."""
        english, kind = self._english, effect.kind
        contents = [n for n in effect.valued_by.values() if self._has(kind, n) and english.sort(kind, n) == "contents"]
        if kind not in self._proposer.kinds or not contents:
            return None
        found = self._choose(kind, without=contents, one=True)
        if found is None:
            return None
        program, evaluated = found
        evaluated = self._seen(evaluated, kind, contents[0])
        (one,) = self._entities(evaluated, kind)
        text = str(one.facts[contents[0]].value)
        if len(text) > _LONGEST_EDITED:
            return None
        return self._with_text(effect, program, evaluated, text, f"exactly the same as {self._said(program)}")

    # Changing texts and places

    def _seen(self, evaluated: Evaluated, kind: str, name: str) -> Evaluated:
        """Return an answered program for which a field of the chosen things must be looked at too."""
        if any(name not in one.facts for one in self._entities(evaluated, kind)):
            raise Unanswerable(f"no call shows the {name}")
        facts = [(kind, key, name) for key in evaluated.chosen]
        return replace(evaluated, facts=tuple(dict.fromkeys([*evaluated.facts, *facts])))

    def _editing(self, effect: Effect) -> StateChange | None:
        """Ask for a text to be changed in a part: a word, or a line more."""
        kind, name = effect.kind, str(effect.field)
        one = self._random.random() < 0.75
        if (found := self._choose(kind, without=[] if one else [name], one=one)) is None:
            return None
        program, evaluated = found[0], self._seen(found[1], kind, name)
        chosen = self._entities(evaluated, kind)
        texts = {str(entity.key): str(entity.facts[name].value) for entity in chosen}
        if any(len(text) > _LONGEST_EDITED for text in texts.values()):
            return None
        if one:
            its, it = f"of {self._said(program)}", self._said(program)
        else:
            assert isinstance(program, CountOf)
            it = f"every {self._english.things(program.things, one=True)}"
            its = f"of {it}"
        line = sentence(plausible.sentence(self._random)) + "."
        way = self._random.choice(["word", "first", "last"])
        if way == "word":
            common = [
                w for w in telling_words(next(iter(texts.values()))) if all(_stands_alone(w, t) for t in texts.values())
            ]
            if not common:
                return None
            old, new = self._random.choice(common), self._random.choice(plausible.WORDS)
            if any(new in text for text in texts.values()):
                return None
            edited = {key: re.sub(rf"\b{old}\b", new, text) for key, text in texts.items()}
            forms = [
                f"Wherever {it} says {quoted(old)}, it should say {quoted(new)} instead; all else in it stays.",
                f"In {it}, put {quoted(new)} in the place of each {quoted(old)}, and leave the rest as it is.",
            ]
        elif way == "first":
            edited = {key: f"{line}\n{text}" for key, text in texts.items()}
            forms = [
                f"A new first line should stand above the text {its}: {line}",
                f"{it} should begin with a further line, before all that it says now: {line}",
            ]
        else:
            edited = {key: f"{text.rstrip()}\n{line}" for key, text in texts.items()}
            forms = [
                f"Below the text {its}, there should be one more line: {line}",
                f"{it} should end with a further line, after all that it says now: {line}",
            ]
        return self._finish(effect, program, evaluated, lambda entity: {name: edited.get(str(entity.key), line)}, forms)

    def _moving(self, effect: Effect) -> StateChange | None:
        """Ask for things to lie in another place."""
        kind, place = effect.kind, self._placed[effect.kind]
        assert place is not None
        key = self._world.kinds[kind].key
        one = self._random.random() < 0.4
        if (found := self._choose(kind, one=one)) is None:
            return None
        program, evaluated = found
        chosen = self._entities(evaluated, kind)
        folder = self._random.choice(place.places)
        if all(place.of(entity)[0] == folder for entity in chosen) or any(
            folder.startswith(str(e.key)) for e in chosen
        ):
            return None
        targets = {str(e.key): posixpath.join(folder, place.of(e)[1]) for e in chosen if place.of(e)[0] != folder}
        if len(set(targets.values())) < len(targets) or any(target in place.keys for target in targets.values()):
            return None
        where = self._the_place(place, folder)
        if one:
            it = self._said(program)
            forms = [f"{it} belongs into {where}.", f"In the end, {it} should be in {where}, under its name."]
        else:
            assert isinstance(program, CountOf)
            several = self._english.things(program.things)
            forms = [f"The {several} belong into {where}.", f"All {several} should be in {where}, under their names."]
        there = [str(one.key) for one in self._world.of_kind(kind) if place.of(one)[0] == folder]
        return self._finish(
            effect,
            program,
            replace(evaluated, chosen=tuple(targets)),
            lambda entity: {key: targets.get(str(entity.key), posixpath.join(folder, place.of(entity)[1]))},
            forms,
            right=there,
        )

    def _renaming(self, effect: Effect) -> StateChange | None:
        """Ask for another name of a thing that stays where it is."""
        kind, place = effect.kind, self._placed[effect.kind]
        assert place is not None
        if (found := self._choose(kind, one=True)) is None:
            return None
        program, evaluated = found
        (entity,) = self._entities(evaluated, kind)
        folder, name = place.of(entity)
        new = self._random.choice(plausible.WORDS) + posixpath.splitext(name)[1]
        path, it = place.key(folder, new), self._said(program)
        if path is None:
            return None
        forms = [
            f"{it} should be called {quoted(new)} from now on, and stay where it is.",
            f"From now on, {it} should go by the name {quoted(new)}, in the same {place.noun} as before.",
        ]
        return self._finish(effect, program, evaluated, {self._world.kinds[kind].key: path}, forms)

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
        values: Values,
        forms: Sequence[str],
        *,
        right: Sequence[str] = (),
    ) -> StateChange | None:
        """Make the calls of a change; `values` are the new ones, or are told for each thing.

        `right` are the keys of chosen things that are right already.
        """
        given = list(given_values(program, self._english)) if program else []
        kind = effect.kind
        chosen: list[Entity | None] = [None]
        rest: list[Entity] = []
        if evaluated is not None and effect.does != "creates":
            chosen = [*self._entities(evaluated, kind)]
            rest = [one for one in self._world.of_kind(kind) if str(one.key) not in (*evaluated.chosen, *right)]
        each = [(one, _values_of(values, one)) for one in chosen]
        calls = [call for one, told in each if (call := self._call(effect, one, told, given)) is not None]
        if not calls or len(calls) < len(chosen):
            return None
        if evaluated is not None and effect.statement and effect.does != "creates":
            evaluated = self._seen(evaluated, kind, self._world.kinds[kind].key)
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
            if effect.does in ("creates", "sets", "adds")
            else (),
            tuple(look for one, told in each for look in self._looks_at_new(effect, told))[:_MOST_NEW],
            tuple(map(tuple, near)),
        )

    def _altered(self, effect: Effect, values: Mapping[str, JsonValue]) -> Iterator[dict[str, JsonValue]]:
        """Yield values of which one is not quite that which is wanted."""
        for name, value in values.items() if effect.does in ("creates", "sets") else ():
            if isinstance(value, str) and value:
                stem, ending = posixpath.splitext(value) if " " not in value else (value.rstrip("."), "")
                yield {**values, name: f"{stem}x{ending}"}
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield {**values, name: value + 1}

    def _looks_at_new(self, effect: Effect, values: Mapping[str, JsonValue]) -> Iterator[ReadingCall]:
        """Yield reading calls that name a thing by its new value."""
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


def _stands_alone(word: str, text: str) -> bool:
    """Return whether a text holds a word, in this letter case alone and never as a part of another."""
    return 0 < len(re.findall(rf"\b{word}\b", text)) == text.casefold().count(word)


def _several(words: str) -> str:
    return words if is_plural(words) else f"{words}s"


def _items(lists: Sequence[JsonValue]) -> list[str]:
    return list(
        dict.fromkeys(item for value in lists if isinstance(value, list) for item in value if isinstance(item, str))
    )


def _one_of(words: str, value: JsonValue) -> str:
    return singular(words) if isinstance(value, list) and len(value) == 1 else words


def _said(value: JsonValue) -> str:
    return " and ".join(map(quoted, value)) if isinstance(value, list) else quoted(value)
