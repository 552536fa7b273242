"""Words for calls of tools that compute: what they are given, and what is asked of their results."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mcp_rl.explore import plausible
from mcp_rl.explore.answer import SHORT_TEXT, read_answer
from mcp_rl.explore.entities.fields import words_for
from mcp_rl.explore.parts import parts_of
from mcp_rl.explore.words import words_of
from mcp_rl.rewards.dates import is_dated
from mcp_rl.rewards.json_values import leaves
from mcp_rl.scenarios.goals.phrases import counted, is_plural, listed, plural, singular
from mcp_rl.scenarios.goals.values import shown
from mcp_rl.scenarios.goals.words import are_plain, make_a_noun, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import JsonValue

    from mcp_rl.explore.outcome import Outcome
    from mcp_rl.toolserver.tools.listing import Tool

_MOST_GIVEN, _LONGEST_GIVEN, _LONGEST_NUMBER = 5, 80, 8
"""Arguments of a call that a request states; characters of a text, and of a number, among them."""
_FREE_TEXT = re.compile(
    r"\b(?:texts?|messages?|content|sentences?|strings?|words?|phrases?|titles?|names?|input|paragraphs?|document|note|"
    r"comment|keys?)$"
)
"""Names of parameters that take any words."""
_SIGNED = re.compile(
    r"(?:[a-z]|[a-z]\d|.*\b(?:numbers?|num|values?|x|y|z|lat|latitude|lon|lng|longitude|temperature|temp|celsius|"
    r"fahrenheit|offset|delta|change|exponent|coordinate|base|power|coefficient|real|imaginary|angle|degrees|elevation))"
)
"""Names of numbers that may be below zero."""
_SAYS_NOTHING = frozenset(
    "result results value output answer response data message text status operation operator tool type kind service "  # noqa: SIM905
    "success error note notes name input formula formatted display summary description unit units version method "
    "expression explanation details source".split()
)
"""Names of parts of results that do not say what they hold, or that nobody asks for."""
_COMPUTES = re.compile(
    r"(?i)(?:this tool |a tool to |use this to )?(?:calculates?|computes?|returns?|gets?|finds?|determines?|estimates?|"
    r"counts?|measures?|works? out)(?: and (?:returns?|displays?))? (?:the |an? )?(?P<what>[a-z][a-z' -]{2,70}?)"
    r"(?= (?:from|given|using|based|by|with|for|if|when|as|in|to|that|and|between|via|on|at)\b|\s*[.,;:(\n]|\s*$)"
)
"""The beginning of a description, up to the words that say how."""
_OF_ITS_INPUT = re.compile(
    r"(?P<what>.+?) of (?:(?:an?|the|two|three|several|all|one|any|some|given|input|provided|non-negative|positive|"
    r"natural|real|whole|single|multiple|more|or) )*(?:(?P<list>list|array|set|series|sequence|collection) of )?"
    r"(?:number|integer|value|list|array|string|text|word|sentence|float)(?P<several>s?)"
)
"""A noun for what a tool gives, of the very values that it is given: "the greatest common divisor of two numbers"."""
_HOW = re.compile(r"\b(?:precision|decimals?|digits|places|rounding|round|format|unit|units)\b")
"""Names of parameters that say how a value is given, and belong to none."""
_SOURCE = re.compile(r"(?:from|source|input|origin)(?: \w+)?")
_TARGET = re.compile(r"(?:to|target|output|dest|destination)(?: \w+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_NUMBER = re.compile(r"(?<![\w.-])-?\d{1,15}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?(?![\w.-]*\d)", re.IGNORECASE)

_OPERATION = re.compile(r"(?:\w+ )?(?:operation|op|operator|function|func|metric|statistic|measure|method|type)")
_OF_SEVERAL = {
    "mean": "mean", "average": "mean", "median": "median", "sum": "sum", "total": "sum", "max": "maximum",
    "maximum": "maximum", "min": "minimum", "minimum": "minimum", "std": "standard deviation",
    "stdev": "standard deviation", "stddev": "standard deviation", "standard deviation": "standard deviation",
    "variance": "variance", "range": "range", "product": "product", "gcd": "greatest common divisor",
    "lcm": "least common multiple", "geometric mean": "geometric mean", "harmonic mean": "harmonic mean",
}  # fmt: skip
_NOUNS = {
    **_OF_SEVERAL, "sqrt": "square root", "square root": "square root", "cube root": "cube root", "square": "square",
    "factorial": "factorial", "sin": "sine", "cos": "cosine", "tan": "tangent", "abs": "absolute value",
    "absolute": "absolute value", "ln": "natural logarithm", "reciprocal": "reciprocal", "totient": "totient",
}  # fmt: skip
"""Nouns for operations of several numbers and of one, by the names that parameters take."""
_SPANS = ("seconds", "minutes", "hours", "days", "weeks", "months", "years", "units", "people", "nights")
_CALENDAR = ("days", "weeks", "months", "years")
"""Names of numbers that count something; units that are counted themselves in the name of a part of a result."""


@dataclass(frozen=True)
class AskedPart:
    """A part of a result, in words."""

    place: str
    """The keys under which it stands; empty for a result that is one value."""
    words: str
    """Its name in words; empty where that says nothing."""
    unit: str
    value: int | float | str


def parts_asked(outcome: Outcome) -> Iterator[AskedPart]:
    """Yield the parts of a call's result that may be asked for: those that are no part of the request themselves."""
    if is_dated(outcome.text) or _shows_today(outcome.text):
        return
    given = {shown(leaf).casefold() for leaf in leaves(outcome.arguments)}
    asked = {words_for(name, "text", "")[0] for name in flat(outcome.arguments)}
    asked |= {words_for(name, "number", "")[0] for name in flat(outcome.arguments)}
    numbers = [shown(leaf) for leaf in leaves(outcome.arguments) if isinstance(leaf, int | float)]
    parts = parts_of(outcome.text)
    for part in parts:
        name, value = str(part.path[-1]), _read(part.value)
        numeric = isinstance(value, int | float)
        if any(isinstance(step, int) for step in part.path) or sum(p.path[-1] == name for p in parts) > 1:
            continue
        if shown(value).casefold() in given or not (numeric or _is_word(value)):
            continue
        words, unit = words_for(_per(name), "number" if numeric else "text", "")
        if numeric and unit in _CALENDAR:  # 12 business days are no business in days
            words, unit = words_of(name), ""
        if words in asked or (not numeric and any(number in str(value) for number in numbers)):
            continue  # what was given, in another form
        says_nothing = words in _SAYS_NOTHING
        if says_nothing or (are_plain(words.split()) and make_a_noun(words.split())):
            yield AskedPart(".".join(map(str, part.path)), "" if says_nothing else words, unit, value)
    if not parts and (only := _only_value(outcome)) is not None:
        yield AskedPart("", "", "", only)


