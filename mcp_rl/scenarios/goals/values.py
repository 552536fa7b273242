"""Values of the world: their order in time, and the words in them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

_ZONE_IN_WORDS = re.compile(r"\s*\([^)]*\)$")
_JAVASCRIPT = "%a %b %d %Y %H:%M:%S GMT%z"
_WORD = re.compile(r"[^\W\d_]+")
_EMPTY = frozenset(
    "about after again along also another around because been before being below between both each every from have "  # noqa: SIM905
    "here into just like made make many more most much must need never none only other over same should some such "
    "than that their them then there these they this those three through under until upon very were what when where "
    "which while will with without would your http https always often".split()
)
_LONGEST_TEXT = 20_000


@lru_cache(maxsize=50_000)
def _moment(value: str) -> datetime | None:
    found: datetime | None = None
    for read in (datetime.fromisoformat, _javascript, parsedate_to_datetime):
        try:
            found = read(value.strip())
            break
        except (ValueError, TypeError, IndexError):
            continue
    if found is None:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def moment(value: JsonValue) -> datetime | None:
    """Return a date or time as a moment, in UTC where it names no zone; None for a text that is none."""
    if not isinstance(value, str) or not 8 <= len(value) <= 80:
        return None
    return _moment(value)


def _javascript(text: str) -> datetime:
    return datetime.strptime(_ZONE_IN_WORDS.sub("", text), _JAVASCRIPT)


def without_zone_name(value: JsonValue) -> JsonValue:
    """Return a time without the name of its zone in brackets, which nobody would repeat."""
    return _ZONE_IN_WORDS.sub("", value) if isinstance(value, str) and moment(value) else value


def number(value: JsonValue) -> float | None:
    """Return a number, or None for anything else: true is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def telling_words(text: str) -> list[str]:
    """Return the distinct words of a text that a person would search for, in order, as they first stand there."""
    words: dict[str, str] = {}
    for word in _WORD.findall(text[:_LONGEST_TEXT]):
        if 4 <= len(word) <= 20 and word.lower() not in _EMPTY:
            words.setdefault(word.lower(), word)
    return list(words.values())


def mentions(text: str, word: str) -> bool:
    """Return whether a text holds a word as a part of it, in any letter case, as searches find it."""
    return word.casefold() in text.casefold()


def shown(value: JsonValue) -> str:
    """Return a value as an answer holds it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return str(value)
