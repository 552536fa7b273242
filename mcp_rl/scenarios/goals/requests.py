"""Requests for programs, in English, without the names of tools."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.nouns import with_article
from mcp_rl.explore.words import words_of
from mcp_rl.scenarios.goals.extremes import lead, superlatives
from mcp_rl.scenarios.goals.phrases import is_heavy, is_plural, plural, singular
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
    TotalOf,
    kind_of,
)
from mcp_rl.scenarios.goals.rows.requests import RowRequests
from mcp_rl.scenarios.goals.singles import single_forms
from mcp_rl.scenarios.goals.words import PAST, PEOPLE, English, predicate, quoted, sentence
from mcp_rl.toolserver.tool_server import BETWEEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import JsonValue

_SMALL = frozenset("a an the all every each any my your its their of to for this that these those one".split())  # noqa: SIM905
_TRIES = 10
TOLD_ABOUT = ("observations", "facts", "remarks", "comments", "memories")
"""Field names of lists of sentences about a thing."""
_COMPARED_BY_ADJECTIVE = ("size", "length", "age", "cost", "created", "dated")
"""Sorts of fields whose extremes have adjectives: the largest, the newest."""


class ToolNames:
    """The names of a server's tools, as a request must not hold them."""

    def __init__(self, tools: Iterable[str]) -> None:
        bare = [tool.rpartition(BETWEEN)[2] for tool in tools]
        self._raw = [name.casefold() for name in bare if re.search(r"[\W_]|(?<=[a-z])[A-Z]", name)]
        self._spelled = [_telling(words_of(name)) for name in bare]

    def in_text(self, text: str) -> bool:
        """Return whether a text holds the name of a tool, or the words of it one after another, articles apart."""
        folded, words = text.casefold(), _telling(text)
        if any(name in folded for name in self._raw):
            return True
        joined = f" {' '.join(words)} "
        return any(name and f" {' '.join(name)} " in joined for name in self._spelled)


