"""Things out of sightings: the records of one thing from several results, and its values.

Results are merged by keys: a note in a listing and the same note by itself have one id. A record without a key belongs
to the thing that the call was about, if one of its arguments is a key.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.edges import add_edges, joining
from mcp_rl.explore.entities.keys import key_of, meant_by_ids
from mcp_rl.explore.entities.nouns import GENERIC, common, noun_of_tool, singular
from mcp_rl.explore.entities.table_rows import add_rows, lists_in_things, tables_of_things
from mcp_rl.explore.entities.things import Draft, ListedThings, Things, Told, is_key, single_arguments
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.sightings import Sighting
    from mcp_rl.explore.entities.things import Key, Subjects

_BARE = 3
"""Most fields of a record that does not say enough to be of a kind by itself."""
_OVERLAP = 0.5
"""Share of the smaller kind's keys that two kinds of one thing have in common."""
_LONGEST_TEXT = 4_000
"""Most characters of a text that is a value."""


def merged(answers: Sequence[Answered], sightings: Sequence[Sighting], subjects: Subjects) -> Things:
    """Return the things that these results show."""
    result = Things()
    groups: dict[str, list[Sighting]] = {}
    for one in sightings:
        if one.several and one.noun and not _is_of_one(one, answers[one.call], subjects):
            groups.setdefault(one.noun, []).append(one)
    tables = tables_of_things(groups, answers, subjects)
    inside = lists_in_things(groups, answers, subjects)
    meant = meant_by_ids(groups)
    keys = {
        noun: key
        for noun, group in groups.items()
        if (key := key_of(noun, group, subjects, by_id=noun in meant)) is not None
    }
    for noun in joining(groups, keys):
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
        add_rows(result, noun, placed)
    for noun, lists in inside.items():
        add_rows(result, noun, lists.placed, lists.key)
    singles = [one for one in sightings if not one.several]
    result.unclaimed = _unkeyed(result, singles, answers, subjects)
    edges += result.unclaimed
    _add_texts(result, answers, sightings, subjects)
    for one in edges:
        add_edges(result, one)
    _add_places(result)
    result.listings = [one for one in result.listings if one.noun in result.drafts]
    return result


def _is_of_one(one: Sighting, answer: Answered, subjects: Subjects) -> bool:
    """Return whether a list is about one thing of its own noun: the columns that describe a table."""
    if one.typed or one.titled or one.tool not in {tool for tool, _ in subjects.slots}:
        return False
    about = [value for name, value in single_arguments(answer) if (one.tool, name) in subjects.slots]
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
            if is_key(record.get(key)) and (one.typed or noun not in typed)
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


def _list(result: Things, draft: Draft, one: Sighting, key: str) -> None:
    """Add the records of a listing; those that do not say what they are go to the kind that has their key already."""
    found: dict[str, list[Key]] = {draft.noun: []}
    cut = one.cut
    for record in one.records:
        value = record.get(key)
        if not is_key(value):
            cut = True  # there are more things than have a name
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
                for name, value in single_arguments(answer)
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
        elif own is not None and is_key(record.get(own.key)):
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


def _add_texts(result: Things, answers: Sequence[Answered], sightings: Sequence[Sighting], subjects: Subjects) -> None:
    """Add results that are plain texts about a thing as a field of it, unless they only repeat its key."""
    read = {one.tool for one in sightings}
    found: dict[tuple[str, str], list[tuple[Key, int, str]]] = {}
    for index, answer in enumerate(answers):
        if answer.tool in read or not answer.tells or len(answer.text) > _LONGEST_TEXT:
            continue
        about = [
            (noun, value)
            for name, value in single_arguments(answer)
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
