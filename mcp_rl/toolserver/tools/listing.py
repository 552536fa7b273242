"""Reading a server's tools from the raw listing, so that one bad entry cannot hide the others."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mcp_rl.toolserver.tools.budgets import LONGEST_CURSOR, LONGEST_LISTING, Budget, json_size

log = logging.getLogger(__name__)

_MAX_PAGES = 1000
_MOST_WARNINGS = 20
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends a request (method, parameters) and returns the raw result."""


@dataclass(frozen=True)
class Tool:
    """A tool as its server describes it, in raw JSON."""

    name: str
    """The server's own name, with any characters."""
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = field(default_factory=dict)
    """The specification's hints: `readOnlyHint`, `idempotentHint`, …"""
    title: str | None = None

    @property
    def repeatable(self) -> bool:
        """True if calling it twice has the same effect as once."""
        return self.annotations.get("readOnlyHint") is True or self.annotations.get("idempotentHint") is True


async def pages(ask: Ask, method: str) -> AsyncIterator[tuple[dict[str, Any], str | None]]:
    """Yield each raw page of a listing; beside the last one, a warning if pages may be missing."""
    cursor: str | None = None
    seen: set[str] = set()
    size = 0
    for number in range(1, _MAX_PAGES + 1):
        page = await ask(method, {"cursor": cursor} if cursor is not None else {})
        size += json_size(page, LONGEST_LISTING)
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            yield page, None
            return
        if cursor in seen:
            yield page, "The listing repeats a page; it was read up to there."
            return
        if size > LONGEST_LISTING or len(cursor) > LONGEST_CURSOR or number == _MAX_PAGES:
            yield page, f"The listing is too long; its first {number} pages, {size // 2**20} MB, were read."
            return
        seen.add(cursor)
        yield page, None


async def list_tools(ask: Ask) -> tuple[list[Tool], list[str]]:
    """Return the tools of all pages, and a warning for each entry that was left out."""
    tools: dict[str, Tool] = {}
    warnings: list[str] = []
    room = Budget(LONGEST_LISTING)
    async for page, remark in pages(ask, "tools/list"):
        for entry in entries(page, "tools"):
            try:
                tool = read_tool(entry)
                if tool.name in tools:
                    raise ValueError("its name is listed twice")
                if room.left < 0:
                    raise ValueError("the listing is too long")
                room.left -= json_size(entry, LONGEST_LISTING)
                tools[tool.name] = tool
            except ValueError as error:
                named = entry.get("name") if isinstance(entry, dict) else None
                warnings.append(f"Tool {str(named)[:80]!r} was left out: {error}.")
        if remark is not None:
            warnings.append(remark)
    if len(warnings) > _MOST_WARNINGS:
        warnings[_MOST_WARNINGS:] = [f"{len(warnings) - _MOST_WARNINGS} more warnings of this kind were left out."]
    for warning in warnings:
        log.warning("%s", warning)
    return list(tools.values()), warnings


def entries(page: dict[str, Any], key: str) -> list[Any]:
    """Return the list under `key` of a page; empty if it is not a list."""
    listed = page.get(key)
    return listed if isinstance(listed, list) else []


def read_tool(entry: Any) -> Tool:
    """Read one entry. Raises ValueError that says what is wrong with it."""
    if not isinstance(entry, dict):
        raise ValueError("it is not a JSON object")
    name, schema = entry.get("name"), entry.get("inputSchema")
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if not isinstance(schema, dict) or not schema:
        raise ValueError("its inputSchema is empty")
    if schema.get("type", "object") != "object":
        raise ValueError(f"its inputSchema has the type {str(schema['type'])[:80]!r}, not 'object'")
    if not isinstance(schema.get("properties") or {}, dict):
        raise ValueError("the properties in its inputSchema are not a JSON object")
    required = schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(entry, str) for entry in required):
        raise ValueError("the required properties in its inputSchema are not a list of names")
    return Tool(
        name=name,
        description=_text(entry.get("description")) or "",
        input_schema=schema,
        output_schema=_object(entry.get("outputSchema")) or None,
        annotations=_object(entry.get("annotations")),
        title=_text(entry.get("title")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
