"""What stands for a value that no file of ours may hold: `${NAME}` and `{env:NAME}`, filled in at the last moment.

Files of MCP clients refer to the environment in several ways, and many hold secrets as they are. Both become references
to a variable: of the user's environment, or one that `hold` makes in ours, which no server gets to see.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from mcp_rl.boundary import is_secret_name
from mcp_rl.errors import ConfigError

HELD = "MCP_RL_SECRET_"
"""Begins the names of variables that hold what a file says itself; errors have their values blanked out by it."""
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
    """The text with every `${…}` of a client's as a reference of ours: `form` is "${%s}" or "{env:%s}".

    `${VAR}`, `${env:VAR}` and `${VAR:-default}` are variables, `${input:some-id}` is the variable SOME_ID, and
    `${workspaceFolder}` is the working folder. Raises ConfigError that begins with `whose` for what is none of them,
    and for a variable that is not set, if values are needed.
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
            raise ConfigError(f"{whose} refers to {match[0]!r}, which we do not know: put ${{NAME}} in its place.")
        name, default = variable.groups()
        if name in os.environ or (default is None and not needed):
            return form % name
        if default is None:
            raise ConfigError(f"{whose} needs the environment variable {name}, which is not set.")
        return default

    if re.search(r"\$\{[^}]*\$\{", text):
        raise ConfigError(f"{whose} holds a reference inside a reference; put one ${{NAME}} in its place.")
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
    """The text with the values of its references, to look at and never to keep."""
    return _FILLED_IN.sub(lambda match: os.environ.get(match[1] or match[2], match[0]), text)


def hold(value: str, name: str) -> str:
    """Keep a value of a file in a variable of our environment; its name, made from `name`."""
    wanted = HELD + re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper()
    variable, number = wanted, 2
    while os.environ.get(variable, value) != value:
        variable, number = f"{wanted}_{number}", number + 1
    os.environ[variable] = value
    return variable


def without_secret(value: str, form: str, *, name: str, entry: str) -> str:
    """The value, or a reference to it where its name or its look says that it is a secret."""
    if not value or "${" in value or not (is_secret_name(name) or _SECRET_TEXT.search(value)):
        return value
    return form % hold(value, f"{entry}_{name}")


def words_without_secrets(words: Sequence[str], *, entry: str) -> tuple[str, ...]:
    """Arguments of a command with references in place of secrets: `--api-key X`, `TOKEN=X`, `Authorization: X`, and
    what lets in at a URL."""
    found = []
    for number, word in enumerate(words):
        what = f"{entry}_args_{number}"
        if holds_secret(words, number):
            found.append("{env:%s}" % hold(word, what))  # noqa: UP031  a form, as elsewhere
        else:
            found.append(re.sub(r"https?://\S+", lambda url: _in_words(url[0], what), word))  # noqa: B023
    return tuple(found)


def holds_secret(words: Sequence[str], number: int) -> bool:
    """Whether the word of that number is, or holds, what must not be written."""
    word, before = words[number], words[number - 1] if number else ""
    flag = before if re.fullmatch(r"--?[\w-]+", before) and not word.startswith("-") else ""
    named = re.match(r"([\w-]+)\s*[:=]\s*\S", word)
    name = next((n for n in (flag, named[1] if named else "") if is_secret_name(n)), "")
    return "{env:" not in word and bool(name or _SECRET_TEXT.search(word))


def _in_words(url: str, entry: str) -> str:
    try:
        written = url_without_secrets(url, entry=entry)
    except ValueError:  # no URL after all
        return url
    return written if "{env:" in written else url


def url_without_secrets(url: str, *, entry: str) -> str:
    """A URL with references in place of what lets in: a user's name and password, keys in the query and in the path."""

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
    """Whether a part of a path is no word but a key."""
    return bool(re.fullmatch(r"[\w=-]{32,}", part) and re.search(r"\d", part) and re.search(r"[A-Za-z]", part))
