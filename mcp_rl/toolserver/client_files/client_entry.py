"""An entry of an MCP client's file: checks of its keys, and the tool server that it describes.

Clients use several names for some keys, and many keys that have no meaning here, which are ignored.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mcp_rl.config import Isolation, SandboxKind
from mcp_rl.errors import ConfigError
from mcp_rl.scenario import OneServer, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.client_files.variables import (
    filled_in,
    hold,
    referring,
    url_without_secrets,
    without_secret,
    words_without_secrets,
)
from mcp_rl.toolserver.tool_server import ToolServer

_KINDS = {"stdio": "stdio", "local": "stdio", "sse": "sse", "http": "http", "streamablehttp": "streamable-http"}
_MILLISECONDS = 1000.0
"""A timeout of this value or more is in milliseconds, a lower one in seconds: clients use both."""


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _texts(values: Any) -> Any:
    """Convert numbers and booleans to text, as clients do; null sets nothing."""
    if isinstance(values, Mapping):
        return {name: _text(value) for name, value in values.items() if value is not None}
    return [_text(value) for value in values] if isinstance(values, list) else values


_Words = Annotated[list[str], BeforeValidator(_texts)]
_Texts = Annotated[dict[str, str], BeforeValidator(_texts)]


class _Own(BaseModel):
    """Our own part of an entry, under the key `mcp_rl`."""

    model_config = ConfigDict(extra="forbid")

    isolation: Isolation | None = None
    resetTool: str | None = None
    sandbox: SandboxKind | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    type: str | None = None
    command: str | None = None
    args: _Words = []
    env: _Texts = {}
    envFile: str | None = None
    cwd: str | None = None
    url: str | None = None
    headers: _Texts = {}
    description: str = ""
    disabled: bool = False
    timeout: float | None = Field(default=None, gt=0)
    mcp_rl: _Own = _Own()


def server_of(name: str, fields: Any, *, origin: str, values_needed: bool = True) -> ToolServer:
    """Return the server that an entry of the file `origin` describes.

    Raises ConfigError that names the file and the entry, also for an unset variable if `values_needed`.
    """
    whose = f"{origin}: the entry {name!r}"
    entry = _checked(fields, whose)
    if entry.disabled:
        raise ConfigError(f"{whose} is disabled; remove that key to use it.")
    own, deadlines = entry.mcp_rl, {}
    if entry.timeout is not None:
        deadlines["call"] = entry.timeout / 1000 if entry.timeout >= _MILLISECONDS else entry.timeout
    if (own.isolation == "reset" and own.resetTool is None) or (own.resetTool and own.isolation not in ("reset", None)):
        raise ConfigError(f'{whose}: in its "mcp_rl", isolation "reset" and a resetTool belong together.')
    transports = _Reader(entry, name, whose, values_needed).transports()
    return ToolServer(
        slug(name),
        " ".join(entry.description.split()) or _shown(transports[0]),
        {params.transport: params for params in transports},
        isolation=own.isolation,
        reset_tool=own.resetTool,
        sandbox=own.sandbox,
        deadlines=deadlines,
        origin=origin,
    )


def _shown(params: OneServer) -> str:
    return shlex.join([params.command, *params.args]) if isinstance(params, StdioServer) else params.url


def _checked(fields: Any, whose: str) -> _Entry:
    if not isinstance(fields, Mapping):
        raise ConfigError(f'{whose} is not a JSON object such as {{"command": "node", "args": ["server.mjs"]}}.')
    try:
        entry = _Entry.model_validate(_one_name_each(fields))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].rstrip(".")
        raise ConfigError(f"{whose}: its {key!r} is invalid: {message[0].lower()}{message[1:]}.") from error
    for text in _all_texts(entry):
        if "\0" in text or (not text.isascii() and _half_character(text)):
            raise ConfigError(f"{whose} contains a character that no command, URL or variable can contain.")
    for name in entry.env:
        if not name or "=" in name:
            raise ConfigError(f"{whose}: {name!r} in its env is not a name of a variable.")
    for name, value in entry.headers.items():
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) or re.search(r"[\r\n]", value):
            raise ConfigError(f"{whose}: {name!r} in its headers is not a valid HTTP header.")
    return entry


def _one_name_each(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an entry under the names that most clients use; null counts as absent."""
    found = {key: value for key, value in fields.items() if value is not None}
    for other in ("transport", "transportType"):
        if isinstance(found.get(other), str):
            found.setdefault("type", found[other])
    if "httpUrl" in found:
        found.setdefault("type", "http")
    for other in ("httpUrl", "serverUrl"):
        if other in found:
            found.setdefault("url", found[other])
    if found.get("enabled") is False:
        found["disabled"] = True
    return found


