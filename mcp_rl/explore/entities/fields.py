"""Fields of a kind: what they hold, in what unit, and the words for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.abbreviations import spelled
from mcp_rl.explore.entities.nouns import common, is_plural, plural, singular
from mcp_rl.explore.entities.world_model import EntityField, FieldKind
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_SHORT = 80
"""Most characters of a short text."""
_SHARE = 0.9
"""Share of the values that must agree on what a field holds."""
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DAYS = "mon|tue|wed|thu|fri|sat|sun"
TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?(?:Z|[+-]\d\d:?\d\d))?)?"
    rf"|(?:(?:{_DAYS})[a-z]*,? )?(?:{_MONTHS})[a-z]* \d{{1,2}},? .{{4,60}}"
    rf"|(?:(?:{_DAYS})[a-z]*,? )\d{{1,2}} (?:{_MONTHS})[a-z]* .{{4,60}}"
    r"|\d{1,2}:\d\d(?::\d\d)?(?: ?[ap]m)?|\d{1,2}[/.]\d{1,2}[/.]\d{4}(?:,? \d{1,2}:\d\d(?::\d\d)?)?",
    re.IGNORECASE,
)
"""A date, a time of day, or both."""
UNITS = {
    "seconds": "seconds", "secs": "seconds", "sec": "seconds", "ms": "milliseconds", "millis": "milliseconds",
    "minutes": "minutes", "mins": "minutes", "hours": "hours", "days": "days", "weeks": "weeks", "months": "months",
    "years": "years", "bytes": "bytes", "kb": "kB", "mb": "MB", "gb": "GB", "km": "km", "meters": "m", "metres": "m",
    "miles": "miles",
    "kg": "kg", "grams": "g", "celsius": "°C", "fahrenheit": "°F", "percent": "%", "pct": "%", "percentage": "%",
    "usd": "US dollars", "eur": "euros", "gbp": "pounds", "dollars": "US dollars", "euros": "euros", "px": "pixels",
    "pixels": "pixels", "m": "m", "cm": "cm", "ha": "ha", "g": "g", "l": "l", "min": "minutes", "h": "hours",
    "%": "%", "euro": "euros", "kmh": "km/h", "kph": "km/h", "mph": "mph", "hpa": "hPa", "mm": "mm", "cents": "cents",
    **{code.lower(): code for code in (
        "AED", "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "HKD", "INR", "JPY", "MXN", "NOK", "NZD", "PLN", "SEK",
        "SGD", "ZAR",
    )},
}  # fmt: skip
"""Units by the words for them, in lower case."""
_ACTIONS = {
    "created": "creation", "modified": "modification", "updated": "last update", "changed": "last change",
    "deleted": "deletion", "started": "start", "start": "start", "ended": "end", "end": "end", "finished": "end",
    "due": "due", "published": "publication", "closed": "closing", "opened": "opening", "accessed": "last access",
    "completed": "completion", "added": "addition", "received": "arrival", "sent": "sending", "birth": "birth",
    "expires": "expiry", "expired": "expiry", "joined": "joining", "begin": "start", "last modified": "modification",
    "creation": "creation", "modification": "modification", "last updated": "last update", "mtime": "modification",
    "ordered": "order", "shipped": "shipping", "paid": "payment", "hired": "hiring", "booked": "booking",
    "delivered": "delivery", "signed": "signing", "registered": "registration", "submitted": "submission",
    "uploaded": "upload", "visited": "visit", "bought": "purchase", "purchased": "purchase", "resolved": "resolution",
    "released": "release", "released on": "release", "returned": "return", "approved": "approval", "born": "birth",
    "died": "death", "merged": "merge", "posted": "posting", "issued": "issue", "scheduled": "appointment",
    "borrowed": "loan", "planted": "planting", "opened on": "opening", "founded": "foundation", "built": "building",
    "ctime": "creation", "authored": "authoring", "committed": "commit", "last changed": "last change",
}  # fmt: skip
_PREPOSITIONS = {"on", "by", "in", "to", "of", "with", "at", "from", "for", "under", "near"}
_RELATIONS = {
    "belongs to": "owner", "owned by": "owner", "led by": "leader", "managed by": "manager", "reports to": "manager",
    "created by": "creator", "written by": "author", "authored by": "author", "made by": "maker",
    "visited by": "visitor", "assigned to": "assignee", "located in": "location", "taught by": "teacher",
    "used by": "user", "works for": "employer", "employed by": "employer", "next to": "neighbour",
    "married to": "spouse", "born in": "birthplace",
}  # fmt: skip
_HASH = re.compile(r"[0-9a-f]{7,64}")
_WORDS = {
    "desc": "description", "qty": "quantity", "num": "number", "addr": "address", "msg": "message", "ts": "time",
    "lang": "language", "cat": "category", "pos": "position", "temp": "temperature", "avg": "average",
    "tz": "time zone",
    "timezone": "time zone", "dob": "date of birth", "ext": "extension", "len": "length", "lat": "latitude",
    "lon": "longitude", "lng": "longitude", "url": "address", "uri": "address", "href": "address", "dir": "folder",
    "directory": "folder", "repo": "repository", "sha": "hash", "config": "configuration", "tel": "phone number",
    "phone": "phone number", "email": "email address", "dept": "department", "amt": "amount", "mgr": "manager",
    "prio": "priority", "carb": "carbs", "kcal": "calories", "freq": "frequency", "prev": "previous",
    "curr": "current", "src": "source", "dest": "destination", "acct": "account", "yr": "year",
}  # fmt: skip


def described(
    name: str,
    values: Sequence[Any],
    kind: str,
    *,
    is_key: bool,
    about: str = "",
    known: Collection[str] = (),
    keys: Collection[str] = (),
) -> EntityField:
    """Return the description of a field with these values, of a kind of that name.

    `about` is what a tool's output schema says of the field, `known` are the words that the server uses, and `keys`
    those of the things of the kind.
    """
    holds = field_kind(values)
    words, unit = words_for(name, holds, kind)
    words = spelled(words, known)
    if holds == "time" and words.endswith(" time") and not any(":" in str(value) for value in values):
        words = f"{words.removesuffix(' time')} date"
    if words == kind and not is_key and keys and holds in ("text", "prose") and not _may_refer(values, keys):
        words = "name" if holds == "text" and len({*map(str, values)}) == len(values) else "text"
    elif words == kind and not is_key:
        words = f"parent {kind}"
    elif words == kind:
        hashes = all(isinstance(value, str) and _HASH.fullmatch(value) for value in values)
        words = "hash" if hashes else "number" if holds == "number" else "name"
    if holds != "number":
        unit = ""
    elif not unit:
        unit = "bytes" if words == "size" and kind in ("file", "folder") else _unit_in(about[:300])
    return EntityField(name=name, words=words, kind=holds, unit=unit)


def _may_refer(values: Sequence[Any], keys: Collection[str]) -> bool:
    """Return whether values may name other things: a key, or the place in which the things are."""
    return any(str(value) in keys or any(key.startswith(f"{value}/") for key in keys) for value in values)


def words_for_relation(words: str, to: str) -> str:
    """Return a noun for a relation named by a verb: "owner" for "belongs to", else the noun of the things it refers to.

    A field that holds ids is named after what they are ids of.
    """
    words = words.removesuffix(" id")
    if words.split(" ")[-1] not in _PREPOSITIONS or " " not in words:
        return words
    return _RELATIONS.get(words, to)


def field_kind(values: Sequence[Any]) -> FieldKind:
    """Return what nearly all of these values are."""
    most = _SHARE * len(values)
    if sum(isinstance(value, bool) for value in values) >= most:
        return "flag"
    if sum(isinstance(value, int | float) and not isinstance(value, bool) for value in values) >= most:
        return "number"
    if any(isinstance(value, list) for value in values):
        return "list"
    texts = [str(value) for value in values]
    if sum(TIME.fullmatch(text) is not None for text in texts) >= most:
        return "time"
    if any(len(text) > _SHORT or "\n" in text for text in texts):
        return "prose"
    return "text"


def words_for(name: str, holds: FieldKind, kind: str) -> tuple[str, str]:
    """Return the words for a field, and the unit in its name or ""."""
    words = words_of(name).split(" ")
    unit = ""
    if holds == "number" and len(words) > 1 and words[-1] in UNITS:
        unit, words = UNITS[words[-1]], words[:-1]
    if len(words) > 1 and words[0] in ("all", "every", "each"):
        words = words[1:]
    if len(words) > 1 and words[0] == kind and words[1] not in ("of", "in"):
        words = words[1:]
    counted = words[-1] == "count" or words[0] in ("num", "n", "count")
    if holds == "number" and len(words) > 1 and (counted or (words[0] == "total" and is_plural(words[-1]))):
        rest = words[:-1] if words[-1] == "count" else [word for word in words[1:] if word != "of"]
        return plural(common(singular(" ".join(rest)))), unit
    if holds == "flag" and words[0] in ("is", "has") and len(words) > 1:
        words = words[1:]
    if holds == "time":
        ending = words[-1] if words[-1] in ("at", "on", "date", "time", "day") else ""
        head = " ".join(words[:-1] if ending and len(words) > 1 else words)
        if head in _ACTIONS:
            said, action = "date" if ending in ("on", "date", "day") or head == "due" else "time", _ACTIONS[head]
            return (f"{said} of the {action}" if action.startswith("last") else f"{action} {said}"), unit
    if len(words) > 1 and words[-1] == "email":
        return f"email address of the {' '.join(words[:-1])}", unit
    if len(words) > 1 and words[-1] == "id":
        words = words[:-1] if holds == "text" else words
    return " ".join(_WORDS.get(word, word) for word in words), unit


def _unit_in(about: str) -> str:
    """Return the unit that a description names: "Temperature in celsius"."""
    found = re.search(r"(?i)\bin (?:degrees )?([a-z]{2,12})\b|\(([a-z]{2,12}|%)\)", about)
    return UNITS.get((found[1] or found[2]).lower(), "") if found else ""
