"""The field by which the things of a kind are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.nouns import common, singular
from mcp_rl.explore.entities.things import is_key
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.explore.entities.sightings import Sighting
    from mcp_rl.explore.entities.things import Subjects

_RANKS = (
    "path", "id", "key", "uuid", "guid", "hash", "sha", "commit", "number", "slug", "name", "title", "uri", "url",
    "email", "code", "symbol", "login", "username", "label",
)  # fmt: skip
UNIQUE = 0.95
"""Least share of different values in each listing, for a field to be a key."""
_OFTEN_UNIQUE = 0.5
"""The same, for a name where no field tells all things apart: those that share one are left out."""
PRESENT = 0.8
"""Least share of the records that have the key; the others are of no known thing."""


def meant_by_ids(groups: Mapping[str, Sequence[Sighting]]) -> set[str]:
    """Return the kinds that records of other kinds refer to by an id, as a `customer_id` does to a customer."""
    names = {
        (noun, words_of(name)) for noun, group in groups.items() for one in group for record in one.records[:1]
        for name in record
    }  # fmt: skip
    meant = [(noun, common(words.removesuffix(" id"))) for noun, words in names if words.endswith(" id")]
    return {other for noun, other in meant if other != noun}


def key_of(noun: str, group: Sequence[Sighting], subjects: Subjects, *, by_id: bool) -> str | None:
    """Return the field that tells the things apart, or None."""
    records = [record for one in group for record in one.records]
    if not records:
        return None
    best: tuple[float, str] | None = None
    names = list(dict.fromkeys(name for record in records[:50] for name in record))
    telling = {name for name in names if tells_apart(name, group, UNIQUE)}
    if not telling:
        telling = {name for name in names if words_of(name) in _RANKS and tells_apart(name, group, _OFTEN_UNIQUE)}
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


def tells_apart(name: str, group: Sequence[Sighting], least: float) -> bool:
    """Return whether nearly all records have a field, and it differs within each listing, in this share at least."""
    there = every = 0
    for one in group:
        values = [value for record in one.records if is_key(value := record.get(name))]
        if len(set(values)) < least * len(values):
            return False
        there, every = there + len(values), every + len(one.records)
    return there >= PRESENT * every


def _rank(noun: str, name: str, position: int, values: Sequence[Any]) -> float | None:
    words = words_of(name)
    last = words.split(" ")[-1]
    if common(singular(words)) == noun or (last == "id" and common(words.removesuffix(" id")) == noun):
        return 19.5
    if words == "id" and all(isinstance(value, int) for value in values):
        return 5.0
    if words in _RANKS:
        return 20.0 - _RANKS.index(words)
    if words in (f"{noun} name", f"{noun} {last}") and last in _RANKS:
        return 20.0 - _RANKS.index(last) - 0.5
    texts = all(isinstance(value, str) and "\n" not in value and len(value) <= 80 for value in values)
    return -float(position) if texts and len(values) > 1 else None
