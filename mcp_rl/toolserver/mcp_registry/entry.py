"""Read an entry of the MCP registry (server.json) and make a server of it.

All text of an entry is untrusted. A command consists of a known program (npx, uvx, docker, dnx), a package with an
exact version, and arguments that are checked one by one; no shell is involved. Refused are options of the known
programs and environment variables that change which programs run or where packages come from.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from mcp_rl.errors import ConfigError
from mcp_rl.scenario import OneServer, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.system.redaction import is_secret_name
from mcp_rl.system.visible import quoted, shortened
from mcp_rl.toolserver.client_files.client_entry import check_url, slug
from mcp_rl.toolserver.tool_server import ToolServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_VERSION = re.compile(r"[0-9A-Za-z][\w.+!-]{0,254}", re.ASCII)
_IDENTIFIERS = {
    "npm": re.compile(r"(@[a-z0-9~-][\w.~-]*/)?[a-z0-9~][\w.~-]*", re.ASCII | re.IGNORECASE),
    "pypi": re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII),
    "nuget": re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII),
    "oci": re.compile(r"[a-z0-9][\w./:-]*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII | re.IGNORECASE),
}
_RUNTIME_OPTIONS = {"npm": {"-y", "--yes"}, "oci": {"-i", "--rm", "--interactive"}, "nuget": {"-y", "--yes"}}
"""Options that entries may give to the known programs: those that we give in any case."""
_BASES = {
    "npm": "registry.npmjs.org",
    "pypi": "pypi.org",
    "nuget": "api.nuget.org",
    "oci": "docker.io",
}
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)
_CHANGES_PROGRAMS = re.compile(
    r"(PATH|ENV|BASH_ENV|SHELL|IFS|HOME|PYTHONPATH|PYTHONHOME|PYTHONSTARTUP|NODE_OPTIONS|NODE_PATH|"
    r"LD_.*|DYLD_.*|NPM_CONFIG_.*|UV_.*|PIP_.*|DOCKER_.*|MCP_RL_.*)",
    re.IGNORECASE,
)
"""Environment variables that change which programs run, or where packages come from."""
_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]{1,200}", re.ASCII)
_OPTION = re.compile(r"-{0,2}[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_BRACES = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
_MOST_WORDS, _LONGEST_WORD = 100, 4000


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Input(_Part):
    """An argument, environment variable or header: its value, or a description of the value that the user must give."""

    name: str = ""
    valueHint: str = ""
    type: str = ""
    description: str = ""
    isRequired: bool = False
    isSecret: bool = False
    value: str | None = None
    default: str | None = None
    choices: list[str] | None = None
    variables: dict[str, Input] = {}


class PackageTransport(_Part):
    """The transport of a package."""

    type: str = "stdio"


class RegistryPackage(_Part):
    """A package that is run on this machine."""

    registryType: str
    registryBaseUrl: str | None = None
    identifier: str = Field(max_length=300)
    version: str | None = None
    transport: PackageTransport = PackageTransport()
    runtimeArguments: list[Input] = Field(default=[], max_length=_MOST_WORDS)
    packageArguments: list[Input] = Field(default=[], max_length=_MOST_WORDS)
    environmentVariables: list[Input] = Field(default=[], max_length=_MOST_WORDS)


class Remote(_Part):
    """A server that is reached at a URL."""

    type: Literal["streamable-http", "sse"]
    url: str = Field(max_length=_LONGEST_WORD)
    headers: list[Input] = Field(default=[], max_length=_MOST_WORDS)
    variables: dict[str, Input] = {}


class ServerDetail(_Part):
    """The content of a server.json."""

    name: str
    description: str = ""
    version: str = ""
    packages: list[RegistryPackage] = Field(default=[], max_length=50)
    remotes: list[Remote] = Field(default=[], max_length=50)


class RegistryEntry(_Part):
    """The registry's answer about one version of a server."""

    server: ServerDetail
    meta: dict[str, Any] = Field(default={}, alias="_meta")

    @property
    def warning(self) -> str | None:
        """A warning if the registry marks this version as deprecated or deleted; else None."""
        official = self.meta.get("io.modelcontextprotocol.registry/official")
        official = official if isinstance(official, dict) else {}
        if official.get("status") in ("deprecated", "deleted"):
            said = official.get("statusMessage")
            why = f": {shortened(said)}" if isinstance(said, str) and said else ""
            return f"The registry marks this version as {official['status']}{why}."
        return None


@dataclass(frozen=True)
class RegistryOffer:
    """A server that was made from an entry: a command for one of its packages, or one of its addresses."""

    params: OneServer
    runs: str
    """The command line or the URL."""
    package: str
    """The package with its version, or the host of the URL."""
    variables: Sequence[str] = field(default=())
    """A line for each environment variable that the server gets."""

    def server(self, entry: RegistryEntry, origin: str) -> ToolServer:
        """Return it as a tool server."""
        name = slug(entry.server.name.rpartition("/")[2])
        return ToolServer(
            name, shortened(entry.server.description) or self.runs, {self.params.transport: self.params}, origin=origin
        )


