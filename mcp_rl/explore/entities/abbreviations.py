"""Abbreviated names of fields: the long word where the server spells it somewhere itself."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.nouns import singular
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from mcp_rl.toolserver.tools.listing import Tool

_LONG = {
    "acc": ("account", "accuracy"), "act": ("activity", "action"), "auth": ("author",), "cal": ("calories",),
    "cals": ("calories",), "cond": ("condition",), "cust": ("customer",), "dep": ("department", "departure"),
    "dist": ("distance", "district"), "dur": ("duration",), "est": ("estimate", "estimated"),
    "exp": ("experience", "expiry", "expiration"), "fib": ("fiber", "fibre"), "inv": ("inventory", "invoice"),
    "loc": ("location",), "ord": ("order",), "org": ("organization", "organisation"), "pop": ("population",),
    "pro": ("protein", "proteins"), "prod": ("product",), "prof": ("professor", "profession"), "prot": ("protein",),
    "rev": ("revenue", "revision"), "seq": ("sequence",), "spec": ("specification",), "stat": ("status",),
    "val": ("value",), "ver": ("version",), "vol": ("volume",),
}  # fmt: skip
"""Long words for which a short one may stand."""
_KNOWN = frozenset(("gps", "tv", "pdf", "rss", "dvd", "cd", "bpm", "rpm", "kwh", "km", "kg", "mph"))
"""Words without vowels that everybody knows."""
_NAME = re.compile(r'"(\w{1,40})"\s?:')
_MOST_TEXT = 50_000


def is_unclear(word: str) -> bool:
    """Return whether a word in the name of a field may mean nothing to a stranger."""
    return word in _LONG or (len(word) > 1 and re.search(r"[aeiouy]", word) is None and word not in _KNOWN)


def spelled(words: str, known: Collection[str]) -> str:
    """Return words with those long ones for short ones that are among the server's own, which are `known`."""
    return " ".join(_long(word, known) for word in words.split(" "))


def _long(word: str, known: Collection[str]) -> str:
    """Return the only known word that a short one may stand for, else the word itself."""
    found = {singular(one): one for one in _LONG.get(word, ()) if one in known}
    return next(iter(found.values())) if len(found) == 1 else word


def words_used(tools: Iterable[Tool], results: Iterable[str]) -> frozenset[str]:
    """Return the words in what a server says of its tools, and in the names inside their results."""
    found: set[str] = set()
    for tool in tools:
        said = f"{tool.name} {tool.description or ''} {json.dumps([tool.input_schema, tool.output_schema])}"
        found.update(words_of(said[:_MOST_TEXT]).split(" "))
    for name in {name for text in results for name in _NAME.findall(text[:_MOST_TEXT])}:
        found.update(words_of(name).split(" "))
    return frozenset(found)
