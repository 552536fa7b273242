"""Things out of sightings: the key of each kind, the records of one thing from several results, and its values.

Results are merged by keys: a note in a listing and the same note by itself have one id. A record without a key belongs
to the thing that the call was about, if one of its arguments is a key.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from mcp_rl.explore.entities.nouns import GENERIC, common, noun_of_tool, singular
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.sightings import Sighting

Key = str | int | float
_RANKS = (
    "path", "id", "key", "uuid", "guid", "hash", "sha", "commit", "number", "slug", "name", "title", "uri", "url",
    "email", "code", "symbol", "login", "username", "label",
)  # fmt: skip
_UNIQUE = 0.95
"""Least share of different values in each listing, for a field to be a key."""
_OFTEN_UNIQUE = 0.5
"""The same, for a name where no field tells all things apart: those that share one are left out."""
_PRESENT = 0.8
"""Least share of the records that have the key; the others are of no known thing."""
_JOINED = 0.6
"""Least share of the ends of relations that are known things."""
_BARE = 3
"""Most fields of a record that does not say enough to be of a kind by itself."""
_OVERLAP = 0.5
"""Share of the smaller kind's keys that two kinds of one thing have in common."""
_LONGEST_KEY = 300
_LONGEST_TEXT = 4_000
"""Most characters of a text that is a value."""
_ENTRY = "entry"
"""The noun of rows whose own noun is taken."""
_FEWEST_TABLES = 2
"""Fewest things with a table of rows of one noun, for the rows to be told apart by their thing."""
_EDGES = (("from", "to"), ("source", "target"), ("subject", "object"), ("parent", "child"))
MOST_ENTITIES = 300
"""Most things of one kind."""


@dataclass
class Told:
    """The values of a field that tools told, each with the calls that told it."""

    by_tool: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    """Tool to values as JSON to indices of answers."""

    def tell(self, tool: str, value: Any, call: int) -> None:
        """Add a value."""
        self.by_tool.setdefault(tool, {}).setdefault(json.dumps(value, sort_keys=True), set()).add(call)

    def value(self, tools: Sequence[str]) -> tuple[Any, set[int]] | None:
        """Return the only value that these tools told, with its calls; None where they differ or told none."""
        found: dict[str, set[int]] = {}
        for tool in tools:
            for value, calls in self.by_tool.get(tool, {}).items():
                found.setdefault(value, set()).update(calls)
        if len(found) != 1:
            return None
        value, calls = next(iter(found.items()))
        return json.loads(value), calls


@dataclass
class Draft:
    """A kind that is being put together."""

    noun: str
    key: str
    things: dict[Key, dict[str, Told]] = field(default_factory=dict)
    ambiguous: set[Key] = field(default_factory=set)
    """Keys that two things have in one listing."""
    left_out: int = 0
    """Things beyond the limit."""
    names: dict[str, str] = field(default_factory=dict)
    """The names of the fields by their words: `Commit` and `commit` are one."""
    within: str = ""
    """For the rows of tables: the noun of the things on which they stand, and the field that says on which."""

    def tell(self, key: Key, record: Mapping[str, Any], tool: str, call: int) -> bool:
        """Add what a record says of a thing; return False where there are too many things."""
        if key not in self.things:
            if len(self.things) >= MOST_ENTITIES:
                self.left_out += 1
                return False
            self.things[key] = {}
        self.names.setdefault(words_of(self.key), self.key)
        for name, value in (record if self.within else {self.key: key, **record}).items():
            own = self.names.setdefault(words_of(name), name)
            if own != self.key or value == key or self.within:
                self.things[key].setdefault(own, Told()).tell(tool, value, call)
        return True


@dataclass(frozen=True)
class ListedThings:
    """Things of one kind that one result lists."""

    call: int
    noun: str
    keys: frozenset[Key]
    cut: bool


@dataclass
class Things:
    """Kinds with their things."""

    drafts: dict[str, Draft] = field(default_factory=dict)
    listings: list[ListedThings] = field(default_factory=list)
    unclaimed: list[Sighting] = field(default_factory=list)
    """Single records that are about none of these things."""

    def noun_with(self, key: Any) -> str | None:
        """Return the kind that has a thing of this key, or None."""
        if not isinstance(key, str | int | float):
            return None
        return next((noun for noun, draft in self.drafts.items() if key in draft.things), None)


