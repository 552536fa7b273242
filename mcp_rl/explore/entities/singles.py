"""Records of which a server has one alone: its configuration, its statistics, what it says of itself.

A tool that needs no arguments answers with them. What two calls, tools or episodes tell differently is left out, and so
is what holds only where or while the server runs.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.nouns import common, is_plural
from mcp_rl.explore.entities.world_model import Entity, Fact
from mcp_rl.explore.words import words_of
from mcp_rl.rewards.dates import is_dated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.forms.records import Record
    from mcp_rl.explore.entities.sightings import Sighting
    from mcp_rl.explore.entities.things import Things

_PASSING = re.compile(
    r"\b(?:pid|port|uptime|memory|heap|rss|cpu|cpus|load|free|used|usage|elapsed|duration|latency|took|now|today|"
    r"timestamp|started|start time|current time|generated|last (?:run|check|checked|seen|sync|access|accessed)|"
    r"hostname|host|platform|arch|architecture|node version|python version|cwd|session|request|"
    r"status|success|message)\b"
)
"""Fields of the machine, the process or the call, and not of what the server holds."""
_MACHINE = re.compile(r"\b(?:env|environment|variables|system|os|process|runtime|machine|hardware|host)\b")
"""Words in the names of tools that tell of the machine alone."""
_MOMENT = re.compile(
    r"\b(?:now|today|(?:current|todays?) (?:\w+ )?(?:date|datetime|day|week|month|year|time|timestamp))\b"
)
"""Words in the names of tools that tell of the moment: what they say is true until midnight at most."""
_PLACE = re.compile(r"(?:[/~]|[A-Za-z]:\\|file:).*", re.DOTALL)
"""A place on the machine."""
_STATISTICS = frozenset("stats statistics settings totals counts metrics limits defaults options".split())  # noqa: SIM905
"""Plurals in the names of tools that answer with one record."""
_PHRASE = 4
"""Words of a value that say something of it."""
_SEVERAL = 3
"""Fewest things inside a record that are no parts of it, but things of their own."""
_ONLY_NOUN = "summary"
"""The name of the kind where neither the result nor the tool says what the record is about."""
_Told = dict[tuple[str, str], dict[str, set[int]]]
"""Values as JSON, with the calls that tell them, by noun and field."""


def singles_of(once: Things, twice: Things, answers: Sequence[Answered], again: Sequence[Answered]) -> list[Entity]:
    """Return the records that stand alone, each as an entity without a key, of a kind named by its noun.

    `twice` and `again` are what another episode showed.
    """
    before, after = _told(once, answers), _told(twice, again)
    found: dict[str, dict[str, Fact]] = defaultdict(dict)
    for (noun, name), values in before.items():
        same = after.get((noun, name), {})
        if noun in once.drafts or len(values) != 1 or values.keys() != same.keys():
            continue
        value, calls = next(iter(values.items()))
        found[noun][name] = Fact(value=json.loads(value), shown_by=tuple(sorted(calls)))
    return [Entity(kind=noun, key=noun, facts=facts) for noun, facts in found.items()]


def _told(things: Things, answers: Sequence[Answered]) -> _Told:
    listing = {one.call for one in things.listings}
    found: _Told = defaultdict(lambda: defaultdict(set))
    for one in things.unclaimed:
        answer = answers[one.call]
        if (
            answer.arguments
            or _MACHINE.search(words_of(one.tool))
            or _MOMENT.search(words_of(one.tool))
            or (one.call in listing and not one.titled and _lists(one.tool))
        ):
            continue
        for record in one.records:
            for name, value in _lasting(record) if not _explains(record) else ():
                found[_noun(one), name][json.dumps(value, sort_keys=True)].add(one.call)
    return found


def _lists(tool: str) -> bool:
    """Return whether a tool's name ends in the plural of what it lists, so that a record beside is about the list."""
    last = words_of(tool).split(" ")[-1]
    return is_plural(last) and last not in _STATISTICS


def _noun(one: Sighting) -> str:
    """Return the noun of a record: one that the result gives, or that stands in the singular in the tool's name."""
    said = {common(word) for word in words_of(one.tool).split(" ")}
    return one.noun if one.noun and (one.titled or one.noun in said) else _ONLY_NOUN


def _explains(record: Record) -> bool:
    """Return whether most values of a record are phrases: then its names are those of things, each with a remark."""
    said = [value for value in record.values() if isinstance(value, str)]
    return sum(len(value.split()) >= _PHRASE for value in said) > len(record) / 2


def _of_several(record: Record) -> set[str]:
    """Return the fields that three or more things inside have alike: `counties.lamu.code` and `counties.meru.code`."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in record:
        path = name.split(".")
        if len(path) > 2:
            alike[path[0], path[-1]].append(name)
    return {name for names in alike.values() if len(names) >= _SEVERAL for name in names}


def _lasting(record: Record) -> Iterator[tuple[str, Any]]:
    several = _of_several(record)
    for name, value in record.items():
        if name in several:
            continue
        if isinstance(value, str) and (is_dated(value) or _PLACE.fullmatch(value)):
            continue
        if _PASSING.search(words_of(name)) is None and not isinstance(value, bool):
            yield name, value
