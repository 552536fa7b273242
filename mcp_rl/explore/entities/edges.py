"""Records that join two things, such as the relations of a graph, as fields of the first one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.things import Told, is_key
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.explore.entities.sightings import Sighting
    from mcp_rl.explore.entities.things import Things

_JOINED = 0.6
"""Least share of the ends of relations that are known things."""
_EDGES = (("from", "to"), ("source", "target"), ("subject", "object"), ("parent", "child"))


def joining(groups: Mapping[str, Sequence[Sighting]], keys: Mapping[str, str]) -> list[str]:
    """Return the nouns of records that join two things, both of other kinds."""
    found = []
    for noun, key in keys.items():
        records = [record for one in groups[noun] for record in one.records]
        ends = ends_of(records)
        if ends is None or key not in ends:
            continue
        others = {
            record[other]
            for name, other in keys.items()
            if name != noun
            for one in groups[name]
            for record in one.records
            if is_key(record.get(other))
        }
        values = [value for record in records for end in ends if is_key(value := record.get(end))]
        if sum(value in others for value in values) >= _JOINED * len(values):
            found.append(noun)
    return found


def add_edges(result: Things, one: Sighting) -> None:
    """Turn records that join two things into a field of the first one: "Ada works_on Orchard"."""
    ends = ends_of(one.records)
    for record in one.records if ends is not None else ():
        start, end = (record.get(name) for name in ends or ())
        noun = result.noun_with(start)
        kind = next((record[name] for name in record if name not in (ends or ())), None)
        if noun is None or not is_key(start) or not isinstance(kind, str):
            continue
        if not is_key(end) or result.noun_with(end) is None:
            continue
        told = result.drafts[noun].things[start].setdefault(kind[:60], Told())
        before = next((json.loads(value) for value in told.by_tool.get(one.tool, {})), None)
        at = {call for calls in told.by_tool.get(one.tool, {}).values() for call in calls}
        if before is None:
            told.tell(one.tool, end, one.call)
        elif one.call in at and end not in (before if isinstance(before, list) else [before]):
            told.by_tool.pop(one.tool)
            told.tell(one.tool, [*(before if isinstance(before, list) else [before]), end], one.call)


def ends_of(records: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the fields that name two things which a record joins, or None."""
    names = {words_of(name): name for name in (records[0] if records else {})}
    return next(((names[a], names[b]) for a, b in _EDGES if a in names and b in names), None)
