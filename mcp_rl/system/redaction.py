"""Secrets, and their replacement by `${NAME}` in all text that comes from outside or is written down.

A value that we know is a secret by its name (…TOKEN…, …KEY…, DB_PASS) or by its look (a password in a URL, a random
string). Ordinary values never are: short ones, numbers, paths that exist, words. Text is searched for all known
secrets, also as they look inside JSON, in a URL and in base64, and for credentials of well-known forms, which become
`${REDACTED}`. A clean text is not changed, and redacting twice is redacting once. docs/secrets.md has the rules.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    _Compiled = tuple[str, re.Pattern[str], str]

UNKNOWN = "${REDACTED}"
"""Replaces a credential that has a well-known form, but is none of the known secrets."""
_SECRET_NAME = re.compile(
    r"token|key|secret|passw|passphrase|auth|cookie|credential|(?<![a-z])(?:pass|pwd|dsn)(?![a-z])", re.IGNORECASE
)
_HARMLESS_NAME = re.compile(r"author(?!i[sz])|monkey|hotkey|key(?:board|map|word)|tokeniz", re.IGNORECASE)
_NAME_OF_A_KIND = re.compile(
    r"(?:file|path|dir|folder|sock|socket|mode|type|method|scheme|algorithm|host|port|ur[il]|endpoint|tokens)$",
    re.IGNORECASE,
)
"""Endings of names that say where a secret is or which kind it has: SSH_AUTH_SOCK, AUTH_MODE, MAX_TOKENS."""
_SHORTEST = 8
"""Characters of a secret. A shorter one would match inside ordinary words and numbers."""
_SHORTEST_MIXED = 6
"""The same for a value with letters and digits."""
_SHORTEST_RANDOM, _LEAST_BITS = 24, 4.0
"""Characters, and bits of entropy for each, from which a value looks random whatever its name is."""
_DEFAULTS = frozenset(
    (
        *("administrator", "anonymous", "changeme", "default", "development", "disabled", "example", "localhost"),
        *("password", "postgres", "postgresql", "production", "required", "secret", "staging", "undefined"),
    )
)
"""Words that are no secrets, wherever they stand."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"://[^/?#\s:@]*:([^/?#\s@]+)@")
_WORD = r"(?<![A-Za-z0-9_-]%s)"
_FORMS = (
    ("://", r"(://[^/?#\s:@\"']{0,100}:)[^/?#\s@\"'$]{1,200}(?=@)"),
    ("earer ", r"(earer +)(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{16,}"),
    ("asic ", r"(asic +)(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{16,}"),
    ("uthorization", r"(uthorization[\"']?[:=] {0,3}[\"']?(?:[A-Za-z]{1,10} +)?)(?!Bearer\b|Basic\b)[\w.~+/=-]{8,}"),
    ("sk-", rf"()sk-{_WORD % 'sk-'}(?:(?:proj|ant|or|svcacct|admin)-[\w-]{{20,}}|[A-Za-z0-9]{{20,}})"),
    *((mark, rf"({mark})(?<![A-Za-z0-9_].{mark})(?<=[sr]{mark})\w{{16,}}") for mark in ("k_live_", "k_test_")),
    *(
        (mark, rf"(){mark}{_WORD % mark}(?=[\w-]{{0,200}}\d)[\w-]{{16,}}")
        for mark in ("ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "hf_", "npm_")
    ),
    ("xox", rf"()xox[a-z]-{_WORD % 'xox[a-z]-'}(?=[\w-]{{0,200}}\d)[\w-]{{16,}}"),
    *((mark, rf"(){mark}{_WORD % mark}[0-9A-Z]{{16}}(?![0-9A-Z])") for mark in ("AKIA", "ASIA")),
    ("AIza", rf"()AIza{_WORD % 'AIza'}[\w-]{{30,}}"),
    (
        "-----BEGIN ",
        r"()-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[^-]{0,20000}(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?",
    ),
)
"""Forms of credentials: a text that each of them holds, which is quick to look for, and the pattern. What the pattern's
group matches stays."""

Rule = tuple[str, str, str]
"""A text to look for; if it is there, a pattern to look for, and the replacement."""

_known: dict[str, str] = {}
"""Secrets of this process that are not in its environment, with their names."""


class Redaction:
    """Replaces the secrets of our environment, those that are remembered, and `more` in text and JSON.

    `more` are pairs of a name and a value that is a secret.
    """

    def __init__(self, more: Iterable[tuple[str, str]] = ()) -> None:
        secrets: dict[str, str] = {}
        for value, name in (*secrets_of_environment().items(), *((value, name) for name, value in more)):
            secrets.setdefault(value, name)
        secrets = _known | secrets
        self._rules, self._numbers = _compiled(tuple(secrets.items()))

    def text(self, text: str) -> str:
        """Return the text with placeholders; the same object if nothing is replaced."""
        return _applied(self._rules, text)

    def value(self, value: Any) -> Any:
        """Return JSON with placeholders in all its strings and member names; the same object if nothing is replaced."""
        everything = "\n".join(self._texts(value))
        rules = [rule for rule in self._rules if rule[0] in everything]
        return self._inside(value, rules) if rules else value

    def rules(self) -> list[Rule]:
        """Return the rules as texts, for another process."""
        return [(trigger, pattern.pattern, replacement) for trigger, pattern, replacement in self._rules]

    def _texts(self, value: Any) -> Iterator[str]:
        stack = [value]
        while stack:
            below = stack.pop()
            if isinstance(below, str):
                yield below
            elif isinstance(below, dict):
                yield from below
                stack.extend(below.values())
            elif isinstance(below, list | tuple):
                stack.extend(below)
            elif self._numbers and str(below) in self._numbers:
                yield str(below)

    def _inside(self, value: Any, rules: Sequence[_Compiled]) -> Any:
        if isinstance(value, str):
            return _applied(rules, value)
        if isinstance(value, dict):
            pairs = [(_applied(rules, name), self._inside(below, rules)) for name, below in value.items()]
            same = all(
                name is old and new is below for (name, new), (old, below) in zip(pairs, value.items(), strict=True)
            )
            return value if same else dict(pairs)
        if isinstance(value, list | tuple):
            found = [self._inside(below, rules) for below in value]
            return value if all(new is below for new, below in zip(found, value, strict=True)) else found
        return _applied(rules, str(value)) if self._numbers and str(value) in self._numbers else value


def _applied(rules: Sequence[_Compiled], text: str) -> str:
    for trigger, pattern, replacement in rules:
        if trigger in text:
            text = pattern.sub(replacement, text) if pattern.search(text) else text
    return text


def remember(secrets: Iterable[tuple[str, str]]) -> None:
    """Keep secrets, pairs of a name and a value, for every later redaction, also once they left the environment."""
    for name, value in secrets:
        _known.setdefault(value, name)


def without_secrets(text: str) -> str:
    """Return the text without the secrets that this process knows, and without credentials of well-known forms."""
    return Redaction().text(text)


def secrets_of_environment() -> dict[str, str]:
    """Return the secrets among the environment variables, each with the name of its variable."""
    return {secret: name for name, value in sorted(os.environ.items(), reverse=True) for secret in _found(name, value)}


@lru_cache(maxsize=1024)
def _found(name: str, value: str) -> tuple[str, ...]:
    return tuple(secret for _, secret in secrets_in(name, value))


def is_secret_name(name: str) -> bool:
    """Return whether a value of this name looks like a secret, which must not be written anywhere."""
    return _SECRET_NAME.search(_HARMLESS_NAME.sub("", name)) is not None


def secrets_in(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Yield the secrets in a setting as pairs of the name and a secret: the whole value, words of it, or a password."""
    if is_secret_name(name) and not _NAME_OF_A_KIND.search(name):
        for part in dict.fromkeys((value, *value.split())):  # such as "Bearer" and a token
            if not _ordinary(part):
                yield name, part
    elif _looks_random(value):
        yield name, value
    for found in _URL_PASSWORD.finditer(value):
        for password in dict.fromkeys((found[1], unquote(found[1]))):
            if not _ordinary(password):
                yield name, password


def _ordinary(value: str) -> bool:
    """Return whether a value cannot be told from ordinary words, numbers and paths, whatever its name is."""
    mixed = re.search(r"[A-Za-z]", value) and re.search(r"\d", value)
    if len(value) < (_SHORTEST_MIXED if mixed else _SHORTEST) or value.lower() in _DEFAULTS:
        return True
    if re.match(r"\w+://", value):
        return True  # the password in it counts, and what looks random
    return value.startswith(("/", "~", "./", "../")) and _exists(value)


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _looks_random(value: str) -> bool:
    if len(value) < _SHORTEST_RANDOM or _UUID.fullmatch(value):
        return False
    if re.fullmatch(r"(?=[a-f]*\d)[0-9a-f]{32,}", value) or any(re.search(pattern, value) for _, pattern in _FORMS[4:]):
        return True
    classes = all(re.search(letters, value) for letters in ("[a-z]", "[A-Z]", r"\d"))
    return bool(
        classes and re.fullmatch(r"[\w+/=.~-]+", value) and "/" not in value[:1] and _bits(value) >= _LEAST_BITS
    )


def _bits(value: str) -> float:
    """Return the entropy of a value's characters."""
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares)


def _written(value: str) -> Iterator[str]:
    """Yield the forms that a value takes in text: as it is, inside JSON, in a URL, in base64, and line by line."""
    yield from (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, ""))
    data = value.encode(errors="replace")
    yield from (encode(data).decode().rstrip("=") for encode in (base64.b64encode, base64.urlsafe_b64encode))
    if "\n" in value:
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= 2 * _SHORTEST)


@lru_cache(maxsize=64)
def _compiled(secrets: tuple[tuple[str, str], ...]) -> tuple[tuple[_Compiled, ...], frozenset[str]]:
    """Return the rules for secrets, pairs of a value and its name, and those secrets that are numbers in JSON."""
    names: dict[str, str] = {}
    for value, name in secrets:
        for form in _written(value):
            names.setdefault(form, re.sub(r"\W", "_", name, flags=re.ASCII).upper())
    longest_first = sorted(names, key=lambda form: (-len(form), form))
    literals = ((form, _bounded(form), f"${{{names[form]}}}") for form in longest_first)
    forms = ((trigger, pattern, rf"\g<1>{UNKNOWN}") for trigger, pattern in _FORMS)
    rules = tuple((trigger, re.compile(pattern), new) for trigger, pattern, new in (*literals, *forms))
    return rules, frozenset(value for value, _ in secrets if re.fullmatch(r"-?\d+(\.\d+)?", value))


def _bounded(form: str) -> str:
    """Return the pattern of a form; a short one or a number is not found inside a longer word."""
    inside_words = len(form) >= 2 * _SHORTEST and not form.isdigit()
    return re.escape(form) if inside_words else rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"
