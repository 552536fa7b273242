"""Servers of the registry that the user has agreed to in this process, by the text of `--server`.

A server is looked up before anything of the command runs, and exactly what was shown then is started later.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.toolserver.mcp_registry.entry import RegistryEntry, RegistryOffer
    from mcp_rl.toolserver.tool_server import ToolServer

PREFIX = "registry:"
_agreed: dict[str, ToolServer] = {}


@dataclass(frozen=True)
class Proposal:
    """What a text such as `registry:io.github.user/weather` would run."""

    text: str
    registry: str
    entry: RegistryEntry
    offer: RegistryOffer

    @property
    def lines(self) -> Iterator[str]:
        """Yield what the user has to know before agreeing, as lines without control characters."""
        from mcp_rl.system.visible import shortened

        server = self.entry.server
        yield f"{server.name} {shortened(server.version, 60)}, in the registry {self.registry}"
        if server.description:
            yield f"  about: {shortened(server.description)}"
        if self.entry.warning:
            yield f"  {self.entry.warning}"
        yield f"  runs: {self.offer.runs}"
        yield f"  which is: {self.offer.package}"
        for line in self.offer.variables:
            yield f"  gets: {line}"

    def agree(self) -> None:
        """Let the rest of this process start it."""
        _agreed[self.text] = self.offer.server(self.entry, f"registry {self.registry}")


def propose(text: str, transport: str | None = None) -> Proposal:
    """Look up a text that begins with `registry:`, whose further words are arguments of the user's own.

    Raises ConfigError, one sentence, if there is no such server or nothing of it can be used.
    """
    from mcp_rl.toolserver.mcp_registry.entry import offer_of
    from mcp_rl.toolserver.mcp_registry.lookup import find_entry, registry_address

    try:
        name, *words = shlex.split(text.removeprefix(PREFIX)) or [""]
    except ValueError as error:
        raise ConfigError(f"Cannot read the server {text!r}: {error}.") from error
    name, _, version = name.partition("@")
    entry = find_entry(name, version or None)
    return Proposal(text, registry_address(), entry, offer_of(entry, words, transport))


def agreed_server(text: str) -> ToolServer:
    """Return the server of a text that the user has agreed to. Raises ConfigError for another one."""
    if text not in _agreed:
        raise ConfigError(
            f"{text!r} has not been agreed to: name it with --server, which shows what it would run and asks; --yes "
            "agrees without being asked."
        )
    return _agreed[text]
