"""A server's resources and prompts as tools for the model: for each kind, one that lists and one that fetches."""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

from mcp_rl.toolserver.connection.call import Refused
from mcp_rl.toolserver.link import Link, WrappedLink
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.results import MAX_CHARACTERS, ToolResult, block_text, resource_text, truncate_middle

_READS = {"readOnlyHint": True, "idempotentHint": True}
_Answer = Callable[[dict[str, Any], float | None], Awaitable[str]]


class RequestLink(Link, Protocol):
    """A link that can send any request."""

    @property
    def capabilities(self) -> frozenset[str]: ...

    async def ask(
        self, method: str, params: dict[str, Any] | None = None, *, deadline: float | None = None
    ) -> dict[str, Any]: ...

    async def prompts(self) -> list[dict[str, Any]]: ...


async def offering(link: RequestLink, offer: Sequence[str]) -> Link:
    """Add tools for what is offered ("resources", "prompts") to a link. A kind that the server lacks is a warning.

    Raises ServerFault if the server does not answer a listing.
    """
    if not offer:
        return link
    offered = OfferedLink(link)
    for what in offer:
        found = await (link.resources() if what == "resources" else link.prompts())
        templates = await _templates(link) if what == "resources" else []
        if not found and what in link.capabilities:
            with suppress(Refused):
                await link.ask(f"{what}/list")  # a fault if it is unknown whether there are any
        if not found and not templates:
            offered.missing.append(f"The server has no {what} to offer as tools.")
        elif what == "resources":
            offered.add_resources(link)
        else:
            offered.add_prompts(link)
    return offered


class OfferedLink(WrappedLink):
    """A link with additional tools that read the server's resources and prompts."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.missing: list[str] = []
        """A warning for each kind that the server lacks."""
        self._ours: list[Tool] = []
        self._answers: dict[str, _Answer] = {}

    @property
    def tools(self) -> list[Tool]:
        return [*self._link.tools, *self._ours]

    @property
    def warnings(self) -> list[str]:
        return [*self._link.warnings, *self.missing]

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        answer = self._answers.get(tool_name)
        if answer is None:
            return await self._link.call(tool_name, arguments, deadline=deadline)
        began = perf_counter()
        try:
            text, is_error = await answer(arguments, deadline), False
        except Refused as refused:
            text, is_error = str(refused), True
        return ToolResult(truncate_middle(text, MAX_CHARACTERS), None, is_error, perf_counter() - began)

    def add_resources(self, link: RequestLink) -> None:
        async def listing(arguments: dict[str, Any], deadline: float | None) -> str:
            lines = [_line(entry, "uri") for entry in await link.resources()]
            return "\n".join([*lines, *(_line(entry, "uriTemplate") for entry in await _templates(link))])

        async def read(arguments: dict[str, Any], deadline: float | None) -> str:
            raw = await link.ask("resources/read", {"uri": str(arguments.get("uri", ""))}, deadline=deadline)
            contents = raw.get("contents")
            parts = [part for part in contents if isinstance(part, dict)] if isinstance(contents, list) else []
            return "\n".join(resource_text(part) for part in parts)

        self._add("list_resources", "The resources of the server: the address of each, and what it is.", {}, listing)
        uri = {"type": "string", "description": "Its address, as list_resources gives it."}
        self._add("read_resource", "What a resource of the server holds.", {"uri": uri}, read)

    def add_prompts(self, link: RequestLink) -> None:
        async def listing(arguments: dict[str, Any], deadline: float | None) -> str:
            return "\n".join(_prompt_line(entry) for entry in await link.prompts())

        async def get(arguments: dict[str, Any], deadline: float | None) -> str:
            given = arguments.get("arguments")
            texts = (
                {k: v if isinstance(v, str) else json.dumps(v) for k, v in given.items()}
                if isinstance(given, dict)
                else {}
            )
            asked = {"name": str(arguments.get("name", "")), "arguments": texts}
            raw = await link.ask("prompts/get", asked, deadline=deadline)
            messages = raw.get("messages")
            return "\n".join(_message(one) for one in messages) if isinstance(messages, list) else ""

        self._add("list_prompts", "The prompts of the server: the name of each, and what it takes.", {}, listing)
        name = {"type": "string", "description": "Its name, as list_prompts gives it."}
        taken = {
            "type": "object",
            "description": "What it takes, by name.",
            "additionalProperties": {"type": "string"},
        }
        self._add("get_prompt", "The text of a prompt of the server.", {"name": name, "arguments": taken}, get)

    def _add(self, name: str, description: str, properties: dict[str, Any], answer: _Answer) -> None:
        """Add a tool; its name begins with `server_` if the server has a tool of the same name."""
        if name in {tool.name for tool in self.tools}:
            name = f"server_{name}"
        required = [key for key in properties if key != "arguments"]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        self._ours.append(Tool(name, description, schema, annotations=dict(_READS)))
        self._answers[name] = answer


async def _templates(link: RequestLink) -> list[dict[str, Any]]:
    """Return the first page of the resource templates; empty if the server refuses."""
    try:
        raw = await link.ask("resources/templates/list")
    except Refused:
        return []
    listed = raw.get("resourceTemplates")
    entries = listed if isinstance(listed, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("uriTemplate"), str)]


def _line(entry: dict[str, Any], key: str) -> str:
    about = [str(entry[k]) for k in ("mimeType", "name", "description") if k != key and isinstance(entry.get(k), str)]
    return " - ".join([str(entry[key]), *about])


def _prompt_line(entry: dict[str, Any]) -> str:
    listed = entry.get("arguments")
    taken = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    words = ", ".join(f"{one.get('name')}{'' if one.get('required') else ' (may be left out)'}" for one in taken)
    return _line(entry, "name") + (f" - takes {words}" if words else "")


def _message(one: Any) -> str:
    if not isinstance(one, dict):
        return ""
    content = one.get("content")
    return f"{one.get('role', 'user')}: {block_text(content) if isinstance(content, dict) else ''}"
