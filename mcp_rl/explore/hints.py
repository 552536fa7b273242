"""Hints in error texts at the values that a tool accepts: alternatives, or a range."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.complaint import object_in

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER = r"(-?\d+(?:\.\d+)?)"
_ITEM = r"(?:'[^'\n]{1,60}'|\"[^\"\n]{1,60}\"|`[^`\n]{1,60}`|[\w./:@+-]{1,60})"
_LIST = re.compile(
    r"(?i)\b(?:one of|known|available|allowed|valid|supported|possible|accepted|existing|options|choose|expected|are"
    r"|be)\b"
    rf"[^'\"`\n,;:\[({{]{{0,30}}?[:\s]*[\[({{]?\s*(?<!\w)({_ITEM}(?:\s*(?:,|\||;|\bor\b|\band\b)+\s*{_ITEM})+)"
)
_LIST_KEY = re.compile(
    r"(?i)(?:available|allowed|valid|supported|possible|accepted|existing|known|expected)(?:[ _-]?\w{1,40})?"
    r"|options|choices"
)
"""The key of a list in JSON that says which values are accepted: `available_actions`."""
_DEEPEST, _LONGEST_ITEM = 3, 60
_EXAMPLE = re.compile(
    r"(?i),?\s{0,3}(?:\be\.g\.,?|\bfor example,?|\bsuch as|\blike|\bexamples?:|\bformat:?)"
    r"\s{0,3}['\"`]([^'\"`\n]{1,60})['\"`]"
)
_BETWEEN = re.compile(rf"(?i)\b(?:between|from|range|in)\W+{_NUMBER}\s*(?:and|to|-|\u2013|,|\.\.)\s*{_NUMBER}")
_LEAST = re.compile(
    r"(?i)(?:>=|\b(?:greater|more|larger) than or equal to|\bat least|\bnot (?:be )?(?:less|smaller|lower) than"
    rf"|\bno less than|\bminimum\D{{0,12}})\s*{_NUMBER}"
)
_MOST = re.compile(
    r"(?i)(?:<=|\b(?:less|smaller|lower) than or equal to|\bat most|\bnot (?:be )?(?:more|greater|larger|higher) than"
    rf"|\bno more than|\bup to|\bmaximum\D{{0,12}})\s*{_NUMBER}"
)
_ABOVE = re.compile(rf"(?i)(?:\b(?:greater|more|larger|higher) than|>)\s*{_NUMBER}")
_STATEMENT = r"(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER)(?: (?:INTO|FROM|TABLE))?"
_ONLY = re.compile(rf"\b[Oo]nly ({_STATEMENT}(?:(?:, ?|/| )(?:(?:or|and) )?{_STATEMENT}){{0,7}})")
_STATEMENT_KINDS = {"SELECT": "select", "CREATE": "create", "ALTER": "alter"}
_NAME = r"['\"`]?[A-Za-z_]\w{0,40}['\"`]?"
_NAMES = rf"({_NAME}(?:(?:, ?(?:and |or )?| and | or | & ){_NAME}){{0,7}})"
_NEEDS = re.compile(
    rf"(?i)\b(?:requires?|missing required|required|missing|needs?|provide|specify|must (?:give|pass|have|include|set))"
    rf"(?: (?:parameters?|arguments?|fields?|both|either|at least))?(?: one of)?\s?:? {_NAMES}"
    rf"|(?<!\w){_NAMES} (?:is|are|must be) (?:required|missing|needed|provided|given|set|specified)\b"
)
_NOT_A_NUMBER = re.compile(
    r"(?i)\binvalid literal for int\(\)|\bcould not convert string to float|\binvalid digit found in string"
    r"|\bFor input string: |\binput string '?[^']{0,60}'? ?was not in a correct format"
    r"|\bstrconv\.(?:Atoi|Parse(?:Int|Uint|Float))\b|\bInvalid literal for Fraction|\bConversionSyntax\b"
    r"|\bnot an? (?:valid )?(?:whole |decimal )?(?:number|integer|float|numeric value)\b"
    r"|\b(?:invalid|non-numeric|not numeric) (?:number|integer|numeric value|value|input)\b"
    r"|\b(?:must be|should be|expected|expects|as) (?:an? )?(?:valid )?(?:whole |decimal )?"
    r"(?:number|integer|float|numeric)s?\b"
)
"""Errors of programs, in several languages, that were given a text and expected a number."""
NUMBERS = [str(number) for number in (*range(2, 100), *range(110, 1000, 10))]
"""Numbers as texts, whole ones since `int` and `float` both read them."""
_MOST_ITEMS = 50
_READ, _READ_JSON = 4000, 20_000
"""Number of characters of an error that are read, and of one in JSON."""


@dataclass(frozen=True)
class Bounds:
    """Range of numbers that a tool accepts, both ends included."""

    low: float = -math.inf
    high: float = math.inf

    def within(self, other: Bounds) -> Bounds:
        """Return the intersection of both ranges, or this range where it is empty."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Bounds(low, high) if low <= high else self


