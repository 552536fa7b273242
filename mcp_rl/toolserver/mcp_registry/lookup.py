"""Look a server up in a registry that speaks the MCP registry's API, version 0.1.

https://github.com/modelcontextprotocol/registry, docs/reference/api/openapi.yaml. Answers are untrusted: their size is
limited, redirects to other hosts are not followed, and this module runs nothing.
"""

from __future__ import annotations

import json
import os
import re
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError

from mcp_rl.errors import ConfigError
from mcp_rl.system.visible import quoted, shortened
from mcp_rl.toolserver.mcp_registry.entry import RegistryEntry

OFFICIAL = "https://registry.modelcontextprotocol.io"
VARIABLE = "MCP_RL_REGISTRY"
"""Environment variable that names another registry."""
_NAME = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", re.ASCII)
_VERSION = re.compile(r"[\w.+-]{1,255}", re.ASCII)
_LONGEST = 1_000_000
"""Largest answer, in bytes."""
_SECONDS = 20.0
_MOST_REDIRECTS = 3
_SUGGESTED = 50
"""Servers that are asked for when looking for similar names."""


def find_entry(name: str, version: str | None = None) -> RegistryEntry:
    """Return the entry of exactly this name, in the given version or else the latest.

    Raises ConfigError if there is none, with similar names, or if the registry cannot be used.
    """
    if not _NAME.fullmatch(name) or len(name) > 200:
        raise ConfigError(
            f"{quoted(name)} is not a name of the MCP registry, which has a namespace and a slash: "
            f"io.github.user/weather.{_hint(name)}"
        )
    if version is not None and not _VERSION.fullmatch(version):
        raise ConfigError(f"{quoted(version)} is not a version: write registry:{name}@1.2.3, or leave it out.")
    answer = _get(f"/v0.1/servers/{quote(name, safe='')}/versions/{quote(version or 'latest', safe='')}")
    if answer is None:
        what = f"no version {version} of {name}" if version else f"no server {name}"
        raise ConfigError(f"The registry {registry_address()} has {what}.{_hint(name)}")
    try:
        entry = RegistryEntry.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"The registry's entry of {name} cannot be read: {where}: {shortened(first['msg'])}."
        ) from error
    if entry.server.name != name:
        raise ConfigError(f"The registry answered with {quoted(entry.server.name)} when asked for {name}.")
    return entry


def _hint(name: str) -> str:
    """Return a space and a sentence with similar names; empty if there are none or the registry does not answer."""
    text = re.sub(r"[^\w.-]", "", name.rpartition("/")[2])
    if not text:
        return ""
    try:
        found = _get("/v0.1/servers", {"search": text[:100], "version": "latest", "limit": str(_SUGGESTED)}) or {}
    except ConfigError:
        return ""
    servers = found.get("servers") if isinstance(found, dict) else None
    names = [
        said
        for one in (servers if isinstance(servers, list) else [])
        if isinstance(one, dict) and isinstance(one.get("server"), dict)
        and isinstance(said := one["server"].get("name"), str) and _NAME.fullmatch(said)
    ]  # fmt: skip
    near = get_close_matches(name, names, n=3, cutoff=0.0)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def registry_address() -> str:
    """Return the registry's address. Raises ConfigError unless it is https:// or on loopback."""
    base = os.environ.get(VARIABLE, "").rstrip("/") or OFFICIAL
    try:
        parts = urlsplit(base)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if not host or not (
        parts.scheme == "https" or (parts.scheme == "http" and host in ("127.0.0.1", "localhost", "::1"))
    ):
        raise ConfigError(f"{VARIABLE} must be an address that begins with https://, not {quoted(base)}.")
    return base


def _get(path: str, query: dict[str, str] | None = None) -> Any:
    """Return the JSON at this path; None for status 404. Raises ConfigError."""
    base = registry_address()
    url = httpx.URL(base + path, params=query) if query else httpx.URL(base + path)
    try:
        with httpx.Client(timeout=_SECONDS, follow_redirects=False) as client:
            for _ in range(_MOST_REDIRECTS):
                with client.stream("GET", url, headers={"Accept": "application/json"}) as answer:
                    if not answer.is_redirect or answer.next_request is None:
                        return _content(answer, base)
                    target = answer.next_request.url
                if (target.scheme, target.host, target.port) != (url.scheme, url.host, url.port):
                    raise ConfigError(
                        f"The registry {base} redirects to another host, {quoted(target.host)}: name that one in "
                        f"{VARIABLE} if you trust it."
                    )
                url = target
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = shortened(str(error)) or type(error).__name__
        raise ConfigError(
            f"The registry {base} cannot be asked: {said}. Name the server's command or URL instead, or another "
            f"registry in {VARIABLE}."
        ) from error
    raise ConfigError(f"The registry {base} redirects without end.")


def _content(answer: httpx.Response, base: str) -> Any:
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        raise ConfigError(f"The registry {base} answered with status {answer.status_code}; try again later.")
    content = b""
    for part in answer.iter_bytes():
        content += part
        if len(content) > _LONGEST:
            raise ConfigError(f"The registry {base} answered with more than {_LONGEST // 1_000_000} MB.")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The registry {base} did not answer with JSON; is it an MCP registry?") from error
