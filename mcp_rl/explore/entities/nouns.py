"""Nouns: singular and plural, and what a tool's name or a list's name says that its things are.

A few rules and exceptions: a library for English (inflect) takes two seconds to import.
"""

# ruff: noqa: SIM905 - lists of words are read as words

from __future__ import annotations

import re

from mcp_rl.explore.words import words_of

_IRREGULAR = {
    "people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "feet": "foot",
    "teeth": "tooth", "geese": "goose", "indices": "index", "indexes": "index", "vertices": "vertex",
    "matrices": "matrix", "analyses": "analysis", "criteria": "criterion", "statuses": "status", "buses": "bus",
    "aliases": "alias", "movies": "movie", "cookies": "cookie", "leaves": "leaf", "shelves": "shelf", "lives": "life",
    "wolves": "wolf", "knives": "knife", "heroes": "hero", "potatoes": "potato", "tomatoes": "tomato",
    "quizzes": "quiz", "calories": "calorie", "ties": "tie", "pies": "pie", "caches": "cache", "databases": "database",
    "axes": "axis", "bases": "base", "cases": "case", "courses": "course", "houses": "house", "licenses": "license",
    "expenses": "expense", "purchases": "purchase", "responses": "response", "releases": "release",
    "phrases": "phrase", "purposes": "purpose", "exercises": "exercise", "diagnoses": "diagnosis",
}  # fmt: skip
_IRREGULAR_PLURALS = {singular: plural for plural, singular in _IRREGULAR.items() if plural != "indexes"}
_NO_PLURALS = set(
    "status address class process access success series species news bus gas lens alias canvas focus bonus campus "
    "virus corpus census basis analysis axis thesis crisis progress business always this is was has us dns https sms "
    "previous various famous serious continuous as gps aws ms kubernetes redis paris texas james atlas pandas plus "
    "minus chess less loss boss glass grass cross press express wireless address stress mass pass bias".split()
)
_UNCOUNTABLE = set("data information weather metadata content text media news series feedback history".split())
_VERBS = set(
    "add all append ask available browse calculate check close commit compare convert count create current delete "
    "describe details download edit execute export fetch find full generate get give global import insert inspect list "
    "load lookup make many multiple my new of open parse print query read recent remove retrieve run save search see "
    "select set show the a an to by for from in on with and or view watch write info allowed known latest log lookup "
    "raw stored total up top recall remember which".split()
)
_ENDS = {"between", "among", "this", "per", "than", "since", "until", "where", "within"}
"""Words after which a list's name says nothing more of what it lists."""
GENERIC = set(
    "item result entry record row object element node entity thing data content value response match hit output list "
    "line resource input info detail text key name id type field property page tree graph log history status structure "
    "summary overview index catalog children".split()
)
"""Nouns that say nothing of a thing."""
_OF_FOLDERS = frozenset(
    "working root home base project parent target source output data temp upload download cache sub file".split()
)
"""Words before "directory" that mean a folder."""
_OTHER_NAMES = {
    "dir": "folder", "directory": "folder", "repo": "repository", "doc": "document", "img": "image",
    "knowledge": "knowledge entry",
}  # fmt: skip


def singular(noun: str) -> str:
    """Return the singular of a noun in lower case; a singular stays as it is."""
    head, space, last = noun.rpartition(" ")
    if last in _IRREGULAR:
        last = _IRREGULAR[last]
    elif last in _NO_PLURALS or last in _UNCOUNTABLE or len(last) < 3 or not last.endswith("s") or last.endswith("ss"):
        pass
    elif last.endswith("es") and len(last) > 4 and last[:-2] in _NO_PLURALS:
        last = last[:-2]
    elif last.endswith("ies") and len(last) > 4:
        last = last[:-3] + "y"
    elif re.search(r"(?:[sxz]|ch|sh)es$", last) and not re.search(r"(?:[aeiou]|n|r)ses$|zes$", last):
        last = last[:-2]
    elif not last.endswith(("us", "is")):
        last = last[:-1]
    return f"{head}{space}{last}"


def plural(noun: str) -> str:
    """Return the plural of a singular noun in lower case."""
    head, space, last = noun.rpartition(" ")
    if last in _IRREGULAR_PLURALS:
        last = _IRREGULAR_PLURALS[last]
    elif last in _UNCOUNTABLE:
        pass
    elif re.search(r"[^aeiou]y$", last):
        last = last[:-1] + "ies"
    elif re.search(r"(?:s|x|z|ch|sh)$", last):
        last += "es"
    else:
        last += "s"
    return f"{head}{space}{last}"


def with_article(noun: str) -> str:
    """Return a singular noun with "a" or "an"."""
    an = re.match(r"(?i)[aio]|e(?!u)|u(?!ni|se|ri|ti)|hour|honou?r|heir", noun) is not None
    return f"{'an' if an else 'a'} {noun}"


def is_plural(word: str) -> bool:
    """Return whether a word is a plural."""
    last = words_of(word).rpartition(" ")[2]
    return singular(last) != last


def noun_in(name: str) -> str:
    """Return the singular noun at the end of a list's name, such as "note" for `all_notes`; empty if there is none."""
    words = words_of(name.partition(" (")[0]).split(" ")
    words = words[: next((at for at, word in enumerate(words) if at and word in _ENDS), None)]
    kept = [word for word in words if word.isalpha() and word not in _VERBS]
    return common(singular(kept[-1])) if kept else ""


def noun_of_tool(name: str, prefix: str = "") -> str:
    """Return the singular noun in a tool's name, such as "note" for `search_notes`; empty if there is none.

    `prefix` is the word with which all names of the server's tools begin.
    """
    words = words_of(name).split(" ")
    if prefix and words[:1] == [prefix]:
        words = words[1:]
    for stop in ("by", "for", "from", "in", "of", "with", "to"):
        if stop in words[1:]:
            words = words[: words.index(stop, 1)]
    kept = [word for word in words if word.isalpha() and word not in _VERBS]
    if len(kept) > 1 and kept[-1] == "directory" and kept[-2] not in _OF_FOLDERS:
        return "directory"  # of people, as a phone directory is
    return common(singular(kept[-1])) if kept else ""


def common(noun: str) -> str:
    """Return the word that people use for a thing: "folder" for a directory."""
    return _OTHER_NAMES.get(noun, noun)
