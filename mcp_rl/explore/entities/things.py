"""Things that are being put together: kinds in the making, the values that tools told, and the keys of things."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.sightings import Sighting

Key = str | int | float
_LONGEST_KEY = 300
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


def is_key(value: Any) -> TypeGuard[Key]:
    """Return whether a value may be the key of a thing."""
    if isinstance(value, str):
        return 0 < len(value) <= _LONGEST_KEY
    return isinstance(value, int | float) and not isinstance(value, bool)


def single_arguments(answer: Answered) -> list[tuple[str, Any]]:
    """Return the arguments with single values; a list of one counts as one."""
    return [
        (name, value[0] if isinstance(value, list) and len(value) == 1 else value)
        for name, value in answer.arguments.items()
    ]


def thing_asked_about(answer: Answered, subjects: Subjects) -> Key | None:
    """Return the key of the one thing that a call names, or None."""
    named = [value for name, value in single_arguments(answer) if (answer.tool, name) in subjects.slots]
    return named[0] if len(named) == 1 and is_key(named[0]) else None
