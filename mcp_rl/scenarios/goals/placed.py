"""Things in places, such as files in folders, whose key is the path of the place and the name."""

from __future__ import annotations

import posixpath
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from mcp_rl.explore.entities.world_model import Entity, WorldModel

_LONGEST_ENDING = 6


@dataclass(frozen=True)
class Placing:
    """Composition of a kind's keys from places and names."""

    kind: str
    name: str
    """The field of the name."""
    place: str
    """The field of the place."""
    noun: str
    """Noun for the places: their kind, or the words of the field."""
    places: tuple[str, ...]
    """Known places; the server's root comes first."""
    keys: frozenset[str]
    """Existing keys of all kinds."""

    def key(self, place: str, name: str) -> str | None:
        """Return the key of a new thing; None if it exists already."""
        key = posixpath.join(place, name)
        return None if key in self.keys else key

    def of(self, entity: Entity) -> tuple[str, str]:
        """Return the place and the name of a thing."""
        return str(entity.facts[self.place].value), str(entity.facts[self.name].value)


def placing(world: WorldModel, kind: str) -> Placing | None:
    """Return the placing of a kind; None if its keys are not paths."""
    about, things = world.kinds[kind], world.of_kind(kind)
    fields = [name for name, one in about.fields.items() if one.kind == "text" and name != about.key]
    for place in fields:
        for name in fields:
            if place != name and things and all(_is_made_of(one, place, name) for one in things):
                to = next((r.to for r in world.references if (r.kind, r.field) == (kind, place)), "")
                found = [*(str(one.facts[place].value) for one in things), *(str(o.key) for o in world.of_kind(to))]
                return Placing(
                    kind, name, place, (world.kinds[to].name if to else about.fields[place].words).replace("_", " "),
                    tuple(sorted(dict.fromkeys(found), key=lambda path: (path.count("/"), path))),
                    frozenset(str(one.key) for one in world.entities),
                )  # fmt: skip
    return None


def _is_made_of(entity: Entity, place: str, name: str) -> bool:
    if place not in entity.facts or name not in entity.facts or "/" not in str(entity.key):
        return False
    return str(entity.key) == posixpath.join(str(entity.facts[place].value), str(entity.facts[name].value))


def endings(names: list[str]) -> list[str]:
    """Return the endings shared by several names, such as ".txt", the commonest first."""
    found = Counter(posixpath.splitext(name)[1] for name in names)
    return [one for one, count in found.most_common() if count > 1 and 1 < len(one) <= _LONGEST_ENDING]


def new_name(words: list[str], others: list[str], random: random.Random, *, text: bool) -> str:
    """Return a name in the style of others; with `text`, it ends like a text file where some of them do."""
    known = endings(others)
    fitting = [one for one in known if one in (".txt", ".md")] if text else []
    ending = random.choice(fitting or known) if known else ""
    joint = "_" if sum("_" in name for name in others) * 2 > len(others) else "-"
    return joint.join(words) + ending