def alternatives(text: str) -> list[str]:
    """Return the values that the text offers: "must be one of: red, green" gives both."""
    values: dict[str, None] = {}
    for listed in _LIST.findall(_beginning(text)):
        for item in re.split(rf"\s*(?:,|\||;|\bor\b|\band\b)+\s*(?={_ITEM})", listed):
            value = item.strip().strip("'\"`").rstrip(".")
            if value:
                values[value] = None
    return list(values)[:_MOST_ITEMS]


def needed_names(text: str) -> list[str]:
    """Return the words that the text may name as parameters to be given: "create requires ns and key" gives both."""
    listed = [names for pair in _NEEDS.findall(_beginning(text)) for names in pair if names]
    return list(dict.fromkeys(name for names in listed for name in re.findall(r"\b(?!(?:and|or)\b)\w+", names)))[
        :_MOST_ITEMS
    ]


def statement_kind(text: str) -> str | None:
    """Return the kind of SQL that the text calls the only one: "Only ALTER TABLE statements are allowed" gives alter.

    The kinds are those of `world.sql_meaning`.
    """
    found = _ONLY.search(_beginning(text))
    if found is None:
        return None
    verbs = re.findall(r"SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER", found[1])
    kinds = {_STATEMENT_KINDS.get(verb, "change") for verb in verbs}
    return kinds.pop() if len(kinds) == 1 else "any"


def offered(text: str) -> list[str]:
    """Return the values that the text gives as examples, then those that it lists: "a cell like 'A1'" gives A1.

    A text of JSON may list them under a key such as `available_actions`.
    """
    listed = list(_listed(object_in(text[:_READ_JSON])))
    text = _beginning(text)
    found = listed or [*_EXAMPLE.findall(text), *alternatives(_EXAMPLE.sub("", text))]
    return list(dict.fromkeys(found))[:_MOST_ITEMS]


def wants_number(text: str) -> bool:
    """Return whether the error says that a text should be a number: "could not convert string to float: 'red'"."""
    return _NOT_A_NUMBER.search(_beginning(text)) is not None


def _listed(value: Any, depth: int = 0) -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) and depth < _DEEPEST else ():
        if isinstance(inner, list) and _LIST_KEY.fullmatch(key):
            yield from (one for one in inner if isinstance(one, str) and 0 < len(one) <= _LONGEST_ITEM)
        yield from _listed(inner, depth + 1)


def _beginning(text: str) -> str:
    """Return the beginning of an error, with white space collapsed: a server may send any amount."""
    return " ".join(text[:_READ].split())


def bounds(text: str) -> Bounds | None:
    """Return the range that the text names: "must be between 1 and 100", "at most 5", "a positive number"."""
    text = _beginning(text)
    if found := _BETWEEN.search(text):
        low, high = float(found[1]), float(found[2])
        return Bounds(low, high) if low <= high else None
    least, most, above = _LEAST.search(text), _MOST.search(text), _ABOVE.search(text)
    low = float(least[1]) if least else float(above[1]) + 1 if above else -math.inf
    if low == -math.inf and re.search(r"(?i)\bpositive\b", text):
        low = 1.0
    if low == -math.inf and re.search(r"(?i)\b(?:non-?negative|not be negative)\b", text):
        low = 0.0
    high = float(most[1]) if most else math.inf
    return Bounds(low, high) if (low, high) != (-math.inf, math.inf) and low <= high else None
