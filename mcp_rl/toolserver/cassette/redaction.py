"""Redaction of secrets from recordings: `${NAME}` replaces each value.

The placeholder does not depend on the value, so that a call recorded with one key is found with another key or none.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from mcp_rl.scenario import Launch, OneServer, ServerGroup, ServerParams, StdioServer
from mcp_rl.system.boundary import is_secret_name, secrets_of_environment

_SHORTEST = 8
"""Characters. A shorter value is not treated as a secret: it would match inside ordinary words and numbers."""
_SHORTEST_NAMED = 4
"""The same for a server's setting with a name such as TOKEN."""
_HARMLESS = {"accept", "accept-encoding", "accept-language", "content-type", "user-agent"}
_REFERENCE = re.compile(r"\$\{(\w+)\}")


class Redaction:
    """Replaces secrets from our environment and from servers' settings in text and JSON."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._known: list[ServerParams] = []
        for name, value in sorted(secrets_of_environment().items()):
            self._add(value, name)
        self._compile()

    def cover(self, params: ServerParams | None) -> None:
        """Also replace the values of this server's headers and environment."""
        if params is None or any(params is known or params == known for known in self._known):
            return
        self._known.append(params)
        for server in params.servers.values() if isinstance(params, ServerGroup) else (params,):
            for name, value in _settings(server):
                self._cover_setting(name, value)
        self._compile()

    def text(self, text: str) -> str:
        """Return the text with placeholders."""
        return self._pattern.sub(self._placeholder, text) if self._pattern else text

    def value(self, value: Any) -> Any:
        """Return JSON with placeholders in all its strings and member names; the same object if nothing is replaced."""
        if self._pattern is None or not self._pattern.search(json.dumps(value, ensure_ascii=False)):
            return value
        return self._inside(value)

    def _inside(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self._inside(key): self._inside(below) for key, below in value.items()}
        if isinstance(value, list | tuple):
            return [self._inside(below) for below in value]
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._names:
            return self.text(str(value))
        return value

    def _cover_setting(self, name: str, value: str) -> None:
        shortest = _SHORTEST_NAMED if is_secret_name(name) else _SHORTEST
        place = re.sub(r"\W", "_", name).upper()
        for variable in _REFERENCE.findall(value):
            self._add(os.environ.get(variable, ""), variable, shortest)
        filled = _REFERENCE.sub(lambda found: os.environ.get(found[1], found[0]), value)
        if _REFERENCE.search(filled):
            return
        self._add(filled, place, shortest)
        if is_secret_name(name):
            for part in filled.split():  # such as "Bearer" and a token
                self._add(part, place)

    def _add(self, value: str, name: str, shortest: int = _SHORTEST) -> None:
        """Add a value, also in the forms that it takes inside JSON and in a URL."""
        if len(value) >= shortest:
            for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, "")):
                self._names.setdefault(form, name)

    def _compile(self) -> None:
        longest_first = sorted(self._names, key=lambda value: (-len(value), value))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def _placeholder(self, found: re.Match[str]) -> str:
        return f"${{{self._names[found[0]]}}}"


def _settings(server: OneServer) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a server's environment and headers."""
    launch: Launch | None = server if isinstance(server, StdioServer) else server.launch
    if launch is not None:
        yield from launch.env.items()
    if not isinstance(server, StdioServer):
        yield from ((name, value) for name, value in server.headers.items() if name.lower() not in _HARMLESS)
