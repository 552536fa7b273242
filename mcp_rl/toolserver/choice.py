"""The tools that a model sees on a server, as the user's settings choose them."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError
from mcp_rl.toolserver.isolation import implied_isolation
from mcp_rl.toolserver.session import Session
from mcp_rl.toolserver.tool_server import BETWEEN, nearest
from mcp_rl.toolserver.tools.relisting import changed_sentence, listing_change, schema_changed
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.config import Isolation, ToolsConfig
    from mcp_rl.toolserver.group import GroupLink
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.seats import Seats
    from mcp_rl.toolserver.state import FatalCall
    from mcp_rl.toolserver.tools.listing import Tool


@dataclass(frozen=True)
class _Known:
    """A server's last listing, and the schemas and the isolation made from it."""

    tools: list[Tool]
    schemas: ToolSchemas
    isolation: Isolation


class ToolChoice:
    """Makes sessions with the schemas of the chosen tools; equal listings share one `ToolSchemas` object.

    `key` names a server by its parameters. `reset_tool` is hidden from the model, and so are the tools of `fatal`,
    calls that ended the server, and what `seats` hides. `in_group` leaves it to the group to check that the settings
    name tools that exist.
    """

    def __init__(
        self,
        server: str,
        settings: ToolsConfig,
        *,
        reset_tool: str | None,
        in_group: bool,
        fatal: Sequence[FatalCall] = (),
        seats: Seats | None = None,
    ) -> None:
        self._server, self._settings = server, settings
        self._reset_tool, self._in_group, self._seats = reset_tool, in_group, seats
        self._fatal = {call.tool: call for call in fatal}
        self._known: dict[str, _Known] = {}

    def session(self, key: str, link: Link) -> Session:
        """Return a session on the link.

        Raises SchemaChanged if the server lists other tools than before and the settings do not allow that.
        """
        known = self._known.get(key)
        if known is None or known.tools != link.tools:
            change = listing_change(known.tools, link.tools) if known else None
            if change and not self._settings.allow_schema_change:
                raise schema_changed(changed_sentence(f"The server {self._server}", change))
            schemas = self._chosen_schemas(link.tools)
            isolation, _ = implied_isolation(tool for tool in link.tools if tool.name in schemas.to_openai)
            known = self._known[key] = _Known(list(link.tools), schemas, isolation)
        return Session(link, known.schemas, self._seats)

    def group_session(self, key: str, link: GroupLink, tools: list[Tool]) -> Session:
        """Return a session on several servers; `tools` are those that the members' sessions offer."""
        known = self._known.get(key)
        if known is None or known.tools != tools:
            schemas = ToolSchemas(tools)
            self._check([tool.name for tool in link.tools], link.plain_names, schemas)
            known = self._known[key] = _Known(tools, schemas, "shared")
        return Session(link, known.schemas)

    def isolation(self, key: str) -> Isolation | None:
        """Return the isolation that the annotations of the chosen tools imply; None before the first listing."""
        known = self._known.get(key)
        return known.isolation if known else None

    def _chosen_schemas(self, tools: list[Tool]) -> ToolSchemas:
        """Return the schemas of the chosen tools. Raises ConfigError for settings that name no tool or leave none."""
        names = [tool.name for tool in tools]
        hidden = self._reset_tool
        if hidden is not None and hidden not in names:
            raise ConfigError(f"The server {self._server} has no reset tool {hidden!r}; {nearest(hidden, names)}")
        offered = [tool for tool in tools if tool.name != hidden and self._chosen(tool.name)]
        schemas = ToolSchemas(offered if self._seats is None else self._for_seats(self._seats, offered, names))
        if not schemas.openai and (lost := next((self._fatal[name] for name in names if name in self._fatal), None)):
            raise ConfigError(
                f"No tool of the server {self._server} is left. {lost.sentence(self._server)} To offer it anyway, "
                "declare an isolation (--isolation per-rollout)."
            )
        if not self._in_group:
            self._check(names, [f"{self._server}{BETWEEN}{name}" for name in names], schemas)
        return schemas

    def _for_seats(self, seats: Seats, tools: list[Tool], names: list[str]) -> list[Tool]:
        """Return the tools as each seat's model sees them. Raises ConfigError for seats that name no tool."""
        if missing := next((name for name in seats.named if name not in names), None):
            raise ConfigError(
                f"The seats of the server {self._server} name the tool {missing!r}, which it lacks; "
                f"{nearest(missing, names)}"
            )
        return [seats.without_argument(tool) for tool in tools if tool.name not in seats.hidden]

    def _chosen(self, name: str) -> bool:
        names = [name, f"{self._server}{BETWEEN}{name}"]
        included = not self._settings.include or _any_match(names, self._settings.include)
        return included and name not in self._fatal and not _any_match(names, self._settings.exclude)

    def _check(self, listed: list[str], aliases: list[str], schemas: ToolSchemas) -> None:
        """Raise ConfigError if a setting names no tool by its listed name or an alias, or if no tool is left."""
        names = [*listed, *aliases]
        settings = self._settings
        named = {"include": settings.include, "exclude": settings.exclude, "deadlines": settings.deadlines}
        for key, patterns in named.items():
            for pattern in patterns:
                if not (pattern in names if key == "deadlines" else _any_match(names, [pattern])):
                    raise ConfigError(
                        f"tools.{key} names {pattern!r}, but the server {self._server} has no such tool; "
                        f"{nearest(pattern, listed)}"
                    )
        if listed and not schemas.openai:
            raise ConfigError(f"tools.include and tools.exclude leave no tool of the server {self._server}.")


def _any_match(names: list[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)
