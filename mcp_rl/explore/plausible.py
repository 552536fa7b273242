"""Plausible values: words, names, sentences, and values that a parameter's name, format or description suggests."""

# ruff: noqa: SIM905 - lists of words are read as words

from __future__ import annotations

import math
import re
import zoneinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

WORDS = (
    "apple river stone cloud garden yellow seven planet window coffee bridge music silver forest orange letter "
    "ocean candle mirror rabbit winter summer pocket ticket engine castle island market paper pencil purple "
    "rocket saddle tunnel velvet walnut zebra anchor basket copper desert ember falcon guitar harbor jacket"
).split()
NAMES = "Ada Alan Grace Linus Maria Noah Olga Pablo Rosa Samir Tara Yuki Omar Lena Hugo Ines".split()
CITIES = "Paris Oslo Lima Tokyo Cairo Boston Madrid Sydney Nairobi Toronto Berlin Seoul".split()
_SUBJECTS = "the cat,my friend,our team,the old train,a small robot,the teacher,a quiet child".split(",")
_VERBS = "sees,likes,finds,paints,carries,follows,remembers".split(",")
_OBJECTS = "a red door,the blue boat,two green apples,an open book,the last bus,a warm coat,some music".split(",")
_FEW = 6
"""Words of a description that may name just two choices: "read or write"."""
_COUNTRY = re.compile(r"(?:\w+ )?country(?: name)?")
_COUNTRIES = "Norway Peru Japan Kenya Canada France Germany Brazil India Egypt".split()
_COUNTRY_CODES = "NO PE JP KE CA FR DE BR IN EG".split()
_CODE = re.compile(r"(?i)\bcodes?\b|\biso(?:[ -]?\d|\b)|\balpha-?[23]\b|\b(?:two|2)-letter\b")
_PARTS = {r"\byear$|^year of\b": (2015, 2030), r"\bmonth$": (1, 12), r"\bhour$": (0, 23), r"\bminute$": (0, 59)}
"""The least and the largest value of parts of dates and times, by what a parameter's name ends in."""
_AMOUNTS: tuple[tuple[str, tuple[float, float], bool], ...] = (
    (r"\b(?:pct|percent(?:age)?|percentile)$|\brates?$|\b(?:return|yield|inflation)$|"
     r"\brate (?:pct|percent)", (0.5, 20), False),
    (r"\b(?:term|duration|life|lifetime|tenure|period)? ?years$|\buseful life$", (1, 30), True),
    (r"\bmonths$", (1, 60), True),
    (r"\bage(?: years)?$", (18, 80), True),
    (r"\bweight (?:kgs?|kilograms?)$|^weight$", (45, 110), True),
    (r"\bheight cms?$", (150, 195), True),
    (r"\bheight m(?:eters?)?$", (1.5, 1.95), False),
    (r"\b(?:salary|income|revenue|sales|principal|loan(?: amount)?|mortgage|investment|budget|profit|capital|earnings|"
     r"net worth|present value|future value)$", (1000, 90000), True),
    (r"\b(?:price|cost|costs|cogs|fee|fees|amount|payment|payments|deposit|balance|total|subtotal|bill|expenses?|wages?|"
     r"value)(?: per unit| usd| eur| dollars)?$", (5, 900), True),
    (r"\b(?:width|height|length|radius|diameter|depth|side|distance|area|volume|speed|mass|quantity|qty|units|hours|"
     r"minutes|seconds|days|weeks|people|guests|servings)(?: [a-z]{1,3})?$", (1, 60), True),
)  # fmt: skip
"""The least and the largest value of amounts, by what a parameter's name ends in, and whether most are whole."""
_WHOLE = 0.8
"""Share of whole numbers among such amounts."""
_OF_DATE = re.compile(r"(?i)\W*(?:(?:the |an? )?(?:\w{1,20} ){0,2}(?:date|day)\b|yyyy)")
_DATE_FORM = re.compile(r"(?i)\byyyy-mm-dd\b(?![t ]hh)")
_PATTERNS = ("*.txt", "*.md", "*.json", "*.py", "*", "**/*", "**/*.txt", "*.csv")
_ZONES = sorted(zone for zone in zoneinfo.available_timezones() if re.fullmatch(r"[A-Z]\w+/[A-Z]\w+", zone)) or ["UTC"]


def word(random: random.Random) -> str:
    """Return one or two words."""
    return " ".join(random.sample(WORDS, random.choice([1, 1, 1, 2])))


_FILLING = frozenset(" ".join((*WORDS, *_SUBJECTS, *_VERBS, *_OBJECTS)).split())