@dataclass(frozen=True)
class Subjects:
    """Knowledge of the tools' arguments."""

    slots: frozenset[tuple[str, str]] = frozenset()
    """Tools and parameters that take keys of things."""
    choices: frozenset[tuple[str, str]] = frozenset()
    """Tools and parameters that take one of a few values, which are things themselves."""
    passing: frozenset[tuple[str, str]] = frozenset()
    """Kinds and fields whose values are others in each process, so that they are no keys."""
    preferred: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kinds and fields whose values are arguments, with how well they fit by their names, 0 to 3."""


def merged(answers: Sequence[Answered], sightings: Sequence[Sighting], subjects: Subjects) -> Things:
    """Return the things that these results show."""
    result = Things()
    groups: dict[str, list[Sighting]] = {}
    for one in sightings:
        if one.several and one.noun and not _is_of_one(one, answers[one.call], subjects):
            groups.setdefault(one.noun, []).append(one)
    tables = _tables_of_things(groups, answers, subjects)
    meant = _meant_by_ids(groups)
    keys = {
        noun: key
        for noun, group in groups.items()
        if (key := _key_of(noun, group, subjects, by_id=noun in meant)) is not None
    }
    for noun in _joining(groups, keys):
        del keys[noun]
    edges = [one for noun, group in groups.items() if noun not in keys for one in group]
    homes = _joined(groups, keys)
    for noun in keys:
        result.drafts.setdefault(homes[noun], Draft(homes[noun], keys[homes[noun]]))
    listed = [(noun, one) for noun in keys for one in groups[noun]]
    for noun, one in sorted(listed, key=lambda pair: not pair[1].typed):
        _list(result, result.drafts[homes[noun]], one, keys[noun])
    result.drafts = {noun: draft for noun, draft in result.drafts.items() if draft.things}
    for noun, placed in tables.items():
        _add_rows(result, noun, placed)
    singles = [one for one in sightings if not one.several]
    result.unclaimed = _unkeyed(result, singles, answers, subjects)
    edges += result.unclaimed
    _add_texts(result, answers, sightings, subjects)
    for one in edges:
        _add_edges(result, one)
    _add_places(result)
    result.listings = [one for one in result.listings if one.noun in result.drafts]
    return result


def _tables_of_things(
    groups: dict[str, list[Sighting]], answers: Sequence[Answered], subjects: Subjects
) -> dict[str, list[tuple[Key, Sighting]]]:
    """Take out the tables that stand on several things, and return them by the noun of their rows, each with the key
    of its thing."""
    found = {}
    for noun, group in list(groups.items()):
        tables = [one for one in group if one.rows and not any("url" in record for record in one.records)]
        placed = [
            (place, one) for one in tables if (place := thing_asked_about(answers[one.call], subjects)) is not None
        ]
        if len({place for place, _ in placed}) < _FEWEST_TABLES:
            continue
        others = [one for one in group if one not in tables]
        found[_ENTRY if others else noun] = placed
        if others:
            groups[noun] = others
        else:
            del groups[noun]
    return found


def thing_asked_about(answer: Answered, subjects: Subjects) -> Key | None:
    """Return the key of the one thing that a call names, or None."""
    named = [value for name, value in _single_arguments(answer) if (answer.tool, name) in subjects.slots]
    return named[0] if len(named) == 1 and _is_key(named[0]) else None


def _add_rows(result: Things, noun: str, placed: Sequence[tuple[Key, Sighting]]) -> None:
    """Add the rows of tables, each told apart by the thing on which it stands and its name.

    Tables that do not tell their rows apart, or of which a part is missing, are left out.
    """
    home = next((found for place, _ in placed if (found := result.noun_with(place)) is not None), None)
    columns = list(dict.fromkeys(name for _, one in placed for record in one.records for name in record))
    column = _naming_column(columns, [one for _, one in placed])
    noun = _ENTRY if noun in (home, *result.drafts) else noun
    if home is None or column is None or noun in result.drafts or home in map(words_of, columns):
        return
    draft = Draft(noun, column, within=home)
    by_call: dict[int, list[tuple[Key, Sighting]]] = {}
    for place, one in placed:
        by_call.setdefault(one.call, []).append((place, one))
    for call, tables in by_call.items():
        (place, first), records = tables[0], [record for _, one in tables for record in one.records]
        names = [str(record.get(column, "")).casefold() for record in records]
        whole = all(names) and len(set(names)) == len(names) and not any(one.cut for _, one in tables)
        if not whole or place not in result.drafts[home].things:
            draft.left_out += len(records)
            continue
        for record in records:
            draft.tell(f"{place} {record[column]}", {**record, home: place}, first.tool, call)
    if draft.things:
        result.drafts[noun] = draft


def _naming_column(columns: Sequence[str], tables: Sequence[Sighting]) -> str | None:
    """Return the column that names the rows of nearly all tables: the first of texts, else the first one."""
    telling = [
        name for name in columns
        if sum(_tells_apart(name, [one], _UNIQUE) for one in tables) >= _PRESENT * len(tables)
    ]  # fmt: skip
    records = [record for one in tables for record in one.records]
    texts = [name for name in telling if all(isinstance(record.get(name, ""), str) for record in records)]
    return next(iter([*texts, *telling]), None)


def _joining(groups: Mapping[str, Sequence[Sighting]], keys: Mapping[str, str]) -> list[str]:
    """Return the nouns of records that join two things, both of other kinds."""
    found = []
    for noun, key in keys.items():
        records = [record for one in groups[noun] for record in one.records]
        ends = _ends(records)
        if ends is None or key not in ends:
            continue
        others = {
            record[other]
            for name, other in keys.items()
            if name != noun
            for one in groups[name]
            for record in one.records
            if _is_key(record.get(other))
        }
        values = [value for record in records for end in ends if _is_key(value := record.get(end))]
        if sum(value in others for value in values) >= _JOINED * len(values):
            found.append(noun)
    return found


def _ends(records: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the fields that name two things which a record joins, or None."""
    names = {words_of(name): name for name in (records[0] if records else {})}
    return next(((names[a], names[b]) for a, b in _EDGES if a in names and b in names), None)