def _read(value: str | int | float) -> str | int | float:
    """Return a value; a text that is a number as that number."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    found = float(value)
    return int(found) if found.is_integer() and abs(found) < 1e15 else found


def _shows_today(text: str) -> bool:
    """Return whether a result holds the date of today somewhere on Earth, so that tomorrow's differs."""
    days = (datetime.now(UTC) + timedelta(days=day) for day in (-1, 0, 1))
    return any(f"{day:%Y-%m-%d}" in text for day in days)


def _only_value(outcome: Outcome) -> int | float | None:
    """Return the number that is all of a result; or that alone in a line of it was not given."""
    answer = read_answer(outcome.text, outcome.arguments)
    if isinstance(answer.value, int | float):
        return answer.value
    text = outcome.text.strip()
    if "\n" in text or len(text) > 2 * SHORT_TEXT:
        return None
    given = {float(leaf) for leaf in leaves(outcome.arguments) if isinstance(leaf, int | float)}
    new = [found for found in map(float, _NUMBER.findall(text.replace(",", ""))) if found not in given]
    return None if len(new) != 1 else int(new[0]) if new[0].is_integer() else new[0]


def _per(name: str) -> str:
    """Return the name of a part without signs that stand for words: "Price/Unit" is the price per unit."""
    return name.replace("/", " per ").replace("%", " percent ")


def _is_word(value: object) -> bool:
    """Return whether a value is a short text or a date."""
    if isinstance(value, str) and _DATE.fullmatch(value):
        return True
    return isinstance(value, str) and len(value) <= SHORT_TEXT and re.search(r"[^\W\d_]{2}", value) is not None


