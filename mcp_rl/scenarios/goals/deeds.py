"""Fields that say what a thing did, such as the "changed files" of a commit: they are asked for by their verb."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_rl.explore.entities.nouns import plural, singular

_VERBS = {
    "changed": "change", "added": "add", "removed": "remove", "deleted": "delete", "modified": "modify",
    "renamed": "rename", "used": "use", "mentioned": "mention", "touched": "touch", "closed": "close",
}  # fmt: skip


@dataclass(frozen=True)
class Deed:
    """What a thing did to others: it changed files, or added lines."""

    past: str
    verb: str
    objects: str
    """A plural noun."""

    @property
    def object(self) -> str:
        """The noun in the singular."""
        return singular(self.objects)

    def counted(self, number: str) -> str:
        """Return the objects after a number of them."""
        return f"one {self.object}" if number == "1" else f"{number} {self.objects}"


def deed_in(words: str) -> Deed | None:
    """Return what the words for a field say that a thing did; None where they say no such thing."""
    past, _, objects = words.partition(" ")
    if past not in _VERBS or not objects.isalpha() or plural(singular(objects)) != objects:
        return None
    return Deed(past, _VERBS[past], objects)
