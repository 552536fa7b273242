"""Values in a result in words, of which an argument may ask for one: names, ids, and what stands in quotes or lists.

Each comes with the words about it: the name of its field, what it is listed under, or the words before it on its line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.forms.reading import form_of, read_as, text_inside
from mcp_rl.explore.entities.forms.records import LONGEST_TEXT
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 80
"""Most characters of a value."""
_MOST = 100
"""Most values of one result."""
_ID = re.compile(
    r"(?<![\w.-])(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}|"
    r"[A-Za-z]{1,12}[-_#]\d[\w-]{0,30})(?![\w-])"
)
_QUOTED = re.compile(r"(?<![\w'\"`])(['\"`])((?=\S)[^'\"`\n]{1,60}(?<=\S))\1(?!\w)")
_BEFORE = 40
"""Characters before a value on its line that tell what it is."""
_WORDS_BEFORE = 2


def is_id(value: str) -> bool:
    """Return whether a text looks like an id: a hash, a UUID, "b-17"."""
    return _ID.fullmatch(value) is not None


def shown_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield the values in a result, each with the words about it, those of its records first."""
    inside = text_inside(text[:LONGEST_TEXT])
    found: dict[str, str] = {}
    for value, about in (*_in_records(inside), *_in_lines(inside)):
        if len(found) >= _MOST:
            break
        if 1 < len(value) <= _LONGEST and "\n" not in value:
            found.setdefault(value, about)
    yield from found.items()


def _in_records(text: str) -> Iterator[tuple[str, str]]:
    form = form_of([text])
    for listed in read_as(form, text) if form is not None else ():
        for record in listed.records:
            for name, value in record.items():
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, str):
                        yield one.strip(), words_of(f"{listed.name} {name}")


def _in_lines(text: str) -> Iterator[tuple[str, str]]:
    for pattern, group in ((_ID, 0), (_QUOTED, 2)):
        for found in pattern.finditer(text):
            before = text[max(0, found.start() - _BEFORE) : found.start()].rpartition("\n")[2]
            yield found[group], " ".join(words_of(before).split(" ")[-_WORDS_BEFORE:])
