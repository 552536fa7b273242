"""Changes of existing things: an item added to or taken from a list, a field set, a thing removed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore import plausible
from mcp_rl.explore.entities.nouns import with_article
from mcp_rl.scenarios.goals.changes.draws import listed_items
from mcp_rl.scenarios.goals.phrases import is_plural, singular
from mcp_rl.scenarios.goals.program import Condition, CountOf
from mcp_rl.scenarios.goals.question import given_values
from mcp_rl.scenarios.goals.requests import TOLD_ABOUT
from mcp_rl.scenarios.goals.words import can_be_said, quoted, sentence

if TYPE_CHECKING:
    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Effect
    from mcp_rl.scenarios.goals.changes.calls import ChangeCalls, StateChange
    from mcp_rl.scenarios.goals.changes.draws import ChangeDraws
    from mcp_rl.scenarios.goals.program import Program

_ONE = 0.45
"""Share of list changes that concern a single thing."""


class KnownThings:
    """Requests for changes of existing things."""

    def __init__(self, draws: ChangeDraws, calls: ChangeCalls) -> None:
        self._draws, self._calls = draws, calls
        self._world, self._random, self._english = draws.world, draws.random, draws.english

    def in_list(self, effect: Effect) -> StateChange | None:
        kind, name = effect.kind, str(effect.field)
        one = self._random.random() < _ONE
        found = self._draws.choose(kind, without=[name] if effect.does == "adds" else [], one=one)
        if found is None:
            return None
        program, evaluated = found
        chosen = self._draws.entities(evaluated, kind)
        lists = [fact.value for entity in chosen if (fact := entity.facts.get(name))]
        if effect.does == "takes":
            common = [v for v in listed_items(lists) if all(isinstance(value, list) and v in value for value in lists)]
            value = self._random.choice(common) if common and len(lists) == len(chosen) else None
        else:
            fresh = self._new_items(kind, name)
            fresh = [v for v in fresh if not any(isinstance(value, list) and v in value for value in lists)]
            value = self._random.choice(fresh) if fresh else None
        if value is None or value in given_values(program, self._english) or not can_be_said(value):
            return None
        forms = self._list_forms(effect, program, value, one=one)
        return self._calls.finish(effect, program, evaluated, {name: value}, forms)

    def _new_items(self, kind: str, name: str) -> list[str]:
        """Return plausible items for a list: names of what it refers to, else items of other lists and new words."""
        to = next((r.to for r in self._world.references if (r.kind, r.field) == (kind, name)), None)
        if to is not None and self._english.about(kind, name).kind == "text":
            return [str(one.key) for one in self._world.of_kind(to)]
        items = listed_items([one.facts[name].value for one in self._world.of_kind(kind) if name in one.facts])
        if sum(len(item.split()) > 2 for item in items) * 2 > len(items):
            return [sentence(plausible.sentence(self._random)) for _ in range(3)]
        return [*items, *self._random.sample(plausible.WORDS, 3)]

    def _list_forms(self, effect: Effect, program: Program, value: JsonValue, *, one: bool) -> list[str]:
        english, kind = self._english, effect.kind
        words, said = english.words(kind, str(effect.field)), quoted(value)
        label = singular(words)
        is_label = english.sort(kind, str(effect.field)) == "label"
        if effect.does == "adds" and words in TOLD_ABOUT:
            whom = self._draws.said(program) if one else f"every {self._each(program)}"
            return [f"{sentence(with_article(label))} should be added about {whom}: {said}.",
                    f"There should be one more {label} about {whom}: {said}."]  # fmt: skip
        if effect.does == "adds" and english.sort(kind, str(effect.field)) == "place":
            whom = self._draws.said(program) if one else f"every {self._each(program)}"
            return [f"{whom} should also be in the {english.place(kind, words)} {said}."]
        if one:
            it = self._draws.said(program)
            if effect.does == "takes":
                return [
                    f"{it} should lose the {label} {said}.",
                    f"The {label} {said} does not belong on {it} any more.",
                ]
            forms = [f"{it} should also have the {label} {said}."]
            forms += [f"{said} should be among the {words} of {it}."] if is_plural(words) else []
            return [*forms, f"I would like {it} to carry the {label} {said} too."] if is_label else forms
        assert isinstance(program, CountOf)
        several, each = english.things(program.things), self._each(program)
        if effect.does == "takes":
            return [
                f"The {label} {said} should disappear from all {several}.",
                f"No {each} should keep the {label} {said}; leave their other {words} as they are.",
            ]
        forms = [f"Every {each} should also have the {label} {said}.", f"All {several} should get the {label} {said}."]
        if is_label:
            forms.append(f"See to it that every {each} carries the {label} {said} as well.")
        return forms

    def _each(self, program: Program) -> str:
        assert isinstance(program, CountOf)
        return self._english.things(program.things, one=True)

    def removal(self, effect: Effect) -> StateChange | None:
        one = self._random.random() < 0.7
        if (found := self._draws.choose(effect.kind, one=one)) is None:
            return None
        program, evaluated = found
        noun = self._english.plural(effect.kind)
        if one:
            it = self._draws.said(program)
            forms = [
                f"I no longer need {it}; all other {noun} should stay.",
                f"{it} can go; keep the rest.",
                f"Get rid of {it}, and of nothing else.",
                f"{it} should be gone in the end, with everything else still there.",
            ]
        else:
            assert isinstance(program, CountOf)
            several = self._english.things(program.things)
            forms = [
                f"I no longer need the {several}; everything else should stay.",
                f"All {several} can go; keep the rest.",
                f"Get rid of the {several}.",
            ]
        return self._calls.finish(effect, program, evaluated, {}, forms)

    def setting(self, effect: Effect) -> StateChange | None:
        english, kind, name = self._english, effect.kind, str(effect.field)
        is_name = name in (english.name_field(kind), self._world.kinds[kind].key)
        one = is_name or self._random.random() < 0.75
        if (found := self._draws.choose(kind, without=[name], one=one)) is None:
            return None
        program, evaluated = found
        value = effect.value if effect.value is not None else self._draws.value(kind, name, fresh=is_name)
        chosen = self._draws.entities(evaluated, kind)
        if value is None or any(one.facts[name].value == value for one in chosen if name in one.facts):
            return None
        words, said = english.words(kind, name), quoted(value)
        if effect.value is not None:
            forms = self._becoming(effect, program, one=one)
        elif one:
            it = self._draws.said(program)
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
                forms = [f"The {words} of {it} should be {said}.", f"Change the {words} of {it} to {said}."]
        else:
            assert isinstance(program, CountOf)
            each = english.things(program.things, one=True)
            forms = [f"The {words} of every {each} should be {said}.", f"Every {each} should have the {words} {said}."]
        things = self._world.of_kind(kind) if effect.value is not None else ()
        so_already = [str(one.key) for one in things if name in one.facts and one.facts[name].value == value]
        return self._calls.finish(effect, program, evaluated, {name: value}, forms, right=so_already)

    def _becoming(self, effect: Effect, program: Program, *, one: bool) -> list[str]:
        """Say that things should be in the one state that a call brings them into: "done", "listed under 'Old'"."""
        english = self._english
        state = english.condition(effect.kind, Condition(str(effect.field), "is", effect.value)).one
        state = re.sub(r"^that is ", "", state)
        state = re.sub(r"^(?:whose|with the) (.*?)(?: is)? (?='|\")", r"of the \1 ", state)
        if one:
            it = self._draws.said(program)
            return [f"{it} should be {state}.", f"I want {it} to be {state}, and nothing else to change."]
        assert isinstance(program, CountOf)
        several = english.things(program.things)
        return [f"All {several} should be {state}.", f"See to it that all {several} are {state}."]
