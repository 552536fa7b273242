"""References `${NAME}` and `{env:NAME}` in place of values that no file of ours may hold.

They are filled in at the last moment. MCP clients' files refer to the environment in several ways, and many contain
plain secrets. Both become references to a variable: one of the user's environment, or one that `hold` creates in the
environment of this process, which no server sees.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcp_rl.errors import ConfigError
from mcp_rl.system.redaction import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Sequence

HELD = "MCP_RL_SECRET_"
"""Prefix of the variables that `hold` creates. Errors blank out the values of variables with this prefix."""
_SECRET_TEXT = re.compile(
    r"://[^/?#\s]*:[^/?#\s]*@"  # a URL with a password
    r"|\b(bearer|basic)\s+\S"
    r"|\b(sk|pk|rk|ghp|gho|ghs|glpat|xox[abp]|hf)[-_][\w-]{16,}|\bgithub_pat_\w{16,}|\bAKIA\w{16}\b|\bAIza[\w-]{30,}",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
_FILLED_IN = re.compile(r"\$\{(\w+)\}|\{env:(\w+)\}")


def referring(text: str, form: str, *, whose: str, needed: bool = True) -> str:
    """Replace every `${…}` of a client's file by a reference of ours; `form` is "${%s}" or "{env:%s}".

    `${VAR}`, `${env:VAR}` and `${VAR:-default}` are variables, `${input:some-id}` is the variable SOME_ID, and
    `${workspaceFolder}` is the working folder. Raises ConfigError that begins with `whose` for any other reference,
    and for an unset variable if `needed`.
    """

    def reference(match: re.Match[str]) -> str:
        said = match[1]
        if said in _PLACES:
            return _PLACES[said]()
        if said.startswith("input:"):
            name = re.sub(r"\W", "_", said.removeprefix("input:").strip(), flags=re.ASCII).upper()
            if needed and name not in os.environ:
                raise ConfigError(
                    f"{whose} asks its user for {said.removeprefix('input:')!r}: set the environment variable {name}."
                )
            return form % name
        if not (variable := _VARIABLE.fullmatch(said)):
            raise ConfigError(f"{whose} has the unknown reference {match[0]!r}; put ${{NAME}} in its place.")
        name, default = variable.groups()
        if name in os.environ or (default is None and not needed):
            return form % name
        if default is None:
            raise ConfigError(f"{whose} needs the environment variable {name}, which is not set.")
        return default

    if re.search(r"\$\{[^}]*\$\{", text):
        raise ConfigError(f"{whose} has a reference inside a reference; put one ${{NAME}} in its place.")
    return _REFERENCE.sub(reference, text)


_PLACES = {
    "workspaceFolder": lambda: str(Path.cwd()),
    "workspaceFolderBasename": lambda: Path.cwd().name,
    "cwd": lambda: str(Path.cwd()),
    "userHome": lambda: str(Path.home()),
    "pathSeparator": lambda: os.sep,
    "/": lambda: os.sep,
}


def filled_in(text: str) -> str:
    """Return the text with the values of its references, for inspection only: it must not be stored."""
    return _FILLED_IN.sub(lambda match: os.environ.get(match[1] or match[2], match[0]), text)


def hold(value: str, name: str) -> str:
    """Keep a value in a variable of our environment, and return the variable's name, which is made from `name`."""
    wanted = HELD + re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper()
    variable, number = wanted, 2
    while os.environ.get(variable, value) != value:
        variable, number = f"{wanted}_{number}", number + 1
    os.environ[variable] = value
    return variable


def without_secret(value: str, form: str, *, name: str, entry: str) -> str:
    """Return the value, or a reference to it if its name or form is that of a secret."""
    if not value or "${" in value or not (is_secret_name(name) or _SECRET_TEXT.search(value)):
        return value
    return form % hold(value, f"{entry}_{name}")


def words_without_secrets(words: Sequence[str], *, entry: str) -> tuple[str, ...]:
    """Return a command's arguments with references in place of secrets: `--api-key X`, `TOKEN=X`, `Authorization: X`,
    and credentials in URLs."""
    found = []
    for number, word in enumerate(words):
        what = f"{entry}_args_{number}"
        if holds_secret(words, number):
            found.append("{env:%s}" % hold(word, what))  # noqa: UP031  a form, as elsewhere
        else:
            found.append(re.sub(r"https?://\S+", lambda url: _in_words(url[0], what), word))  # noqa: B023
    return tuple(found)


def holds_secret(words: Sequence[str], number: int) -> bool:
    """Return whether the word at this index is or contains a secret."""
    word, before = words[number], words[number - 1] if number else ""
    flag = before if re.fullmatch(r"--?[\w-]+", before) and not word.startswith("-") else ""
    named = re.match(r"([\w-]+)\s*[:=]\s*\S", word)
    name = next((n for n in (flag, named[1] if named else "") if is_secret_name(n)), "")
    return "{env:" not in word and bool(name or _SECRET_TEXT.search(word))


def _in_words(url: str, entry: str) -> str:
    try:
        written = url_without_secrets(url, entry=entry)
    except ValueError:  # not a URL
        return url
    return written if "{env:" in written else url


def url_without_secrets(url: str, *, entry: str) -> str:
    """Return a URL with references in place of credentials: user and password, keys in the query and in the path."""

    def held(text: str, what: str) -> str:
        return text if not text or "{env:" in text else "{env:" + hold(text, f"{entry}_url_{what}") + "}"

    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    path = "/".join(held(part, "path") if looks_random(part) else part for part in parts.path.split("/"))
    query = re.sub(
        r"([^&=]+)=([^&]*)",
        lambda pair: f"{pair[1]}={held(pair[2], pair[1]) if is_secret_name(pair[1]) else pair[2]}",
        parts.query,
    )
    return parts._replace(netloc=f"{held(user, 'user')}{at}{host}", path=path, query=query).geturl()


def looks_random(part: str) -> bool:
    """Return whether a part of a path looks like a key rather than a word."""
    return bool(re.fullmatch(r"[\w=-]{32,}", part) and re.search(r"\d", part) and re.search(r"[A-Za-z]", part))
