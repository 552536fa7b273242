"""Ask the user before a server of the MCP registry is started, and remember the answer for this process.

A `--server registry:NAME` is looked up and shown before the command does anything else. The server that is started
later is exactly the one that was shown.
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
"""The servers that the user has agreed to, by the text of `--server`."""


@dataclass(frozen=True)
class Proposal:
    """A registry server that the user is asked about: the command or address that it would use."""

    text: str
    """The text of `--server`, such as `registry:io.github.user/weather`."""
    registry: str
    """Address of the registry."""
    entry: RegistryEntry
    offer: RegistryOffer

    @property
    def lines(self) -> Iterator[str]:
        """Yield the lines to show before asking, without control characters."""
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
        """Allow the rest of this process to start the server."""
        _agreed[self.text] = self.offer.server(self.entry, f"registry {self.registry}")


def propose(text: str, transport: str | None = None) -> Proposal:
    """Look up a text such as `registry:NAME@VERSION ARGUMENT …`, whose arguments are added to the server's command.

    Raises ConfigError if there is no such server, or if it offers no package and no address that can be used.
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
    """Return the server of this `--server` text. Raises ConfigError if the user has not agreed to it."""
    if text not in _agreed:
        raise ConfigError(
            f"{text!r} has not been agreed to: name it with --server, which shows what it would run and asks; --yes "
            "agrees without being asked."
        )
    return _agreed[text]
