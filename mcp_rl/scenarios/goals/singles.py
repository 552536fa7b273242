"""Questions about what a server has one of, such as the default budget of its configuration, and their words."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.nouns import GENERIC, is_plural
from mcp_rl.explore.words import words_of
from mcp_rl.rewards.answers import normalised
from mcp_rl.scenarios.goals.program import ChosenThings, FieldOf
from mcp_rl.scenarios.goals.values import shown
from mcp_rl.scenarios.goals.words import PEOPLE

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Entity
    from mcp_rl.scenarios.goals.program import Program
    from mcp_rl.scenarios.goals.words import English

_SETTINGS = frozenset("configuration config setting settings preference option".split())  # noqa: SIM905
"""Nouns of records in which, and not of which, a value is."""
_UNSAID = GENERIC | frozenset(
    "stat statistic stats summary total count metric limit default report state health version".split()  # noqa: SIM905
)
"""Nouns that say nothing of what a value belongs to."""
_COUNTED = re.compile(r"(?:total|num|number of|count of|n) .+|.+ (?:count|total)")
_COMMON = frozenset(
    "ok yes no on off true false none running active healthy online ready enabled disabled default normal "  # noqa: SIM905
    "standard main master utf-8 utf8 en english usd eur linux windows darwin stdio http localhost utc gmt "
    "auto info debug production development local memory sqlite json text stable success idle low medium "
    "high".split()
)
"""Values that a guess often hits."""
_ALSO_THINGS = frozenset("driver client parent child player keeper contact guest".split())  # noqa: SIM905
"""Nouns for people that are also used of programs and things: a storage driver, a parent window."""
_FEWEST_WORDS = 2
"""Words that a field needs where nothing is said of what it belongs to."""


class SingleDrawer:
    """Draws one question for each value of a thing that has none beside it."""

    def __init__(self, english: English, random: random.Random) -> None:
        self._english, self._random = english, random

    def proposals(self) -> Iterator[tuple[str, Program]]:
        """Yield a program for each value that can be asked for, in random order."""
        things = [one for one in self._english.world.entities if self._english.world.kinds[one.kind].single]
        said: dict[tuple[str, str], set[str]] = defaultdict(set)
        asked = []
        for one in things:
            for name, fact in one.facts.items():
                place = belonging(self._english, one.kind, name)
                said[place, self._english.words(one.kind, name)].add(repr(fact.value))
                if is_asked(self._english, one, name):
                    asked.append((place, one.kind, name))
        self._random.shuffle(asked)
        for place, kind, name in asked:
            if len(said[place, self._english.words(kind, name)]) == 1:
                yield "field of", FieldOf(ChosenThings(kind), name)


def is_asked(english: English, one: Entity, name: str) -> bool:
    """Return whether people would understand the question for a value, and not guess the answer."""
    field, words = english.about(one.kind, name), english.words(one.kind, name)
    if field.kind in ("flag", "prose") or not english.usable(one.kind, name) or _is_common(one.facts[name].value):
        return False
    if words == f"parent {english.noun(one.kind)}":  # "the parent version of the version"
        return False
    whole = len(words.split()) >= _FEWEST_WORDS or _COUNTED.fullmatch(words_of(name)) is not None
    return whole or belonging(english, one.kind, name) != ""


def belonging(english: English, kind: str, name: str) -> str:
    """Return the words that say where a value belongs, such as "of the server"; empty where they say nothing."""
    noun = english.noun(kind)
    if noun in _UNSAID or not re.fullmatch(r"[a-z]{2,20}(?: [a-z]{2,20})?", noun) or "." in name:
        return ""
    if noun in _SETTINGS:
        return f"in the {noun if noun in ('configuration', 'config') else english.plural(kind)}"
    return f"of the {noun}"


def single_forms(english: English, kind: str, name: str) -> list[str]:
    """Return requests for a field of the one thing of a kind."""
    field, words = english.about(kind, name), english.words(kind, name)
    place = belonging(english, kind, name)
    if len(words.split()) >= _FEWEST_WORDS and place and english.noun(kind) in _SETTINGS:
        place = ""
    at = f" {place}" if place else ""
    unit = f", in {field.unit}" if field.unit else ""
    if field.kind == "number" and is_plural(words):
        if limit := re.fullmatch(r"(max|maximum|min|minimum) (.+)", words):
            most = "largest" if limit[1].startswith("max") else "smallest"
            return [f"What is the {most} number of {limit[2]}{at}?", f"Tell me the {most} number of {limit[2]}{at}."]
        if _COUNTED.fullmatch(words_of(name)):
            inside = f"does {place.removeprefix('of ')} have" if place.startswith("of ") else "are there"
            return [f"How many {words} {inside} in all?", f"What is the number of {words}{at}?"]
    be = "are" if is_plural(words) else "is"
    if words.split()[-1] in PEOPLE - _ALSO_THINGS and be == "is":
        return [f"Who is the {words}{at}?", f"Tell me the {words}{at}."]
    return [
        f"What {be} the {words}{at}{unit}?",
        f"Tell me the {words}{at}{unit}.",
        f"I would like to know the {words}{at}{unit}.",
    ]


def values_beside(english: English, kind: str, name: str) -> list[str]:
    """Return the other short texts in the record of a value, which a message that only recites it would hold."""
    (one,) = english.world.of_kind(kind)
    values: list[JsonValue] = [fact.value for other, fact in one.facts.items() if other != name]
    return [text for text in map(shown, values) if re.search(r"[^\W\d]{4}", text) and len(normalised(text)) <= 80]


def _is_common(value: JsonValue) -> bool:
    if isinstance(value, list):
        return len(value) < 2
    return shown(value).casefold() in _COMMON or value in (0, 1)