def is_filling(text: str) -> bool:
    """Return whether a text is made of the words and sentences that stand where nothing better is known."""
    words = text.split()
    return bool(words) and all(word in _FILLING for word in words)


def sentence(random: random.Random) -> str:
    """Return a short sentence without a full stop."""
    return " ".join(random.choice(part) for part in (_SUBJECTS, _VERBS, _OBJECTS))


def _date(random: random.Random) -> str:
    return f"{random.randint(1990, 2030)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _time(random: random.Random) -> str:
    return f"{random.randint(0, 23):02}:{random.randint(0, 59):02}"


def _email(random: random.Random) -> str:
    return f"{random.choice(NAMES).lower()}@example.com"


def _url(random: random.Random) -> str:
    return f"https://example.com/{random.choice(WORDS)}"


def _uuid(random: random.Random) -> str:
    digits = f"{random.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _command(random: random.Random) -> str:
    one, other = random.choice(WORDS), random.randint(2, 90)
    return random.choice(
        ["pwd", "ls", f"echo {one}", f"expr {other} + {len(one)}", f"seq {other % 9 + 1}", f"basename /home/{one}.txt"]
    )


_FORMATS: dict[str, Callable[[random.Random], str]] = {
    "date": _date,
    "time": lambda random: f"{_time(random)}:00Z",
    "date-time": lambda random: f"{_date(random)}T{_time(random)}:00Z",
    "duration": lambda random: f"P{random.randint(1, 30)}D",
    "email": _email,
    "idn-email": _email,
    "hostname": lambda random: f"{random.choice(WORDS)}.example.com",
    "ipv4": lambda random: f"192.0.2.{random.randint(1, 254)}",
    "ipv6": lambda random: f"2001:db8::{random.randint(1, 9999):x}",
    "uri": _url,
    "url": _url,
    "uri-reference": _url,
    "iri": _url,
    "uuid": _uuid,
    "regex": lambda random: f"{random.choice(WORDS)}.*",
    "json-pointer": lambda random: f"/{random.choice(WORDS)}",
}

_HINTS: tuple[tuple[str, Callable[[random.Random], str]], ...] = (
    (r"time ?zone|\biana\b", lambda random: random.choice(_ZONES)),
    (r"e-?mail", _email),
    (r"\bur[li]\b|\blink\b", _url),
    (r"yyyy-mm-dd|\bdate\b", _date),
    (r"hh:mm|\btime\b", _time),
    (r"\bglob|\bpatterns?\b", lambda random: random.choice(_PATTERNS)),
    (r"\bcity\b|\blocation\b", lambda random: random.choice(CITIES)),
    (r"^(?:shell |bash |terminal )?(?:command|cmd)(?: line)?$", _command),
    (r"\bnames?\b|\bauthor\b|\buser\b", lambda random: random.choice(NAMES)),
    (r"\btext\b|\bmessage\b|\bcontent\b|\bsentence\b|\bnote\b", sentence),
)


_ADDRESS = re.compile(r"\bur[il]s?\b|\bhref\b|\bweb ?(?:page|site)\b|\blinks?$")
_FILE_TYPES = {
    r"excel|xlsx|spreadsheet": (".xlsx", ".xls", ".xlsm"),
    r"csv": (".csv",),
    r"json": (".json",),
    r"markdown": (".md",),
    r"ya?ml": (".yaml", ".yml"),
    r"xml": (".xml",),
    r"html": (".html",),
    r"pdf": (".pdf",),
    r"word|docx": (".docx",),
    r"image|picture": (".png", ".jpg", ".jpeg"),
    r"sqlite|database": (".db", ".sqlite", ".sqlite3"),
}


_ENDING = re.compile(r"(?<![\w.*/\\])\.(?:[A-Za-z]{2,4}\d?|[A-Za-z]\d|sqlite3?|ipynb|jsonl|parquet)(?![\w./-])")
_NO_ENDINGS = frozenset({".env", ".git", ".net", ".com", ".org"})


@lru_cache(maxsize=256)
def file_endings(description: str) -> tuple[str, ...]:
    """Return the endings of the files that a description speaks of, such as "the Excel file" or "(.xls)"; empty for
    any file."""
    if named := named_endings(description):
        return named
    for kind, found in _FILE_TYPES.items():
        if re.search(rf"\b(?:{kind}) (?:files?|workbooks?|documents?)\b", description.lower()):
            return found
    return ()


def named_endings(text: str) -> tuple[str, ...]:
    """Return the endings that a text names alone, as in "only .xls files"."""
    return tuple(dict.fromkeys(one.lower() for one in _ENDING.findall(text) if one.lower() not in _NO_ENDINGS))