def _is_of_one(one: Sighting, answer: Answered, subjects: Subjects) -> bool:
    """Return whether a list is about one thing of its own noun: the columns that describe a table."""
    if one.typed or one.tool not in {tool for tool, _ in subjects.slots}:
        return False
    about = [value for name, value in _single_arguments(answer) if (one.tool, name) in subjects.slots]
    told = {value for record in one.records for value in record.values() if isinstance(value, str)}
    return noun_of_tool(one.tool) == one.noun and any(
        isinstance(value, str) and "/" not in value and not any(value in text for text in told) for value in about
    )


def _joined(groups: Mapping[str, Sequence[Sighting]], keys: Mapping[str, str]) -> dict[str, str]:
    """Return the kind to which each kind's things belong: another one, if that has the same things."""
    typed = {noun for noun in keys if any(one.typed for one in groups[noun])}
    values = {
        noun: {
            record[key]
            for one in groups[noun]
            for record in one.records
            if _is_key(record.get(key)) and (one.typed or noun not in typed)
        }
        for noun, key in keys.items()
    }
    homes = {noun: noun for noun in keys}
    by_size = sorted(keys, key=lambda noun: (noun in GENERIC, -len(values[noun])))
    for at, small in enumerate(by_size):
        for large in by_size[:at]:
            common_keys = values[small] & values[large]
            same_field = words_of(keys[small]) == words_of(keys[large])
            plain = all(isinstance(value, int) for value in common_keys)
            if (
                homes[large] == large
                and same_field
                and not {small, large} <= typed
                and not plain
                and common_keys
                and len(common_keys) >= _OVERLAP * min(len(values[small]), len(values[large]))
            ):
                homes[small] = large
                break
    return homes


def _meant_by_ids(groups: Mapping[str, Sequence[Sighting]]) -> set[str]:
    """Return the kinds that records of other kinds refer to by an id, as a `customer_id` does to a customer."""
    names = {
        (noun, words_of(name)) for noun, group in groups.items() for one in group for record in one.records[:1]
        for name in record
    }  # fmt: skip
    return {words.removesuffix(" id") for noun, words in names if words.endswith(" id") and words != f"{noun} id"}