def offer_of(entry: RegistryEntry, words: Sequence[str] = (), transport: str | None = None) -> RegistryOffer:
    """Return the first package of an entry that can be run here, else the first address that can be used.

    `words` are arguments from the user, added to those of the entry. Raises ConfigError with the reasons if neither a
    package nor an address can be used.
    """
    problems: list[str] = []
    for make in _ways(entry.server, words, transport):
        try:
            return make.offer()
        except ConfigError as problem:
            problems.append(str(problem))
    if not problems:
        wanted = f" over {transport}" if transport else ""
        problems = [f"{entry.server.name} offers nothing that can be used{wanted}: no package and no address."]
    raise ConfigError(" ".join(dict.fromkeys(problems)))


def _ways(server: ServerDetail, words: Sequence[str], transport: str | None) -> Iterator[_Package | _Address]:
    if transport in (None, "stdio"):
        for package in server.packages:
            yield _Package(server.name, package, words)
    for remote in server.remotes:
        if transport in (None, remote.type):
            yield _Address(server.name, remote)


@dataclass(frozen=True)
class _Package:
    name: str
    package: RegistryPackage
    words: Sequence[str]

    def offer(self) -> RegistryOffer:
        package = self.package
        if package.registryType not in _IDENTIFIERS:
            raise self._refusal(f"its package is of the type {quoted(package.registryType)}, which cannot be run here")
        if package.transport.type != "stdio":
            raise self._refusal(f"its package {quoted(package.identifier)} does not speak MCP on stdio")
        spec = self._spec()
        self._check_runtime()
        environment, lines = self._environment()
        arguments = list(self._arguments())
        command, before, after = _COMMANDS[package.registryType]
        passed = [word for name in environment for word in ("-e", name)] if package.registryType == "oci" else []
        params = StdioServer(command=command, args=(*before, *passed, spec, *after, *arguments), env=environment)
        about = f"{package.registryType} package {spec}"
        return RegistryOffer(params, shlex.join([command, *params.args]), about, lines)

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.name} cannot be used: {reason}.")

    def _spec(self) -> str:
        """Return the package with its exact version."""
        kind, identifier, version = self.package.registryType, self.package.identifier, self.package.version
        base = urlsplit(self.package.registryBaseUrl or "").hostname
        if base not in (None, _BASES[kind], "index.docker.io"):
            raise self._refusal(f"its package comes from {quoted(base or '')}, and only {_BASES[kind]} is known here")
        if not _IDENTIFIERS[kind].fullmatch(identifier):
            raise self._refusal(f"{quoted(identifier)} is not the name of a package of {kind}")
        if kind == "oci":
            tagged = "@" in identifier or ":" in identifier.rpartition("/")[2]
            if not tagged and version and _VERSION.fullmatch(version):
                identifier, tagged = f"{identifier}:{version}", True
            if not tagged or identifier.endswith(":latest"):
                raise self._refusal(f"its image {quoted(identifier)} has no exact version")
            return identifier
        if version is None or version == "latest" or not _VERSION.fullmatch(version):
            raise self._refusal(f"its package {quoted(identifier)} has no exact version")
        return f"{identifier}@{version}"

    def _check_runtime(self) -> None:
        for argument in self.package.runtimeArguments:
            said = argument.name or argument.value or argument.default or ""
            if said not in _RUNTIME_OPTIONS.get(self.package.registryType, set()):
                command = _COMMANDS[self.package.registryType][0]
                raise self._refusal(
                    f"it wants to give {command} the option {quoted(said)}, which may let it do anything; if you trust "
                    "it, type its command yourself"
                )

    def _arguments(self) -> Iterator[str]:
        left, missing = list(self.words), []
        for argument in self.package.packageArguments:
            text = _text(argument, self.name)
            if argument.type == "named":
                if not _OPTION.fullmatch(argument.name):
                    raise self._refusal(f"{quoted(argument.name)} is not an option")
                given = next((word for word in left if word.partition("=")[0] == argument.name), None)
                if given is not None:
                    left.remove(given)
                    yield given
                elif text is not None:
                    yield f"{argument.name}={text}"
                elif argument.isRequired:
                    missing.append(f"{argument.name}=…")
            elif text is not None:
                yield text
            elif left and not left[0].startswith("-"):
                yield left.pop(0)
            elif argument.isRequired:
                missing.append((shortened(argument.valueHint or argument.description, 40) or "VALUE").upper())
        if missing:
            example = shlex.quote(f"registry:{self.name} {' '.join(missing)}")
            raise self._refusal(f"it needs more arguments; give them after its name: --server {example}")
        yield from left

    def _environment(self) -> tuple[dict[str, str], list[str]]:
        found: dict[str, str] = {}
        lines: list[str] = []
        missing = []
        for variable in self.package.environmentVariables:
            name = variable.name
            if not _VARIABLE.fullmatch(name) or _CHANGES_PROGRAMS.fullmatch(name):
                raise self._refusal(f"it sets the variable {quoted(name)}, which changes what programs do")
            text = _text(variable, self.name, itself=False)
            secret = variable.isSecret or is_secret_name(name)
            about = f"{name}{' (secret)' if secret else ''}"
            if variable.value is not None and text is not None:
                found[name] = text
                lines.append(f"{about} = {quoted(text)}")
            elif name in os.environ:
                found[name] = "${%s}" % name  # noqa: UP031
                lines.append(f"{about}, from your environment")
            elif text is not None:
                found[name] = text
                lines.append(f"{about} = {quoted(text)}")
            elif variable.isRequired:
                missing.append(about)
            else:
                lines.append(f"{about}, optional and not set")
        if missing:
            raise self._refusal(f"it needs the environment variables {', '.join(missing)}: set them")
        return found, lines


