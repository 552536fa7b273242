"""New things: with stated values, or with a text that has to be found out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_rl.explore import plausible
from mcp_rl.scenarios.goals.changes.calls import with_argument
from mcp_rl.scenarios.goals.changes.texts import LONGEST_EDITED
from mcp_rl.scenarios.goals.phrases import plural, singular
from mcp_rl.scenarios.goals.placed import Placing, new_name
from mcp_rl.scenarios.goals.program import CountOf, Evaluated, ExtremeOf, Program, TotalOf, evaluate
from mcp_rl.scenarios.goals.values import shown
from mcp_rl.scenarios.goals.words import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Effect, Entity
    from mcp_rl.scenarios.goals.changes.calls import ChangeCalls, StateChange
    from mcp_rl.scenarios.goals.changes.draws import ChangeDraws

_MOST_LISTED = 8
_SOURCES = 12
"""Draws of a thing to which another one refers."""


@dataclass(frozen=True)
class _New:
    """A new thing: its identifying values, and a noun phrase for it."""

    values: Mapping[str, JsonValue]
    noun: str


class NewThings:
    """Requests for new things."""

    def __init__(self, draws: ChangeDraws, calls: ChangeCalls) -> None:
        self._draws, self._calls = draws, calls
        self._world, self._random, self._english = draws.world, draws.random, draws.english
        self._requests, self._proposer, self._placed = draws.requests, draws.proposer, draws.placed

    def stated(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing whose values the request states."""
        english, kind = self._english, effect.kind
        new = self._new(effect)
        if new is None:
            return None
        others = {
            name: self._draws.value(kind, name, fresh=False)
            for name in effect.valued_by.values()
            if name not in new.values
        }
        if any(value is None or not self._draws.has(kind, name) for name, value in others.items()):
            return None
        parts = [f"the {_one_of(english.words(kind, name), value)} {_said(value)}" for name, value in others.items()]
        listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
        having = f" with {listed}" if listed else ""
        forms = [
            f"I want {new.noun}{having}.",
            f"There should be {new.noun}{having}.",
            f"Please make {new.noun}{having}.",
            f"Set up {new.noun}{having}.",
            f"I need {new.noun}{having}.",
        ]
        texts = [name for name in others if english.sort(kind, name) == "contents"]
        if len(others) == len(texts) == 1:
            forms = [
                f"I want {new.noun} that says {_said(others[texts[0]])} and nothing else.",
                f"Please make {new.noun} with this text and no other: {_said(others[texts[0]])}",
                f"There should be {new.noun}, which says only this: {_said(others[texts[0]])}",
            ]
        return self._calls.finish(effect, None, None, {**new.values, **others}, forms)

    def like_another(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing that has a value of another, which the request describes."""
        english, kind = self._english, effect.kind
        parameter, name = next(iter(effect.copies.items()))
        to = next((r.to for r in self._world.references if (r.kind, r.field) == (kind, name)), kind)
        new, described = self._new(effect), self._with_source(kind, name, to)
        if described is None or new is None or set(effect.valued_by.values()) - set(new.values):
            return None
        program, evaluated, source = described
        it, words = self._draws.said(program), english.words(kind, name)
        if to == kind:
            forms = [f"I want {new.noun} with the same {words} as {it}."]
        else:
            starts = words == english.noun(to)
            begins = f"{new.noun} that starts at {it}" if starts else f"{new.noun} whose {words} is {it}"
            forms = [f"{asks} {begins}." for asks in ("I want", "There should be", "Please make", "I need")]
        seen = tuple(dict.fromkeys([*evaluated.facts, (kind, str(source.key), name)]))
        made = effect.model_copy(update={"example": with_argument(dict(effect.example), parameter, source.key)})
        return self._calls.finish(made, program, replace(evaluated, facts=seen), dict(new.values), forms)

    def _with_source(self, kind: str, name: str, to: str) -> tuple[Program, Evaluated, Entity] | None:
        """Choose a thing of the kind `to` that a field of some thing refers to; return that thing with it."""
        for _ in range(_SOURCES if to in self._proposer.kinds else 0):
            found = self._draws.choose(to, one=True)
            if found is None:
                continue
            (aim,) = found[1].chosen
            for one in self._world.of_kind(kind):
                if str(one.key if to == kind else one.facts[name].value if name in one.facts else "") == aim:
                    return *found, one
        return None

    def _new(self, effect: Effect) -> _New | None:
        """Name a new thing; None if the tool takes no name for it."""
        english, kind = self._english, effect.kind
        key, place, noun = self._world.kinds[kind].key, self._placed[kind], english.noun(kind)
        if place is not None and key in effect.valued_by.values():
            folder = self._random.choice(place.places)
            name = self._new_name(effect, place)
            path = place.key(folder, name)
            if path is None:
                return None
            return _New({key: path}, f"a new {noun} called {quoted(name)} in {self._draws.the_place(place, folder)}")
        name_field = english.name_field(kind)
        value = self._draws.value(kind, name_field, fresh=True) if name_field in effect.valued_by.values() else None
        if value is None or not english.usable(kind, name_field):
            return None
        return _New({name_field: value}, f"a new {noun} called {quoted(value)}")

    def _new_name(self, effect: Effect, place: Placing) -> str:
        names = [place.of(one)[1] for one in self._world.of_kind(effect.kind)]
        words = self._random.sample(plausible.WORDS, self._random.choice([1, 1, 2]))
        return new_name(words, names, self._random, text=bool(self._draws.texts(effect)))

    def _with_text(
        self, effect: Effect, program: Program, evaluated: Evaluated, text: str, said: str, *, verb: str = "says"
    ) -> StateChange | None:
        """Ask for a new thing with a text that has to be found out, which `said` describes after the verb."""
        english, kind = self._english, effect.kind
        contents = self._draws.texts(effect)
        new = self._new(effect)
        if not contents or new is None or not text.strip():
            return None
        forms = [
            f"I want {new.noun} that {verb} {said}, and nothing else.",
            f"There should be {new.noun}. Its {english.words(kind, contents[0])} should be {said}, and nothing else.",
        ]
        return self._calls.finish(effect, program, evaluated, {**new.values, contents[0]: text}, forms)

    def listing(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing whose text lists the names of others."""
        english = self._english
        things = self._proposer.select(self._random.choice(self._proposer.kinds))
        evaluated = evaluate(self._world, CountOf(things))
        name_field = english.name_field(things.kind)
        names = sorted(
            (str(one.facts[name_field].value) for one in self._draws.entities(evaluated, things.kind)), key=str.casefold
        )
        every = len(self._world.of_kind(things.kind))
        if not 2 <= len(names) <= _MOST_LISTED or len(names) == every or any("\n" in one for one in names):
            return None
        their, several = english.words(things.kind, name_field), english.things(things)
        their = their if english.usable(things.kind, name_field) and their != "path" else "name"
        every_one = self._random.choice(["all", "the"])
        said = f"the {plural(their)} of {every_one} {several}, in alphabetical order, one on each line"
        return self._with_text(effect, CountOf(things), evaluated, "\n".join(names), said, verb="lists")

    def noting(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing whose text is an answer that has to be worked out."""
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
            counts = english.sort(program.things.kind, program.field) == "count"
            alone = f", in {unit}, as a bare number" if unit else ", in digits"
            said = f"the total {'number of ' * counts}{words} of the {english.things(program.things)}{alone}"
        else:
            return None
        return self._with_text(effect, program, evaluated, shown(answer), said)

    def copying(self, effect: Effect) -> StateChange | None:
        """Ask for a new thing with the same text as another."""
        english, kind, contents = self._english, effect.kind, self._draws.texts(effect)
        if kind not in self._proposer.kinds or not contents:
            return None
        found = self._draws.choose(kind, without=contents, one=True)
        if found is None:
            return None
        program, evaluated = found
        evaluated = self._draws.seen(evaluated, kind, contents[0])
        (one,) = self._draws.entities(evaluated, kind)
        text = str(one.facts[contents[0]].value)
        if len(text) > LONGEST_EDITED:
            return None
        said = f"exactly the {english.words(kind, contents[0])} of {self._draws.said(program)}"
        return self._with_text(effect, program, evaluated, text, said, verb="has")


def _one_of(words: str, value: JsonValue) -> str:
    return singular(words) if isinstance(value, list) and len(value) == 1 else words


def _said(value: JsonValue) -> str:
    return " and ".join(map(quoted, value)) if isinstance(value, list) else quoted(value)
