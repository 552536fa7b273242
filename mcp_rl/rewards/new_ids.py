"""Ids that a server makes anew each time, such as a random one of each thing that is created.

Where the same calls are made in two episodes, results differ in these ids only. The keys of JSON objects that hold
them, or the words beside them in other texts, tell which ids are not to be compared, there and in later episodes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.json_values import unordered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_ID = re.compile(r"[\w.:@-]{4,64}")
_SHORTEST_WORD = 12
"""Characters of a token without a digit that may be an id where nothing says so."""
_SAYS_ID = re.compile(r"(?i)(?:^|[_\W])(?:id|uuid|guid|hash|sha|key|ref|handle|token|slug)s?$|[a-z]Ids?$|UUIDs?$")
_MOST = 8
"""Most places of one text that hold new ids."""
_MARKED = re.compile(r"\\u0000(.*?)\\u0000")


def new_ids(one: str, other: str) -> tuple[str, ...] | None:
    """Return the places of the ids in which two results differ: keys of JSON objects, or for other texts regular
    expressions with one group. None if they differ in anything else, too."""
    if one == other:
        return ()
    values = _container(one), _container(other)
    places = _places_in_text(one, other) if None in values else _places_in_json(*values)
    if not places or len(places) > _MOST or with_ids_numbered(one, places) != with_ids_numbered(other, places):
        return None
    return places


def with_ids_numbered(text: str, places: Collection[str]) -> str:
    """Return a result with the ids at these places replaced by numbers, and objects in lists in an order of their own.

    What refers to one thing has one number. A text that is no JSON object or list has no numbers, as what refers to
    what is not known.
    """
    return _with_ids_numbered(text, tuple(places))


@lru_cache(maxsize=16)
def _with_ids_numbered(text: str, places: tuple[str, ...]) -> str:
    """Do the work of `with_ids_numbered`. The last few texts are kept, since many results are compared with one."""
    value = _container(text)
    if value is None:
        for place in places:
            if "(" in place:
                text = _without(text, place)
        return text
    return numbered(value, places)


def numbered(value: Any, places: Collection[str]) -> str:
    """Return a JSON object or list as `with_ids_numbered` does its text."""
    marked = _mapped(value, lambda key, leaf: f"\0{leaf}\0" if key in places else leaf)
    marked = unordered(marked, seen=lambda text: _MARKED.sub("<id>", text))
    numbers: dict[str, int] = {}
    text = json.dumps(marked, sort_keys=True)
    return _MARKED.sub(lambda found: f"<id {numbers.setdefault(found[1], len(numbers) + 1)}>", text)


def _places_in_json(one: Any, other: Any) -> tuple[str, ...]:
    sides = _leaves_by_key(one), _leaves_by_key(other)
    places = []
    for key in sides[0].keys() & sides[1].keys():
        differing = [*(sides[0][key] - sides[1][key]), *(sides[1][key] - sides[0][key])]
        if differing and all(_may_be_id(key, leaf) for leaf in differing):
            places.append(key)
    return tuple(sorted(places))


def _may_be_id(key: str, leaf: str) -> bool:
    return _ID.fullmatch(leaf) is not None and bool(_SAYS_ID.search(key) or re.search(r"\d", leaf))


def _leaves_by_key(value: Any) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}

    def note(key: str, leaf: Any) -> Any:
        found.setdefault(key, Counter())[str(leaf)] += 1
        return leaf

    _mapped(value, note)
    return found


def _mapped(value: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """Return a JSON value with each string or number, under the nearest key above it, changed."""
    if isinstance(value, dict):
        return {name: _mapped(inner, change, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, change, key) for inner in value]
    return change(key, value) if isinstance(value, str | int) and not isinstance(value, bool) and key else value


def _places_in_text(one: str, other: str) -> tuple[str, ...]:
    """Return expressions for the words in which lines differ that are alike in all else."""
    sides = one.splitlines(), other.splitlines()
    if len(sides[0]) != len(sides[1]):
        return ()
    left = [sorted((Counter(mine) - Counter(theirs)).elements()) for mine, theirs in (sides, sides[::-1])]
    waiting = list(left[1])
    found: dict[str, None] = {}
    for line in left[0]:
        places = next(
            ((at, ids) for at, other_line in enumerate(waiting) if (ids := list(_differing_words(line, other_line)))),
            None,
        )
        if places is None:
            return ()
        waiting.pop(places[0])
        found.update(dict.fromkeys(places[1]))
    return tuple(found)


def _differing_words(line: str, other: str) -> Iterator[str]:
    """Yield expressions for the words in which two lines differ; nothing if one of them is no id, or all else is not
    the same."""
    words = list(_TOKEN.finditer(line)), list(_TOKEN.finditer(other))
    if _TOKEN.sub("", line) != _TOKEN.sub("", other) or len(words[0]) != len(words[1]):
        return
    expressions = []
    for at, (mine, theirs) in enumerate(zip(*words, strict=True)):
        if mine[0] == theirs[0]:
            continue
        before = words[0][at - 1].end() if at else 0
        after = words[0][at + 1].start() if at + 1 < len(words[0]) else len(line)
        beside, behind = line[before : mine.start()], line[mine.end() : after]
        said = words[0][at - 1][0] if at else ""
        if not all(_is_random(word[0], said) for word in (mine, theirs)):
            return
        start = "^" if not at else re.escape(said) if not beside.strip() or _SAYS_ID.search(said) else ""
        expressions.append(f"(?m){start}{_escaped(beside)}([A-Za-z0-9_-]+){_escaped(behind) or '$'}")
    yield from expressions


def _is_random(word: str, said: str) -> bool:
    if len(word) < 4:
        return False
    return bool(re.search(r"\d", word) or _SAYS_ID.search(said)) or len(word) >= _SHORTEST_WORD


def _escaped(text: str) -> str:
    return re.sub(r"\s+", r"\\s+", re.sub(r"[^\w\s]", lambda found: "\\" + found[0], text))


def _without(text: str, expression: str) -> str:
    """Return the text with what the expression's group matches left out."""
    pieces, at = [], 0
    for found in _compiled(expression).finditer(text):
        pieces += [text[at : found.start(1)], "<id>"]
        at = found.end(1)
    return "".join([*pieces, text[at:]])


@lru_cache(maxsize=256)
def _compiled(expression: str) -> Any:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    return re2.compile(expression, options=options)


def places_problem(places: Any) -> str | None:
    """Return what is wrong with the option `new_ids` of a verifier, or None."""
    import re2

    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        return f"has the option new_ids, which must be a list of keys or regular expressions, not {places!r}"
    for place in places:
        try:
            if "(" in place and _compiled(place).groups != 1:
                return f"has {place!r} in new_ids, which needs one group around the id"
        except re2.error:
            return f"has {place!r} in new_ids, which is not a regular expression in RE2's syntax"
    return None


def _container(text: str) -> Any:
    """Return the JSON object or list that a text is, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None