def _key_of(noun: str, group: Sequence[Sighting], subjects: Subjects, *, by_id: bool) -> str | None:
    """Return the field that tells the things apart, or None."""
    records = [record for one in group for record in one.records]
    if not records:
        return None
    best: tuple[float, str] | None = None
    names = list(dict.fromkeys(name for record in records[:50] for name in record))
    telling = {name for name in names if _tells_apart(name, group, _UNIQUE)}
    if not telling:
        telling = {name for name in names if words_of(name) in _RANKS and _tells_apart(name, group, _OFTEN_UNIQUE)}
    for position, name in enumerate(names):
        if (noun, name) in subjects.passing or name not in telling:
            continue
        rank = _rank(noun, name, position, [record[name] for record in records if name in record])
        if by_id and words_of(name) == "id":
            rank = 19.0
        if rank is not None:
            score = rank + 12 * min(3, subjects.preferred[noun, name])
            best = max(best, (score, name)) if best else (score, name)
    return best[1] if best else None


def _tells_apart(name: str, group: Sequence[Sighting], least: float) -> bool:
    there = every = 0
    for one in group:
        values = [value for record in one.records if _is_key(value := record.get(name))]
        if len(set(values)) < least * len(values):
            return False
        there, every = there + len(values), every + len(one.records)
    return there >= _PRESENT * every


def _rank(noun: str, name: str, position: int, values: Sequence[Any]) -> float | None:
    words = words_of(name)
    last = words.split(" ")[-1]
    if common(singular(words)) == noun or words == f"{noun} id":
        return 19.5
    if words == "id" and all(isinstance(value, int) for value in values):
        return 5.0
    if words in _RANKS:
        return 20.0 - _RANKS.index(words)
    if words in (f"{noun} name", f"{noun} {last}") and last in _RANKS:
        return 20.0 - _RANKS.index(last) - 0.5
    texts = all(isinstance(value, str) and "\n" not in value and len(value) <= 80 for value in values)
    return -float(position) if texts and len(values) > 1 else None


def _is_key(value: Any) -> TypeGuard[Key]:
    if isinstance(value, str):
        return 0 < len(value) <= _LONGEST_KEY
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(result: Things, draft: Draft, one: Sighting, key: str) -> None:
    """Add the records of a listing; those that do not say what they are go to the kind that has their key already."""
    found: dict[str, list[Key]] = {draft.noun: []}
    cut = one.cut
    for record in one.records:
        value = record.get(key)
        if not _is_key(value):
            continue
        home = draft
        if not one.typed and isinstance(value, str) and value not in draft.things and len(record) <= _BARE:
            others = (other for other in result.drafts.values() if other.key == draft.key and value in other.things)
            home = next(others, draft)
        listed = found.setdefault(home.noun, [])
        if value in listed:
            home.ambiguous.add(value)
        if home.tell(value, {name: inner for name, inner in record.items() if name != key}, one.tool, one.call):
            listed.append(value)
        else:
            cut = True
    for noun, values in found.items():
        result.listings.append(ListedThings(one.call, noun, frozenset(values), cut))


def _unkeyed(
    result: Things, singles: Iterable[Sighting], answers: Sequence[Answered], subjects: Subjects
) -> list[Sighting]:
    """Add records that are told by themselves to the things that they are about; return the others."""
    others: list[Sighting] = []
    for one in singles:
        answer = answers[one.call]
        record = dict(one.records[0]) if one.records else {}
        about = next(
            (
                (noun, value)
                for name, value in _single_arguments(answer)
                if (one.tool, name) in subjects.slots and (noun := result.noun_with(value)) is not None
            ),
            None,
        )
        own = result.drafts.get(one.noun)
        inside = _inside(result, record, about[0] if about is not None else "")
        if inside is not None:
            draft, name = inside
            key = record.pop(name)
            if about is not None:
                result.drafts[about[0]].tell(about[1], {draft.noun: key}, one.tool, one.call)
            draft.tell(key, record, one.tool, one.call)
        elif own is not None and _is_key(record.get(own.key)):
            own.tell(record.pop(own.key), record, one.tool, one.call)
        elif about is not None and record:
            draft = result.drafts[about[0]]
            same = record.get(draft.key)
            if same is None or same == about[1]:
                draft.tell(about[1], {k: v for k, v in record.items() if k != draft.key}, one.tool, one.call)
        elif record and (choice := _choice(answer, subjects)) is not None:
            name, value = choice
            noun = common(singular(words_of(name).split(" ")[-1]))
            draft = result.drafts.setdefault(noun, Draft(noun, name))
            if draft.key == name:
                draft.tell(value, {k: v for k, v in record.items() if k != name}, one.tool, one.call)
        else:
            others.append(one)
    return others