@dataclass(frozen=True)
class _Address:
    name: str
    remote: Remote

    def offer(self) -> RegistryOffer:
        headers: dict[str, str] = {}
        lines: list[str] = []
        for header in self.remote.headers:
            if not _HEADER.fullmatch(header.name) or header.name.lower() in ("host", "content-length", "connection"):
                raise ConfigError(f"{self.name} cannot be used: {quoted(header.name)} is not a header.")
            text, used = self._header(header)
            if text is None:
                continue
            headers[header.name] = text
            lines += [f"{name} (secret), from your environment, in the header {header.name}" for name in used]
        url = self._filled(self.remote.url, self.remote.variables)
        _check_word(url, self.name)
        check_url(url, said=f"{self.name} cannot be used: its address {quoted(url)}")
        host = urlsplit(url).hostname or ""
        if urlsplit(url).scheme != "https" and host not in _LOOPBACK:
            raise ConfigError(f"{self.name} cannot be used: its address {quoted(url)} does not begin with https://.")
        make = SseServer if self.remote.type == "sse" else StreamableHttpServer
        about = f"remote server of {host}, over {self.remote.type}"
        return RegistryOffer(make(url=url, headers=headers), url, about, lines)

    def _filled(self, text: str, variables: Mapping[str, Input]) -> str:
        def value(match: re.Match[str]) -> str:
            variable = variables.get(match[1])
            if variable is None:
                return match[0]
            given = _text(variable, self.name) or os.environ.get(match[1].upper())
            if given is None or (variable.choices and given not in variable.choices):
                raise ConfigError(f"{self.name} needs {match[1]} in its address: set the variable {match[1].upper()}.")
            return given

        return _BRACES.sub(value, text)

    def _header(self, header: Input) -> tuple[str | None, list[str]]:
        """Return the value of a header and the names of the environment variables in it.

        Values that the user gives appear as references, such as `${API_KEY}`. The value is None for an optional header
        that is not given.
        """
        used: list[str] = []

        def given(name: str, input: Input) -> str:
            known = _text(input, self.name)
            if known is not None:
                return known
            variable = re.sub(r"\W", "_", name).upper()
            if variable not in os.environ:
                raise LookupError(variable)
            used.append(variable)
            return "${%s}" % variable  # noqa: UP031

        try:
            if header.value is None:
                return given(header.name, header), used
            _check_word(header.value, self.name)
            return _BRACES.sub(
                lambda m: given(m[1], header.variables[m[1]]) if m[1] in header.variables else m[0], header.value
            ), used
        except LookupError as error:
            if not header.isRequired:
                return None, []
            raise ConfigError(
                f"{self.name} needs the header {header.name}: set the environment variable {error.args[0]}."
            ) from error


def _text(input: Input, name: str, *, itself: bool = True) -> str | None:
    """Return the value or else the default of an input, with its variables filled in; None if it has neither."""
    text = input.value if input.value is not None else input.default
    if text is None or (text == "" and input.value is None):
        return None

    def value(match: re.Match[str]) -> str:
        if match[1] not in input.variables:
            return match[0]
        found = _text(input.variables[match[1]], name) or os.environ.get(match[1].upper())
        if found is None:
            raise ConfigError(f"{name} needs a value for {match[1]}: set the environment variable {match[1].upper()}.")
        return found

    filled = _BRACES.sub(value, text)
    _check_word(filled, name)
    return filled


def _check_word(text: str, name: str) -> None:
    """Raise ConfigError if a text of an entry is too long, has control characters, or has references that would be
    filled in from the user's environment."""
    if len(text) > _LONGEST_WORD or not text.isprintable() or re.search(r"\$\{|\{env:|\{bundled\}|\{python\}", text):
        raise ConfigError(f"{name} cannot be used: it holds {quoted(text, 60)}, which is not a plain text.")


_COMMANDS: dict[str, tuple[str, Iterable[str], Iterable[str]]] = {
    "npm": ("npx", ("-y",), ()),
    "pypi": ("uvx", (), ()),
    "oci": ("docker", ("run", "-i", "--rm"), ()),
    "nuget": ("dnx", ("-y",), ("--",)),
}
"""For each type of package: the program that runs it, and its arguments before and after the package."""
