"""The secrets that a server is given: in its environment, its headers, its address and the words of its command."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from mcp_rl.scenario import Launch, OneServer, ServerGroup, ServerParams
from mcp_rl.system.redaction import Redaction, is_secret_name, remember, secrets_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_REFERENCE = re.compile(r"\$\{(\w+)\}|\{env:(\w+)\}")


def redaction_for(params: ServerParams | Launch | None) -> Redaction:
    """Return the redaction of all that is read from a server; this process remembers the server's secrets."""
    secrets = list(_secrets_of(params)) if params is not None else []
    remember(secrets)
    return Redaction(secrets)


def _secrets_of(params: ServerParams | Launch) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the secrets that servers are given."""
    for server in params.servers.values() if isinstance(params, ServerGroup) else (params,):
        for name, text in _settings(server):
            for found in _REFERENCE.finditer(text):
                variable = found[1] or found[2]
                value = os.environ.get(variable, "")
                yield from secrets_in(variable, value)
                if is_secret_name(name):  # the name says it, if the variable's does not
                    yield from ((variable, secret) for _, secret in secrets_in(name, value))
            if not _REFERENCE.search(text):
                yield from secrets_in(name, text)


def _settings(server: OneServer | Launch) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a server's settings."""
    launch: Launch | None = server if isinstance(server, Launch) else server.launch
    if launch is not None:
        yield from launch.env.items()
        yield from _words(launch.args)
    if not isinstance(server, Launch):
        yield from server.headers.items()
        yield "url", server.url
        with suppress(ValueError):  # not a URL, which connecting reports
            yield from parse_qsl(urlsplit(server.url).query)


def _words(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the words of a command, each with its name: that of the option before it, or before `=` or `:` in it."""
    before = ""
    for word in words:
        if named := re.match(r"(-{0,2}[A-Za-z][\w-]*)\s*[:=](?!//)\s*(\S.*)", word, re.DOTALL):
            yield named[1], named[2]
        else:
            yield before, word
        before = word if re.fullmatch(r"--?[\w-]+", word) else ""