def _all_texts(entry: _Entry) -> Iterator[str]:
    yield from filter(None, (entry.command, entry.cwd, entry.url, entry.envFile))
    yield from entry.args
    for values in (entry.env, entry.headers):
        yield from values
        yield from values.values()


def _half_character(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@dataclass(frozen=True)
class _Reader:
    """Makes the parameters of an entry, with references in place of secrets."""

    entry: _Entry
    name: str
    whose: str
    needed: bool
    """True if the variables that the entry refers to must be set, because the server is to be reached."""

    def transports(self) -> list[OneServer]:
        """Return all ways to reach the server, the entry's own first."""
        kind = _kind(self.entry, self.whose)
        return [self._process()] if kind == "stdio" else self._address(kind)

    def _process(self) -> StdioServer:
        entry = self.entry
        if not entry.command:
            raise ConfigError(f"{self.whose} is of type {entry.type!r} and has no command.")
        return StdioServer(
            command=self._word(entry.command),
            args=words_without_secrets([self._word(word) for word in entry.args], entry=self.name),
            env=self._from_env_file() | self._values(entry.env),
            cwd=self._word(entry.cwd) if entry.cwd else None,
        )

    def _address(self, kind: str) -> list[OneServer]:
        entry = self.entry
        if not entry.url:
            raise ConfigError(f"{self.whose} is of type {entry.type!r} and has no url.")
        reference = self._word(entry.url)
        url = filled_in(reference)
        if "{env:" not in url:
            check_url(url, said=f"{self.whose}: its url {entry.url!r}")
        written, headers = url_without_secrets(reference, entry=self.name), self._values(entry.headers)
        sse = SseServer(url=written, headers=headers)
        streamable = StreamableHttpServer(url=written, headers=headers)
        first_sse = kind == "sse" or (kind != "streamable-http" and looks_like_sse(url))
        return [sse, streamable] if first_sse else [streamable, sse]

    def _word(self, text: str) -> str:
        return referring(text, "{env:%s}", whose=self.whose, needed=self.needed)

    def _values(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return environment values or headers with references in place of secrets."""
        form = "${%s}"
        referred = {name: referring(v, form, whose=self.whose, needed=self.needed) for name, v in values.items()}
        return {name: without_secret(value, form, name=name, entry=self.name) for name, value in referred.items()}

    def _from_env_file(self) -> dict[str, str]:
        """Return references to the variables of the entry's `envFile`, whose values are never written."""
        if self.entry.envFile is None:
            return {}
        from dotenv import dotenv_values

        path = Path(filled_in(self._word(self.entry.envFile)))
        if not path.is_file():
            if not self.needed:
                return {}
            raise ConfigError(f"{self.whose} needs its envFile {path}, which does not exist.")
        try:
            found = dotenv_values(path, interpolate=False)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.whose}: its envFile {path} cannot be read: {error}.") from error
        return {key: "${%s}" % hold(value, f"{self.name}_{key}") for key, value in found.items() if value}  # noqa: UP031


def _kind(entry: _Entry, whose: str) -> str:
    """Return "stdio", "sse" or "streamable-http"; "http" or an empty text if the URL decides, as clients try both."""
    if entry.type is not None:
        plain = re.sub(r"[-_\s]", "", entry.type).lower()
        if plain not in _KINDS:
            raise ConfigError(f"{whose}: its type is {entry.type!r}; use stdio, sse or http (streamable HTTP).")
        return _KINDS[plain]
    if entry.command and entry.url:
        raise ConfigError(f"{whose} has a command and a url; choose one with its type.")
    if not entry.command and not entry.url:
        raise ConfigError(f"{whose} has neither a command nor a url.")
    return "stdio" if entry.command else ""


def check_url(url: str, *, said: str) -> None:
    """Raise ConfigError, a sentence that begins with `said`, if the URL cannot be a server's."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{said} is not a URL: {error}.") from error
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"{said} is not a URL such as https://example.org/mcp.")
    if not host:
        raise ConfigError(f"{said} names no host.")


def looks_like_sse(url: str) -> bool:
    """Return whether a URL's path looks like server-sent events: it ends in `/sse`."""
    return urlsplit(url).path.rstrip("/").endswith("/sse")


def slug(text: str) -> str:
    """Make a server's name out of any text."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:100] or "server"
