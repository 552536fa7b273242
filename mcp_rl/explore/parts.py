"""The parts of a result that a request can speak of: "the id of the first of the notes in that result".

They are those of a JSON value, or the values that stand beside names in an outline, in lines or in one line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.forms.amounts import number_in
from mcp_rl.explore.entities.forms.outline_form import labelled
from mcp_rl.explore.entities.forms.pair_form import LABELS
from mcp_rl.explore.entities.nouns import is_plural
from mcp_rl.explore.words import HANDLE_WORDS, noun_of, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[str | int, ...]
_DEEPEST = 4
_LONGEST = 80
"""Most characters of a text that is passed on as an argument."""
_WORDS = re.compile(r"[A-Za-z][a-z]+(?: [A-Za-z][a-z]+){1,3}|[a-z]{3,}|Total|Name|Title|Version|Size|Language|Average")
"""A name that can stand in a sentence."""
_ORDINALS = ("first", "second", "third")


@dataclass(frozen=True)
class Part:
    """A text or number inside a result, with its path and its name in words."""

    path: Path
    value: str | int | float
    phrase: str
    """The name in words, to which a request adds "in …" and the result."""

    @cached_property
    def key(self) -> str:
        """The words of the key under which it stands."""
        return words_of(str(next((part for part in reversed(self.path) if isinstance(part, str)), "")))

    @cached_property
    def owner(self) -> str:
        """The words of the key above that one; empty if there is none."""
        names = [part for part in self.path if isinstance(part, str)]
        return words_of(names[-2]) if len(names) > 1 else ""


def parts_of(text: str) -> list[Part]:
    """Return the parts of a JSON object or list, or of a text made of names and values; none for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _labelled_parts(text)
    return list(_parts(value, ())) if isinstance(value, dict | list) else []


def _labelled_parts(text: str) -> list[Part]:
    """Return the values that stand beside names, without names that stand there twice. An amount is its number."""
    found = labelled(text)
    named = Counter((heading, name) for heading, name, _ in found)
    parts = []
    for heading, name, value in found:
        number = None if name.lower().split(" ")[-1] in LABELS else number_in(value)  # "Version: 1.10" is no number
        listed = is_plural(name) and ", " in value
        if named[heading, name] == 1 and _is_short(value) and not listed:
            path = (heading, name) if heading else (name,)
            parts.append(Part(path, value if number is None else number, _labelled_phrase(*path)))
    return parts


def _labelled_phrase(*path: str) -> str:
    """Return the name in words; one that is no words of English stands as the result has it."""
    *above, name = path
    if above:
        return f"the value of '{name}' under '{above[0]}'"
    # One word with a capital letter may be the name of a thing: "Oslo: 5".
    return f"the {name.lower()}" if _WORDS.fullmatch(name) else f"the value of '{name}'"


def fits(part: Part, parameter: str) -> bool:
    """Return whether a part fits a parameter of this name: `note_id` takes values under `id`, `noteId` or `note`, and
    `note` takes those under `noteId`, or under `id` in a `note`."""
    wanted = words_of(parameter)
    names = {wanted, wanted.split(" ")[-1], noun_of(wanted)}
    keys = {part.key, noun_of(part.key)} if part.key else set()
    if part.key in HANDLE_WORDS and part.owner:
        keys.add(part.owner)
    return any(key in names or key.removesuffix("s") in names for key in keys)


def _parts(value: Any, path: Path) -> Iterator[Part]:
    if len(path) > _DEEPEST:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _parts(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if index < len(_ORDINALS):
                yield from _parts(inner, (*path, index))
    elif isinstance(path[-1], str) and _is_short(value):
        yield Part(path, value, _phrase(path))


def _is_short(value: Any) -> bool:
    scalar = isinstance(value, str | int | float) and not isinstance(value, bool)
    return scalar and 0 < len(str(value).strip()) <= _LONGEST


def _phrase(path: Path) -> str:
    words = f"the {words_of(str(path[-1]))}"
    for position in range(len(path) - 2, -1, -1):
        part = path[position]
        if isinstance(part, int):
            listed = path[position - 1] if position and isinstance(path[position - 1], str) else None
            words += f" of the {_ORDINALS[part]} " + (f"of the {words_of(str(listed))}" if listed else "entry")
        elif not (position + 1 < len(path) and isinstance(path[position + 1], int)):
            words += f" of the {words_of(part)}"
    return words