def _inside(result: Things, record: Mapping[str, Any], about: str) -> tuple[Draft, str] | None:
    """Return the kind that a record is about by the name of one of its fields, where the call was about another kind:
    the commit that a branch is at."""
    for name, value in record.items():
        draft = result.drafts.get(common(words_of(name)))
        if draft is None or draft.noun == about or words_of(draft.key) != words_of(name):
            continue
        if isinstance(value, str) and value in draft.things:
            return draft, name
    return None


def _choice(answer: Answered, subjects: Subjects) -> tuple[str, Any] | None:
    chosen = [(name, v) for name, v in answer.arguments.items() if (answer.tool, name) in subjects.choices]
    return chosen[0] if len(chosen) == 1 and len(answer.arguments) == 1 else None


def _single_arguments(answer: Answered) -> list[tuple[str, Any]]:
    """Return the arguments with single values; a list of one counts as one."""
    return [
        (name, value[0] if isinstance(value, list) and len(value) == 1 else value)
        for name, value in answer.arguments.items()
    ]


def _add_texts(result: Things, answers: Sequence[Answered], sightings: Sequence[Sighting], subjects: Subjects) -> None:
    """Add results that are plain texts about a thing as a field of it, unless they only repeat its key."""
    read = {one.tool for one in sightings}
    found: dict[tuple[str, str], list[tuple[Key, int, str]]] = {}
    for index, answer in enumerate(answers):
        if answer.tool in read or not answer.tells or len(answer.text) > _LONGEST_TEXT:
            continue
        about = [
            (noun, value)
            for name, value in _single_arguments(answer)
            if (answer.tool, name) in subjects.slots and (noun := result.noun_with(value)) is not None
        ]
        if len(about) == 1:
            noun, value = about[0]
            text = answer.text
            if text.strip().endswith(":") and "\n" not in text.strip():
                continue  # a heading with nothing below it
            if text.startswith(f"{value}:\n"):  # a tool that reads several things puts their keys above them
                text = text.removeprefix(f"{value}:\n").removesuffix("\n")
            found.setdefault((answer.tool, noun), []).append((value, index, text))
    for (tool, noun), told in found.items():
        if len({text.replace(str(value), "") for value, _, text in told}) > 1 or len(told) == 1:
            for value, index, text in told:
                result.drafts[noun].tell(value, {_text_field(tool, noun): text}, tool, index)


def _text_field(tool: str, noun: str) -> str:
    said = noun_of_tool(tool)
    return said if said and said not in (*GENERIC, "txt") and said != noun else "content"


def _add_edges(result: Things, one: Sighting) -> None:
    """Turn records that join two things into a field of the first one: "Ada works_on Orchard"."""
    ends = _ends(one.records)
    for record in one.records if ends is not None else ():
        start, end = (record.get(name) for name in ends or ())
        noun = result.noun_with(start)
        kind = next((record[name] for name in record if name not in (ends or ())), None)
        if noun is None or not _is_key(start) or not isinstance(kind, str):
            continue
        if not _is_key(end) or result.noun_with(end) is None:
            continue
        told = result.drafts[noun].things[start].setdefault(kind[:60], Told())
        before = next((json.loads(value) for value in told.by_tool.get(one.tool, {})), None)
        at = {call for calls in told.by_tool.get(one.tool, {}).values() for call in calls}
        if before is None:
            told.tell(one.tool, end, one.call)
        elif one.call in at and end not in (before if isinstance(before, list) else [before]):
            told.by_tool.pop(one.tool)
            told.tell(one.tool, [*(before if isinstance(before, list) else [before]), end], one.call)


def _add_places(result: Things) -> None:
    """Give things with a path their names, and the folder that they are in."""
    for draft in result.drafts.values():
        if words_of(draft.key) != "path":
            continue
        for key, fields in draft.things.items():
            if not isinstance(key, str) or "/" not in key:
                continue
            name, folder = posixpath.basename(key), posixpath.dirname(key)
            for tool, values in fields[draft.key].by_tool.items():
                for calls in values.values():
                    for call in calls:
                        fields.setdefault("name", Told()).tell(tool, name, call)
                        if result.noun_with(folder) is not None:
                            fields.setdefault("folder", Told()).tell(tool, folder, call)