def _telling(text: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", text.casefold()) if word not in _SMALL]


class Requests:
    """Words requests for programs over one world."""

    def __init__(self, english: English, tools: ToolNames) -> None:
        self._english, self._tools = english, tools

    def of(self, program: Program) -> str | None:
        """Return a request for a program; None where none of several forms does without a tool's name."""
        for _ in range(_TRIES):
            text = sentence(self._english.pick(self._forms(program)))
            if not self._tools.in_text(text):
                return text
        return None

    def the_extreme(self, program: ExtremeOf) -> str:
        """Say the extreme one among things: "the note with the fewest words"."""
        english, things = self._english, program.things
        one = english.noun(things.kind)
        if not things.conditions:
            return english.pick(superlatives(english, things.kind, program.by, program.most, one))
        said = english.things(things)
        if english.sort(things.kind, program.by) in _COMPARED_BY_ADJECTIVE:
            adjective = english.pick(superlatives(english, things.kind, program.by, program.most, ""))
            return f"{adjective.strip()} of the {said}"
        rest = said.removeprefix(english.plural(things.kind))
        return f"{english.pick(superlatives(english, things.kind, program.by, program.most, one))} among those{rest}"

    def _forms(self, program: Program) -> Sequence[str]:
        if self._english.world.kinds[kind_of(program)].within:
            return RowRequests(self._english, kind_of(program)).forms(program)
        match program:
            case FieldOf(things, name, through):
                if self._english.world.kinds[things.kind].single:
                    return single_forms(self._english, things.kind, name)
                if through:
                    return self._field_through(things, name, through)
                return self._field(things.kind, name, self._english.the_one(things))
            case NamesOf(things):
                return self._names(things)
            case ExtremeOf(things, by, most, name):
                return self._extreme(things, by, most, name)
            case CountOf(things):
                return self._count(things)
            case TotalOf(things, name):
                return self._total(things, name)
            case MoreOf(kind, condition, other, name):
                return self._more(kind, condition, other, name)
            case Gap(kind, _, one, other, name):
                return self._gap(kind, one, other, name)
            case Commonest(things, name):
                return self._commonest(things, name)
            case IfAny(things, name):
                return self._if_any(things, name)
        raise AssertionError(program)

    # One field

    def _field(self, kind: str, name: str, it: str) -> list[str]:
        """Ask for a field of one thing, which `it` names in words."""
        english = self._english
        words = english.words(kind, name)
        heavy = is_heavy(it)
        if name == english.name_field(kind):
            noun = words if english.usable(kind, name) else "name"
            if english.is_person(kind):
                return [f"Who is {it}?", f"What is the {noun} of {it}?"]
            called = [] if heavy else [f"What is {it} called?"]
            return [*called, f"What is the {noun} of {it}?", f"Tell me the {noun} of {it}."]
        match english.sort(kind, name):
            case "deed":
                deed = english.deed(kind, name)
                if english.about(kind, name).kind == "number":
                    return [f"How many {deed.objects} did {it} {deed.verb}?"]
                asked = f"Which {deed.objects} did {it} {deed.verb}?"
                return [asked, f"Give me all {deed.objects} that {it} {deed.past}."]
            case "text" if words in ("heading", "mark"):
                return [f"Under which heading is {it} listed?"] if words == "heading" else [f"How is {it} marked?"]
            case "list" if words in TOLD_ABOUT:
                return [f"What are the {words} about {it}?", f"Give me all {words} about {it}."]
            case "label" | "list":
                has = [] if heavy else [f"Which {words} does {it} have?", f"I need to know which {words} {it} has."]
                return [*has, f"What are the {words} of {it}?", f"Tell me the {words} of {it}."]
            case "contents":
                if is_plural(words):
                    return [f"What are the {words} of {it}?"]
                said = [f"What does {it} say?", f"What is written in {it}?"] if words in ("text", "content") else []
                return [*said, f"What is the {words} of {it}?", f"Give me the {words} of {it}, word for word."]
            case "count":
                has = [] if heavy else [f"How many {words} does {it} have?", f"Tell me how many {words} {it} has."]
                inside = words in ("words", "lines", "characters", "pages", "items", "entries")
                among = [f"How many {words} are there in {it}?"] if inside else []
                return [*has, *among] or [f"What is the number of {words} of {it}?"]
            case "mass":
                has = [f"How much {words} does {it} have{self._in_unit(kind, name)}?"]
                return [*has, f"Tell me how much {words} {it} has{self._in_unit(kind, name)}."]
            case "size":
                in_unit = self._in_unit(kind, name)
                return [
                    f"How large is {it}{in_unit}?",
                    f"What is the {words} of {it}{in_unit}?",
                    f"Tell me the {words} of {it}{in_unit}.",
                ]
            case "cost":
                in_unit = self._in_unit(kind, name)
                return [f"How much does {it} cost{in_unit}?", f"What is the {words} of {it}{in_unit}?"]
            case "age":
                in_unit = self._in_unit(kind, name)
                return [f"How old is {it}{in_unit}?", f"What is the {words} of {it}{in_unit}?"]
            case "length":
                in_unit = self._in_unit(kind, name)
                return [f"How long is {it}{in_unit}?", f"What is the {words} of {it}{in_unit}?"]
            case "changed":
                changed = [] if heavy else [f"When was {it} last changed?", f"When was {it} changed last?"]
                return changed or [f"When was the last change to {it}?"]
            case "year" if PAST.fullmatch(words):
                return [f"In which year was {it} {words}?", f"Tell me the year in which {it} was {words}."]
            case "created":
                made = [] if heavy else [f"When was {it} created?"]
                return made or [f"What is the creation time of {it}?"]
            case "due":
                return [f"When is {it} due?", f"By when is {it} due?"]
            case "place":
                place = english.place(kind, words)
                return [f"In which {place} is {it}?", *([] if heavy else [f"Which {place} is {it} in?"])]
        if words.split()[-1:] and words.split()[-1] in PEOPLE and not is_plural(words) and " of the " not in words:
            return [f"Who is the {words} of {it}?", f"Tell me the {words} of {it}."]
        in_unit = self._in_unit(kind, name)
        be = "are" if is_plural(words) else "is"
        return [
            f"What {be} the {words} of {it}{in_unit}?",
            f"Tell me the {words} of {it}{in_unit}.",
            f"I would like to know the {words} of {it}{in_unit}.",
        ]

    def _in_unit(self, kind: str, name: str) -> str:
        unit = self._english.about(kind, name).unit
        return f", in {unit}" if unit else ""

    def _field_through(self, things: ChosenThings, name: str, through: str) -> list[str]:
        english = self._english
        to = next(r.to for r in english.world.references if (r.kind, r.field) == (things.kind, through))
        words, whole = singular(english.words(things.kind, through)), english.the_one(things)
        if name == english.name_field(to) and english.sort(things.kind, through) == "place":
            place = english.place(things.kind, words)
            return [f"In which {place} is {whole}?", f"Tell me in which {place} to find {whole}."]
        if name == english.name_field(to) and words.split()[-1] in PEOPLE:
            return [f"Who is the {words} of {whole}?", f"Give me the name of the {words} of {whole}."]
        return self._field(to, name, f"the {words} of {whole}")

    # Names

    def _names(self, things: ChosenThings) -> list[str]:
        english = self._english
        name = english.words(things.kind, english.name_field(things.kind))
        name = name if english.usable(things.kind, english.name_field(things.kind)) else "name"
        name = "number" if english.numbered(things.kind) else name
        said = english.things(things)
        names = plural(name)
        forms = [
            f"Give me the {names} of all {said}.",
            f"Name every {english.things(things, one=True)}.",
            f"I need the {names} of the {said}, all of them.",
        ]
        if (asserted := self._asserted(things)) is not None:
            forms += [f"Which {asserted}? Give their {names}.", f"Which {asserted}?"]
        return forms if is_heavy(said) or name == "message" else [*forms, f"What are the {said} called?"]

    def _asserted(self, things: ChosenThings) -> str | None:
        """Phrase the things with the last condition as a predicate: "notes tagged 'home' have more than 15 words"."""
        english = self._english
        if not things.conditions:
            return None
        *first, last = things.conditions
        verb = predicate(english.condition(things.kind, last).several)
        said = english.things(ChosenThings(things.kind, tuple(first)))
        return None if verb is None or len(first) > 1 or (first and is_heavy(said)) else f"{said} {verb}"

    # The largest, the newest

    def _extreme(self, things: ChosenThings, by: str, most: bool, name: str) -> list[str]:
        english = self._english
        name_field = english.name_field(things.kind)
        if things.conditions:
            said, kind = english.things(things), things.kind
            it = english.pick(superlatives(english, kind, by, most, english.pick(["one", english.noun(kind)])))
            asked = [self._among(said, one) for one in self._field(kind, name, it)]
            return asked if name != name_field else [*asked[:1], *self._which(things, by, most)]
        it = english.pick(superlatives(english, things.kind, by, most, english.noun(things.kind)))
        if name != name_field:
            return self._field(things.kind, name, it)
        called = [f"What is {it} called?"] if not is_heavy(it) else []
        return [*called, *self._which(things, by, most)]

    def _among(self, said: str, asked: str) -> str:
        """Ask something of the things that `said` names."""
        if asked.startswith(("What", "Which", "Who", "When", "How", "In which", "Under which")):
            return self._english.pick([f"Look at the {said}. {asked}", f"Of the {said}: {_small(asked)}"])
        return f"Look at the {said}. {asked}"

    def _which(self, things: ChosenThings, by: str, most: bool) -> list[str]:
        english = self._english
        one = english.things(things, one=True)
        among = f"Of the {english.things(things)}, which one" if things.conditions else f"Which {one}"
        return [f"{among} {lead(english, things.kind, by, most)}?"]

    # How many, how much

    def _count(self, things: ChosenThings) -> list[str]:
        english = self._english
        said = english.things(things)
        if not things.conditions:
            return [f"How many {said} are there in all?", f"How many {said} are there altogether?"]
        plural, rest = english.plural(things.kind), said.removeprefix(english.plural(things.kind))
        forms = [f"How many {plural} are there{rest}?", f"What is the number of {said}?", f"Count the {said}."]
        asserted = self._asserted(things)
        return forms if asserted is None else [*forms, f"How many {asserted}?", f"How many {asserted}?"]

    def _total(self, things: ChosenThings, name: str) -> list[str]:
        english = self._english
        words, said = english.words(things.kind, name), english.things(things)
        in_unit = self._in_unit(things.kind, name)
        match english.sort(things.kind, name):
            case "deed":
                deed = english.deed(things.kind, name)
                return [
                    f"How many {deed.objects} did the {said} {deed.verb} altogether?",
                    f"All the {said} together: how many {deed.objects} did they {deed.verb}?",
                ]
            case "count" if re.search(r"\b(?:has|have) ", said):
                return [f"What is the total number of {words} of the {said}?"]
            case "count":
                return [
                    f"How many {words} do the {said} have altogether?",
                    f"How many {words} do all {said} have, taken together?",
                ]
            case "mass":
                return [f"How much {words} do the {said} have altogether{in_unit}?"]
            case "size":
                return [
                    f"How large are the {said} taken together{in_unit}?",
                    f"How much space do the {said} take up together{in_unit}?",
                ]
            case "cost":
                return [f"What do the {said} cost together{in_unit}?", f"What would all {said} cost together{in_unit}?"]
        return [
            f"What is the total {words} of the {said}{in_unit}?",
            f"Tell me the total {words} of the {said}{in_unit}.",
        ]

    # Comparisons

    def _more(self, kind: str, condition: Condition, other: JsonValue, name: str) -> list[str]:
        english = self._english
        first = english.relative(kind, english.condition(kind, condition).several)
        name_of = condition.field
        one = quoted(english.spoken(kind, name_of, condition.value))
        two, things = quoted(english.spoken(kind, name_of, other)), english.plural(kind)
        second = first.replace(one, two)
        words = english.words(kind, condition.field)
        if name:
            added = english.words(kind, name)
            if english.sort(kind, name) == "deed":
                deed = english.deed(kind, name)
                sides = f"the {things} {first} or those {second}"
                return [f"Which {deed.past} more {deed.objects} taken together, {sides}, and how many more?"]
            if english.sort(kind, name) == "size":
                return [f"Which take up more space, the {things} {first} or those {second}, and how much more?"]
            sort = english.sort(kind, name)
            if sort not in ("count", "mass"):
                more = "Which cost more taken together" if sort == "cost" else f"Which have the higher total {added}"
                return [f"{more}, the {things} {first} or those {second}, and by how much?"]
            how = "how many" if sort == "count" else "how much"
            return [
                f"Which have more {added} taken together, the {things} {first} or those {second}, and {how} more?",
                f"Compare the {things} {first} with those {second}: which have more {added} in all, and {how} more?",
            ]
        if english.sort(kind, condition.field) == "label":
            one_label = singular(words)
            return [
                f"Which {one_label} is on more {things}, {one} or {two}, and what is the difference?",
                f"Are there more {things} {first} or {second}, and how many more?",
            ]
        return [
            f"Are there more {things} {first} or {second}, and how many more?",
            f"Which are more numerous, {things} {first} or {things} {second}, and how many more?",
        ]

    def _gap(self, kind: str, one: JsonValue, other: JsonValue, name: str) -> list[str]:
        english = self._english
        words, noun = english.words(kind, name), english.noun(kind)
        pair = english.pick([f"{quoted(one)} or {quoted(other)}", f"{quoted(other)} or {quoted(one)}"])
        unit = english.about(kind, name).unit
        by = f"by how many {unit}" if unit and is_plural(unit) else "by how much"
        match english.sort(kind, name):
            case "deed":
                deed = english.deed(kind, name)
                return [f"Which {noun} {deed.past} more {deed.objects}, {pair}, and how many more?"]
            case "count" | "mass" as sort:
                more = "how many more" if sort == "count" else f"how much more{self._in_unit(kind, name)}"
                return [
                    f"Which {noun} has more {words}, {pair}, and {more}?",
                    f"Does {pair} have more {words}, and {more}?",
                ]
            case "size":
                return [f"Which {noun} is larger, {pair}, and {by}?", f"Is {pair} the larger {noun}, and {by}?"]
            case "length":
                return [f"Which {noun} is longer, {pair}, and {by}?"]
            case "age":
                return [f"Which {noun} is older, {pair}, and {by}?"]
            case "cost":
                return [f"Which {noun} costs more, {pair}, and {by}?"]
        return [f"Which {noun} has the higher {words}, {pair}, and {by}?"]

    def _commonest(self, things: ChosenThings, name: str) -> list[str]:
        english = self._english
        words, said = english.words(things.kind, name), english.things(things)
        one = english.place(things.kind, singular(words))
        if english.sort(things.kind, name) == "deed":
            deed = english.deed(things.kind, name)
            return [f"Which {deed.object} was {deed.past} by the most {said}, and by how many?"]
        if english.sort(things.kind, name) == "label":
            return [
                f"Which {one} is on the most {said}, and on how many?",
                f"Among the {said}, which {one} occurs most often, and how often?",
            ]
        if english.sort(things.kind, name) == "place":
            holds = "has" if english.is_person(things.kind) else "holds"
            return [f"Which {one} {holds} the most {said}, and how many?"]
        if one.split()[-1] in PEOPLE and english.about(things.kind, name).kind == "text":
            return [f"Who is the {one} of the most {said}, and of how many?"]
        return [
            f"Which {one} is the most common among the {said}, and how many have it?",
            f"Among the {said}, which {one} occurs most often, and how often?",
        ]

    def _if_any(self, things: ChosenThings, name: str) -> list[str]:
        english = self._english
        said, asked = english.things(things, one=True), self._its(things.kind, name)
        return [
            f"Is there {with_article(said)}? If so, {asked}? If not, say 'none'.",
            f"If there is {with_article(said)}, {asked}? "
            f"Answer 'none' if there is no such {english.noun(things.kind)}.",
        ]

    def _its(self, kind: str, name: str) -> str:
        english = self._english
        words = english.words(kind, name)
        if name == english.name_field(kind):
            return "who is that" if english.is_person(kind) else "what is it called"
        person = english.is_person(kind)
        it, their, be, was, do = (
            ("they", "their", "are", "were", "do") if person else ("it", "its", "is", "was", "does")
        )
        match english.sort(kind, name):
            case "deed":
                deed = english.deed(kind, name)
                amount = english.about(kind, name).kind == "number"
                return f"{'how many' if amount else 'which'} {deed.objects} did {it} {deed.verb}"
            case "label" | "list":
                return f"what are {their} {words}"
            case "year" if PAST.fullmatch(words):
                return f"in which year {was} {it} {words}"
            case "count":
                return f"how many {words} {do} {it} have"
            case "mass":
                return f"how much {words} {do} {it} have{self._in_unit(kind, name)}"
            case "size":
                return f"how large {be} {it}{self._in_unit(kind, name)}"
            case "cost":
                return f"how much {do} {it} cost{self._in_unit(kind, name)}"
            case "changed":
                return f"when {was} {it} last changed"
            case "created":
                return f"when {was} {it} created"
            case "due":
                return f"when {be} {it} due"
            case "place":
                return f"which {english.place(kind, words)} {be} {it} in"
        if " of the " in words:
            noun, _, whose = words.partition(" of the ")
            return f"what {'are' if is_plural(noun) else 'is'} the {noun} of {their} {whose}"
        who = "who" if words.split(" ")[-1] in PEOPLE and not is_plural(words) else "what"
        return f"{who} {'are' if is_plural(words) else 'is'} {their} {words}{self._in_unit(kind, name)}"


def _small(question: str) -> str:
    return question[:1].lower() + question[1:]