def counts_something(parameter: str) -> bool:
    """Return whether a number of this name is a count: a whole number from 1."""
    return (
        re.search(r"\b(count|limit|head|tail|lines?|size|steps?|page|index|ids?|max|min|top|number of|n)\b", parameter)
        is not None
    )


def clock_or_calendar(parameter: str) -> tuple[int, int] | None:
    """Return the least and the largest value of a number that is a part of a date or a time, such as "start year";
    None for any other."""
    if re.search(r"\bper\b|\bof months?$", parameter):
        return None
    return next((bounds for part, bounds in _PARTS.items() if re.search(part, parameter)), None)


def amounts(parameter: str) -> tuple[float, float] | None:
    """Return the range of the amounts that people would name for a parameter; None where it is not known."""
    return next((bounds for name, bounds, _ in _AMOUNTS if re.search(name, parameter)), None)


def amount(parameter: str, random: random.Random, *, whole: bool) -> float | None:
    """Return an amount that people would name for a parameter: a price, a rate, a number of years; None for others."""
    for name, (low, high), mostly_whole in _AMOUNTS:
        if re.search(name, parameter):
            if whole or (mostly_whole and random.random() < _WHOLE):
                value = random.randint(math.ceil(low), int(high))
                return round(value, -2) if value > 2000 else round(value, -1) if value > 200 else value
            return round(random.uniform(low, high), 2 if high < 1000 else 0)
    return None


def is_narrow(parameter: str, description: str) -> bool:
    """Return whether a text of this name takes a date or a country, and no other word."""
    return (
        _COUNTRY.fullmatch(parameter) is not None
        or re.search(r"\bdate$", parameter) is not None
        or (_OF_DATE.match(description) is not None and _DATE_FORM.search(description) is not None)
    )


def of_format(name: str, random: random.Random) -> str | None:
    """Return a string of a JSON Schema `format`, or None for an unknown format."""
    make = _FORMATS.get(name)
    return make(random) if make else None


def hinted(parameter: str, description: str, random: random.Random) -> str | None:
    """Return a string that the parameter's name or else its description suggests, or None."""
    if _COUNTRY.fullmatch(parameter):
        code, name = _CODE.search(description), re.search(r"(?i)\bname\b", description)
        by_name = parameter.endswith("name") or (description != "" and code is None)
        by_code = not by_name and code is not None and name is None
        return random.choice([*_COUNTRIES * (not by_code), *_COUNTRY_CODES * (not by_name)])
    for text in (parameter, description.lower()):
        for hint, make in _HINTS:
            if re.search(hint, text):
                return make(random)
    return None


def takes_address(parameter: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a parameter of this name (in words) and schema takes the address of a page."""
    return schema.get("format") in ("uri", "url", "iri") or _ADDRESS.search(parameter) is not None


def listed(description: str, *, between: str = "or|and") -> list[str]:
    """Return the words that a description lists as choices: "a todo, issue or epic", "(low, high)", "low/medium/high".

    `between` joins the last two words of a list in a sentence.
    """
    found: dict[str, None] = {}
    text = " ".join(description.split())
    for first, others, last in re.findall(rf"([\w-]+)((?:, [\w-]+)*),? (?:{between}) ([\w-]+)", text):
        if others:
            found |= dict.fromkeys([first, *others.removeprefix(", ").split(", "), last])
    for row in re.findall(r"[(\[:] ?([\w-]+(?:, ?[\w-]+)+) ?(?:[)\].;]|$)", text):
        found |= dict.fromkeys(re.split(", ?", row))
    for row in re.findall(r"(?<![\w/.|-])([\w-]+(?: ?[/|] ?[\w-]+)+)(?![\w/.|-])", text):
        found |= dict.fromkeys(re.split(" ?[/|] ?", row))
    if not found and len(text.split()) <= _FEW and (pair := re.search(rf"([\w-]+) (?:{between}) ([\w-]+)$", text)):
        found |= dict.fromkeys(pair.groups())
    return [word for word in found if word not in ("", "and", "or")]


def quoted_examples(description: str) -> list[str]:
    """Return the examples in a description: quoted ones, and one after "For example" or "e.g."."""
    found = re.findall(r"'([^'\n]{1,60})'|\"([^\"\n]{1,60})\"|`([^`\n]{1,60})`", description)
    plain = re.search(r"(?i)(?:for example|e\.g\.),?:? ([^'\"`]{1,60}?)\.?$", description)
    return [next(filter(None, groups)) for groups in found if any(groups)] + ([plain[1]] if plain else [])
