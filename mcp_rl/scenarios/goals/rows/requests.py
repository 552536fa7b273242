"""Requests for programs over the rows of tables: "Which item is the cheapest on the page 'Lantern'?"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.nouns import plural, with_article
from mcp_rl.explore.words import words_of
from mcp_rl.scenarios.goals.extremes import lead, superlatives
from mcp_rl.scenarios.goals.phrases import counted, is_plural, singular
from mcp_rl.scenarios.goals.program import (
    Commonest,
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
from mcp_rl.scenarios.goals.rows.choice import RowChoice
from mcp_rl.scenarios.goals.rows.places import Places
from mcp_rl.scenarios.goals.values import shown
from mcp_rl.scenarios.goals.words import PAST, PEOPLE, quoted, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from mcp_rl.scenarios.goals.program import ChosenThings, Condition
    from mcp_rl.scenarios.goals.words import English

_COMMON_NOUN = re.compile(r"[a-z]{3,}(?:[ -][a-z]{2,}){0,2}")
"""A name that stands in a sentence as a word of it: "the price of velvet"."""
_ADJECTIVES = {"size": ("larger", "smaller"), "length": ("longer", "shorter"), "age": ("older", "younger")}
_MEASURES = frozenset(
    "width depth height weight area distance volume mass capacity thickness diameter population amount number quantity "  # noqa: SIM905
    "range span stock".split()
)
"""Words for amounts of which one is greater, and not higher."""
_PERIODS = frozenset({"year", "month", "week", "day", "decade", "century"})
"""Nouns that take an article before a number: "the year 1950", but "step 3"."""
_HOW = {"size": "large", "length": "long", "age": "old"}
_PLURALS = {"has": "have", "costs": "cost", "is": "are", "was": "were"}


class RowRequests:
    """Words requests for programs over the rows of one kind."""

    def __init__(self, english: English, kind: str) -> None:
        self._english, self._kind = english, english.world.kinds[kind]
        self._noun, self._plural = english.noun(kind), english.plural(kind)
        self._person = english.is_person(kind)
        self._which, self._that = ("Who", "who") if self._person else ("Which", "that")
        self._places = Places(english, self._kind)

    def forms(self, program: Program) -> Sequence[str]:
        """Return requests for a program, each of which says the same."""
        match program:
            case FieldOf(things, name):
                return self._field(self._choice(things), name)
            case ExtremeOf(things, by, most, name):
                return self._extreme(self._choice(things), by, most, name)
            case CountOf(things):
                return self._count(self._choice(things))
            case TotalOf(things, name):
                return self._total(self._choice(things), name)
            case MoreOf(_, condition, other, name):
                if condition.field == self._kind.key:
                    return [f"{self._which} is listed {self._places.on_more}, {self._pair(condition.value, other)}, "
                            f"and {self._places.at} how many more?"]  # fmt: skip
                return self._more(condition.value, other, name)
            case GapAmong(things, named_by, one, other, name):
                if named_by == self._kind.key:
                    return self._gap_on(self._choice(things), self._pair(one, other), name)
                return self._gap_between(self._choice(things), one, other, name)
            case NamesOf(things):
                return self._names(self._choice(things))
            case PlacesOf(things):
                return self._places_of(self._choice(things))
            case Commonest(things, name):
                return self._commonest(self._choice(things), name)
            case IfAny(things):
                return self._if_any(self._choice(things))
        raise AssertionError(program)

    def _choice(self, things: ChosenThings) -> RowChoice:
        return RowChoice.of(self._kind, things)

    # One row

    def _field(self, choice: RowChoice, name: str) -> list[str]:
        if choice.place is None:
            return self._somewhere(choice, name)
        on = self._places.on(choice.place)
        if choice.other is not None:
            has = self._has(choice.other)
            return [f"Which {self._noun} {on} {has}?", f"{on}, which {self._noun} {has}?",
                    f"Tell me which {self._noun} {on} {has}."]  # fmt: skip
        it, unit = self._it(choice.name), self._in_unit(name)
        forms = [
            f"According to {self._places.the(choice.place)}, {self._asked(name, it)}{unit}?",
            f"{self._asked(name, it)} {on}{unit}?",
            f"Tell me the {self._words(name)} of {it} {on}{unit}.",
        ]
        return forms[:1] if self._sort(name) in ("count", "year") else forms

    def _somewhere(self, choice: RowChoice, name: str) -> list[str]:
        """Ask for something of rows that are known by their name, wherever they stand."""
        which, it = self._places.on_which, self._it(choice.name)
        if name != self._kind.within:
            one, unit = sentence(self._places.one_of_all), self._in_unit(name)
            its = sentence(self._asked(name, "it"))
            return [f"{self._asked(name, it)}{unit}? {one} lists it.", f"{one} lists {it}. {its}{unit}?"]
        if choice.other is None:
            return [f"{which} is {it} listed?", f"Tell me {which} {it} is listed."]
        has = self._has(choice.other)
        return [f"{which} {_question(has, it)}?", f"Tell me {which} {it} {has}."]

    # The cheapest, the highest

    def _extreme(self, choice: RowChoice, by: str, most: bool, name: str) -> list[str]:
        leads = self._leads(by, most)
        if name == by:
            of = "" if choice.name is None else f" of {self._it(choice.name)}"
            where = self._places.on_any if choice.place is None else self._places.on(choice.place)
            return [f"What is the {self._degree(by, most)} {self._words(by)}{of} {where}{self._in_unit(by)}?"]
        if choice.place is not None:
            on = self._places.on(choice.place)
            if name == self._kind.key:
                asked = [(f"Which {self._noun} {on} {each}?", f"{on}, which {self._noun} {each}?") for each in leads]
                return [form for forms in asked for form in forms]
            return [f"{self._asked(name, f'{self._the_most(by, most)} {on}')}{self._in_unit(name)}?"]
        if choice.name is not None:
            return [f"{self._places.on_which} {_question(each, self._it(choice.name))}?" for each in leads]
        if name == self._kind.within:
            return [f"{self._places.on_which} is {self._the_most(by, most)} of all?"]
        return [f"Of the {self._plural} {self._places.on_all}, which one {each}?" for each in leads]

    def _leads(self, by: str, most: bool) -> list[str]:
        """Say that a row is the extreme one: "costs the most", "has the highest price"."""
        has = f"has the {self._degree(by, most)} {self._words(by)}"
        if self._is_measure(by):
            return [has]
        said = lead(self._english, self._kind.name, by, most)
        return [said, has, f"is {self._the_most(by, most, '')}"] if self._sort(by) == "cost" else [said]

    def _the_most(self, by: str, most: bool, noun: str | None = None) -> str:
        noun = self._noun if noun is None else noun
        if self._is_measure(by):
            return f"the {noun} with the {self._degree(by, most)} {self._words(by)}"
        return superlatives(self._english, self._kind.name, by, most, noun)[0].strip()

    def _degree(self, by: str, most: bool) -> str:
        if self._sort(by) in ("year", "dated", "time", "changed", "created", "due"):
            return "latest" if most else "earliest"
        if self._is_measure(by):
            return "greatest" if most else "smallest"
        return "highest" if most else "lowest"

    def _is_measure(self, name: str) -> bool:
        return self._sort(name) == "number" and self._words(name).split()[-1] in _MEASURES

    # How many, how much

    def _count(self, choice: RowChoice) -> list[str]:
        if choice.place is None:
            how_many, it = self._places.on_how_many, self._it(choice.name)
            if choice.other is None:
                return [f"{how_many} is {it} listed?", f"Tell me {how_many} {it} is listed."]
            return [f"{how_many} {_question(self._has(choice.other), it)}?"]
        on = self._places.on(choice.place)
        if choice.other is None:
            return [f"How many {self._plural} are listed {on}?", f"Count the {self._plural} {on}."]
        have = self._have(choice.other)
        return [f"How many {self._plural} {on} {have}?", f"{on}, how many {self._plural} {have}?",
                f"Count the {self._plural} {on} {self._that} {have}."]  # fmt: skip

    def _total(self, choice: RowChoice, name: str) -> list[str]:
        words = plural(singular(self._words(name)))
        if choice.place is None:
            return [f"What do the {words} of {self._it(choice.name)} {self._places.on_all} add up to?"]
        on = self._places.on(choice.place)
        match self._sort(name):
            case "count":
                return [f"How many {words} do the {self._plural} {on} have altogether?"]
            case "cost":
                return [f"What do the {self._plural} {on} cost together?", f"What do the {words} {on} add up to?",
                        f"Add up the {words} {on}."]  # fmt: skip
        return [f"What do the {words} of the {self._plural} {on} add up to?",
                f"What is the total {self._words(name)} of the {self._plural} {on}?"]  # fmt: skip

    # Comparisons

    def _more(self, one: JsonValue, other: JsonValue, name: str) -> list[str]:
        first, second = self._places.on(one), self._places.on(other)
        if not name:
            return [f"Are there more {self._plural} {first} or {second}, and how many more?"]
        words = self._words(name)
        match self._sort(name):
            case "cost":
                return [f"Which cost more taken together, the {self._plural} {first} or those {second}, "
                        "and by how much?"]  # fmt: skip
            case "count":
                return [f"Which have more {words} altogether, the {self._plural} {first} or those {second}, "
                        "and how many more?"]  # fmt: skip
        added = f"{plural(singular(words))} of the {self._plural}"
        return [f"Do the {added} add up to more {first} or {second}, and by how much?"]

    def _pair(self, one: JsonValue, other: JsonValue) -> str:
        both = [self._it(one), self._it(other)]
        return " or ".join(both if self._english.pick(["as drawn", "turned"]) == "as drawn" else both[::-1])

    def _gap_on(self, choice: RowChoice, pair: str, name: str) -> list[str]:
        on, words, sort = self._places.on(choice.place), self._words(name), self._sort(name)
        by = self._by_how_much(name)
        if sort == "count":
            return [f"{self._which} has more {words} {on}, {pair}, and how many more?"]
        if sort in _ADJECTIVES:
            return [f"{self._which} is {_ADJECTIVES[sort][0]} {on}, {pair}, and {by}?"]
        more = "greater" if self._is_measure(name) else "higher"
        higher = f"{self._which} has the {more} {words} {on}, {pair}, and {by}?"
        return [f"Which costs more {on}, {pair}, and by how much?", higher] if sort == "cost" else [higher]

    def _gap_between(self, choice: RowChoice, one: JsonValue, other: JsonValue, name: str) -> list[str]:
        first, second = self._places.on(one), self._places.on(other)
        it, words, sort = self._it(choice.name), self._words(name), self._sort(name)
        by = self._by_how_much(name)
        if sort == "count":
            return [f"Does {it} have more {words} {first} or {second}, and how many more?"]
        if sort in _ADJECTIVES:
            return [f"Is {it} {_ADJECTIVES[sort][0]} {first} or {second}, and {by}?"]
        more = "greater" if self._is_measure(name) else "higher"
        higher = f"Is the {words} of {it} {more} {first} or {second}, and {by}?"
        return [f"Does {it} cost more {first} or {second}, and {by}?", higher] if sort == "cost" else [higher]

    def _by_how_much(self, name: str) -> str:
        unit = self._english.about(self._kind.name, name).unit
        return f"by how many {unit}" if unit and is_plural(unit) and self._sort(name) != "cost" else "by how much"

    # Several rows

    def _names(self, choice: RowChoice) -> list[str]:
        assert choice.other is not None
        on, have = self._places.on(choice.place), self._have(choice.other)
        return [f"Which {self._plural} {on} {have}?", f"{on}, which {self._plural} {have}?",
                f"Name every {self._noun} {on} {self._that} {self._has(choice.other)}."]  # fmt: skip

    def _places_of(self, choice: RowChoice) -> list[str]:
        which, it = self._places.on_which_ones, self._it(choice.name)
        if choice.other is not None:
            return [f"{which} {_question(self._has(choice.other), it)}?"]
        return [f"{which} is {it} listed?", f"Tell me {which} {it} is listed."]

    def _commonest(self, choice: RowChoice, name: str) -> list[str]:
        if choice.place is None:
            return [f"Which {self._noun} is listed {self._places.on_most}, and {self._places.at} how many?"]
        said, words = f"{self._plural} {self._places.on(choice.place)}", self._words(name)
        return [f"Which {words} is the most common among the {said}, and how many have it?",
                f"Among the {said}, which {words} occurs most often, and how often?"]  # fmt: skip

    def _if_any(self, choice: RowChoice) -> list[str]:
        assert choice.other is not None
        said = f"{with_article(self._noun)} {self._places.on(choice.place)} {self._that} {self._has(choice.other)}"
        one = "who" if self._person else "which one"
        return [f"Is there {said}? If so, {one}? If not, say 'none'.",
                f"If there is {said}, {one} is it? Answer 'none' if there is no such {self._noun}."]  # fmt: skip

    # Parts of sentences

    def _words(self, name: str) -> str:
        return self._english.words(self._kind.name, name).lower()

    def _in_unit(self, name: str) -> str:
        unit = self._english.about(self._kind.name, name).unit
        return f", in {unit}" if unit else ""

    def _sort(self, name: str) -> str:
        return self._english.sort(self._kind.name, name)

    def _it(self, name: JsonValue) -> str:
        """Say the name of a row: "velvet", "the bridge 'Old Bridge'", "the year 1950", "step 3"."""
        if self._person:
            return quoted(name)
        if not isinstance(name, str) and self._noun not in _PERIODS:
            return f"{self._noun} {name}"
        named = words_of(self._kind.key) in ("name", "id", "key", "slug", "title")  # in a list, and not in a column
        plain = not named and isinstance(name, str) and _COMMON_NOUN.fullmatch(name) and name != self._noun
        return str(name) if plain else f"the {self._noun} {quoted(name)}"

    def _asked(self, name: str, it: str) -> str:
        """Ask for a field of a row, without a question mark; `it` may be the pronoun."""
        words = self._words(name)
        its = f"its {words}" if it == "it" else f"the {words} of {it}"
        match self._sort(name):
            case "cost":
                return self._english.pick([f"how much does {it} cost", f"what is {its}"])
            case "count":
                return f"how many {words} does {it} have"
            case "size" | "length" | "age" as sort:
                return f"how {_HOW[sort]} is {it}"
            case "year" if PAST.fullmatch(words):
                return f"in which year was {it} {words}"
        if words.split()[-1] in PEOPLE and not is_plural(words):
            return f"who is {its}"
        return f"what {'are' if is_plural(words) else 'is'} {its}"

    def _has(self, condition: Condition) -> str:
        """Say a condition of one row: "costs more than 20", "has the material 'stone'"."""
        words, sort = self._words(condition.field), self._sort(condition.field)
        unit = self._english.about(self._kind.name, condition.field).unit
        value = f"{shown(condition.value)} {unit}".strip()
        if condition.relation == "is":
            return self._equals(words, sort, condition.value, value, unit)
        more = condition.relation == "above"
        if sort == "cost":
            than = f"{'more' if more else 'less'} than {value}"
            return self._english.pick(
                [f"costs {than}", f"has {with_article(words)} {'above' if more else 'below'} {value}"]
            )
        if sort == "count":
            return f"has {'more' if more else 'fewer'} than {counted(condition.value, words)}"
        if sort in _ADJECTIVES:
            return f"is {_ADJECTIVES[sort][0 if more else 1]} than {value}"
        return f"has {with_article(words)} {'above' if more else 'below'} {value}"

    def _equals(self, words: str, sort: str, raw: JsonValue, value: str, unit: str) -> str:
        if sort == "cost":
            return self._english.pick([f"costs {value}", f"has {with_article(words)} of {value}"])
        if sort == "count":
            return f"has no {words}" if raw == 0 else f"has {counted(raw, words)}"
        if sort == "age":
            return f"is {value} old" if unit else f"is {value} years old"
        if sort == "year":
            return f"was {words} in {value}" if PAST.fullmatch(words) else f"has the {words} {value}"
        return f"has the {words} {quoted(raw)}" if isinstance(raw, str) else f"has {with_article(words)} of {value}"

    def _have(self, condition: Condition) -> str:
        """Say a condition of several rows: "cost more than 20"."""
        verb, _, rest = self._has(condition).partition(" ")
        return f"{_PLURALS[verb]} {rest}"


def _question(said: str, it: str) -> str:
    """Turn what is said of a thing into a question: "does velvet cost 37" for "costs 37"."""
    verb, _, rest = said.partition(" ")
    return f"{verb} {it} {rest}" if verb in ("is", "was") else f"does {it} {_PLURALS[verb]} {rest}"