def flat(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call; where they are the fields of its one object, these."""
    values = list(arguments.values())
    return values[0] if len(values) == 1 and isinstance(values[0], dict) else arguments


def is_sensible(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Return whether people would ask with these values: no random words for what wants another, no path, no amount
    below zero, and numbers of few digits."""
    given = flat(arguments)
    return 0 < len(given) <= _MOST_GIVEN and all(_is_sensible(tool, words_of(n), value) for n, value in given.items())


def _is_sensible(tool: Tool, name: str, value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, int | float):
        low, high = plausible.amounts(name) or (0, math.inf)
        usual = low <= value <= high or (low == 0 > value and _SIGNED.fullmatch(name) is not None)
        return is_short(value, _LONGEST_NUMBER) and usual
    if isinstance(value, list):
        return 0 < len(value) <= 8 and all(_is_sensible(tool, name, item) for item in value)
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_GIVEN or "\n" in value:
        return False
    if "://" in value or value.startswith(("/", "~", "{", "[")):
        return False
    if not plausible.is_filling(value) or _FREE_TEXT.search(name) is not None:
        return True
    return f'"{value}"' in json.dumps(tool.input_schema)


def said_arguments(arguments: Mapping[str, Any]) -> str | None:
    """Return the arguments of a call as a clause: "the principal is 1000 and the term is 30 years"; None where one of
    them has no words."""
    clauses: list[str] = []
    for name, value in flat(arguments).items():
        numeric = isinstance(value, int | float)
        words, unit = words_for(name, "number" if numeric else "text", "")
        if re.fullmatch(r"[a-z]\d?", words):
            the, be = words, "is"
        elif numeric and words in _SPANS:
            the, be = f"the number of {words}", "is"
        elif are_plain(words.split()) and make_a_noun(words.split()) and words.split()[0] not in ("from", "to"):
            the = f"the {plural(words) if isinstance(value, list) and words != 'data' else words}"
            be = "are" if is_plural(the) or isinstance(value, list) else "is"
        else:
            return None
        clauses.append(f"{the} {be} {_measured(value, unit)}")
    return listed(clauses)


def is_short(value: float, most: int) -> bool:
    """Return whether people would read out a number: of few characters, and none of them an exponent."""
    text = shown(value)
    return len(text) <= most and "e" not in text and math.isfinite(value)


def stands_plainly(text: str, value: float) -> bool:
    """Return whether a result writes a number without a currency or separators, as a message would."""
    forms = "|".join(map(re.escape, dict.fromkeys((shown(value), str(value)))))
    return re.search(rf"(?<![\w$€£.,])(?:{forms})(?![\w,]|\.\d)", text) is not None


def _measured(value: Any, unit: str) -> str:
    """Return a value with its unit: "5%", "1 year"."""
    if not unit or not isinstance(value, int | float):
        return said_value(value)
    return f"{shown(value)}%" if unit == "%" else counted(value, unit) if value != 1 else f"1 {singular(unit)}"


def said_value(value: JsonValue) -> str:
    """Return an argument as a request states it."""
    return listed([quoted(item) for item in value]) if isinstance(value, list) else quoted(value)


def noun_of_operation(arguments: Mapping[str, Any]) -> str | None:
    """Return a noun phrase for the operation that a call names, with its values: "the median of 3, 4 and 9"; None for a
    call that names none."""
    given = dict(flat(arguments))
    if any(_HOW.search(words_of(name)) for name in given):
        return None
    names = [name for name in given if _OPERATION.fullmatch(words_of(name))]
    what = _NOUNS.get(words_of(str(given.pop(names[0])))) if len(names) == 1 else None
    values = [item for value in given.values() for item in (value if isinstance(value, list) else [value])]
    if not what or not values or not all(isinstance(value, int | float) for value in values):
        return None
    several = len(values) > 1
    if (what in _OF_SEVERAL.values()) != several:
        return None
    return f"the {what} of {listed(list(map(shown, values)))}"


def noun_of(tool: Tool) -> str:
    """Return a noun phrase for what a tool gives, as its description says; empty if it says none."""
    found = _COMPUTES.match((tool.description or "").strip())
    what = found["what"].strip().lower() if found else ""
    return what if (what and make_a_noun(what.split()) and 1 < len(what.split()) <= 9) or what.isalpha() else ""


def of_its_input(noun: str, arguments: Mapping[str, Any]) -> str | None:
    """Return a noun phrase with the values in it: "the greatest common divisor of 12 and 18"; None where it speaks of
    no values, or there are others beside."""
    found = _OF_ITS_INPUT.fullmatch(noun)
    values = list(flat(arguments).values())
    if found is None or not values or len(values) > 3 or any(_HOW.search(words_of(name)) for name in flat(arguments)):
        return None
    if len(values) > 1 and (found["list"] or not found["several"]):
        return None
    kinds = {str if isinstance(value, str) else list if isinstance(value, list) else float for value in values}
    if len(kinds) != 1 or (len(values) > 1 and kinds != {float}):
        return None
    return f"the {found['what']} of {listed([said_value(value) for value in values])}"


def conversion(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return an amount with its unit, and the unit that it is to be converted to; None for another kind of call."""
    given = flat(arguments)
    amounts = [value for value in given.values() if isinstance(value, int | float) and not isinstance(value, bool)]
    sources = [value for name, value in given.items() if isinstance(value, str) and _SOURCE.fullmatch(words_of(name))]
    targets = [value for name, value in given.items() if isinstance(value, str) and _TARGET.fullmatch(words_of(name))]
    about = [name for name in given if re.search(r"\b(?:type|category|kind|dimension|quantity)$", words_of(name))]
    if not len(amounts) == len(sources) == len(targets) == 1 or sources == targets or len(given) - len(about) != 3:
        return None
    if not all(re.fullmatch(r"[^\W\d_][\w /°^*.-]{0,30}|°[A-Za-z]", unit) for unit in (*sources, *targets)):
        return None
    source, target = _several(sources[0]), _several(targets[0])
    return f"{shown(amounts[0])} {sources[0] if amounts[0] == 1 else source}", target


def _several(unit: str) -> str:
    """Return the plural of a unit that is a word."""
    is_word = re.fullmatch(r"[a-z]{4,}", unit) is not None and unit not in ("celsius", "fahrenheit", "kelvin", "hertz")
    return plural(unit) if is_word else unit
