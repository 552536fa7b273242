"""Values with a meaning, for parameters whose name or description asks for one.

Regular expressions, cells and ranges, durations, schedules, addresses, units and texts in a format: each is valid where
such a value is taken, and most regular expressions find something in plain English text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_SHEET = re.compile(r"(?i)\b(?:excel|spreadsheets?|work(?:book|sheet)s?|sheets?|cells?)\b")
_REFERENCE = re.compile(r"\b[A-Z]{1,2}\d{1,3}(?::[A-Z]{1,2}\d{1,3})?\b")
_ISO_DURATIONS = ("PT15M", "PT1H30M", "P1D", "P2W", "PT45S", "P1DT12H")
_MEANINGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("regex", r"\bregexp?s?\b|regular expression",
     (r"[a-z]+", r"\d+", r"\w+", r"[A-Z][a-z]+", r"\b\w{4}\b", "a|e", "^.", "o+")),
    ("cron", r"\bcron(?:tab)?\b",
     ("0 9 * * 1", "*/15 * * * *", "30 6 1 * *", "0 0 * * *", "0 12 * * 1-5", "45 23 * * 0")),
    ("duration", r"iso.?8601 durations?|\bpt?\d+[hmsd]\b", _ISO_DURATIONS),
    ("span", r"\bdurations?\b|\binterval\b|\btime ?out\b", ("30s", "15m", "2h", "1h30m", "1d", "90s")),
    ("mime", r"\bmime ?type\b|\bcontent ?type\b", ("text/plain", "application/json", "image/png", "text/csv")),
    ("uuid", r"\b[ug]uid\b", ("123e4567-e89b-42d3-a456-426614174000", "9b2d1c3e-58f0-4a7b-8c6d-2f1e0d9c8b7a")),
    ("network", r"\bcidr\b|\bsubnet\b", ("192.0.2.0/24", "198.51.100.0/25", "10.0.0.0/8", "172.16.0.0/12")),
    ("ip", r"\bip(?:v4)?(?: ?addr(?:ess)?)?\b", ("192.0.2.17", "198.51.100.4", "203.0.113.99", "127.0.0.1")),
    ("host", r"\bdomain(?: name)?\b|\bhost ?names?\b", ("example.com", "www.example.org", "mail.example.net")),
    ("version", r"\bsem(?:antic )?ver(?:sion)?\b|\bsemver\b", ("1.2.3", "2.0.0", "0.9.12", "10.4.1")),
    ("base64", r"\bbase ?64\b", ("aGVsbG8=", "cml2ZXIgc3RvbmU=", "Z2FyZGVu", "MTIzNDU=")),
    ("json", r"\bjson\b(?: ?(?:string|text|data|object|document|input))?$|^json\b|\b(?:valid|a) json\b",
     ('{"name": "Ada", "age": 36}', '[3, 1, 2]', '{"a": {"b": [1, 2]}}', '{"city": "Oslo", "open": true}')),
    ("csv", r"\bcsv (?:string|text|data|content)\b|^csv$", ("name,age\nAda,36\nOmar,29", "city,height\nOslo,12")),
    ("colour", r"\bhex(?:adecimal)?(?: colou?r)?$|colou?r hex\b", ("#ff8800", "#336699", "#00cc44", "#ffffff")),
    ("language", r"\blanguage code\b|\blocale\b|\biso.?639", ("en", "fr", "de", "es")),
    ("country", r"\bcountry code\b|\biso.?3166", ("NO", "PE", "JP", "KE")),
    ("currency", r"\bcurrenc(?:y|ies)\b", ("EUR", "USD", "JPY", "NOK")),
    ("timestamp", r"\b(?:unix|epoch) ?time ?(?:stamp)?\b|\bepoch\b", ("1735689600", "1700000000", "946684800")),
    ("expression", r"\b(?:math(?:ematical)?|arithmetic) expressions?\b|^expressions?$|^formula$",
     ("3 + 4 * 2", "(17 - 5) / 3", "2 * 21", "100 - 58", "9 * 9 + 1")),
)  # fmt: skip
"""Kind, the words that ask for it, and its values; the first whose words are said counts."""
_UNITS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"length|distance", ("meter", "kilometer", "mile", "foot", "inch")),
    (r"mass|weight", ("kilogram", "gram", "pound", "ounce")),
    (r"temperature", ("celsius", "fahrenheit", "kelvin")),
    (r"volume", ("liter", "milliliter", "gallon", "cup")),
    (r"time|duration", ("second", "minute", "hour", "day")),
    (r"speed|velocity", ("meter per second", "kilometer per hour", "mile per hour")),
    (r"data|storage|byte", ("byte", "kilobyte", "megabyte", "gigabyte")),
)
_SYMBOLS = ("m", "km", "cm", "mile", "kg", "g", "lb", "celsius", "fahrenheit")
"""Units that many converters know."""
_UNIT = re.compile(r"\bunits?$")


def meant(parameter: str, description: str, about: str, random: random.Random) -> str | None:
    """Return a value of the meaning that a parameter's name or else its description asks for; None if neither does.

    `about` are the words of the tool's name and of the parameters beside it.
    """
    for kind, asks, values in _MEANINGS:
        if re.search(asks, parameter):
            if kind == "span" and re.search(r"(?i)iso.?8601|\bPT?\d+[HMSD]\b", description):
                values = _ISO_DURATIONS
            if kind == "expression" and _SHEET.search(description) is not None:
                return _cell(parameter, random)
            said = _described(description) if kind == "expression" else ()  # "Cron expression" is no sum
            return random.choice(said or values)
    if cell := _in_sheet(parameter, description, about, random):
        return cell
    converts = re.search(r"\bconver|\bunit", about) is not None
    if _UNIT.search(parameter) or (converts and parameter in ("from", "to")):
        units = _units(f"{about} {description}") or (_SYMBOLS if converts else ())
        if units:
            return random.choice(units)
    open_to_all = re.search(r"\bpatterns?\b|^(?:input|value|data|text|string|content|query|schedule|expr)$", parameter)
    said = _described(description) if open_to_all else ()
    return random.choice(said) if said else None


def _described(description: str) -> tuple[str, ...]:
    """Return the values of the first meaning that a description asks for."""
    return next((values for _, asks, values in _MEANINGS if re.search(asks, description, re.IGNORECASE)), ())


def _in_sheet(parameter: str, description: str, about: str, random: random.Random) -> str | None:
    """Return a cell, a range, a column or a formula, where a parameter speaks of a sheet."""
    said = f"{parameter} {description} {about}"
    spoken = _SHEET.search(said) is not None or _REFERENCE.search(said) is not None
    if re.search(r"\bcells?$|\bcell (?:ref(?:erence)?|address|name)$|\banchor$", parameter):
        return _cell(parameter, random)
    if spoken and re.search(r"\brange\b|\bref$", parameter):
        return random.choice(("A1:B3", "A1:A4", "B2:D5", "A1:D6", "C2:C4"))
    if spoken and re.fullmatch(r"(?:start |end |from |to )?col(?:umn)?(?: letter)?", parameter):
        return random.choice("ABCD")
    return None


def _cell(parameter: str, random: random.Random) -> str:
    if "formula" in parameter or "expression" in parameter:
        return random.choice(("=SUM(A1:A3)", "=B2*2", "=1+2"))
    if re.search(r"\b(?:end|to|bottom|last)\b", parameter):
        return f"{random.choice('BCD')}{random.randint(3, 6)}"
    if re.search(r"\b(?:start|from|top|first)\b", parameter):
        return random.choice(("A1", "A2", "B1"))
    return f"{random.choice('ABCD')}{random.randint(1, 5)}"


def _units(text: str) -> tuple[str, ...]:
    return next((units for asks, units in _UNITS if re.search(asks, text.lower())), ())
