"""A server's tools, taken from the raw listing so that one bad entry cannot hide the others."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

_MAX_PAGES = 1000
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends a request (method, parameters) and gives the raw result."""


@dataclass(frozen=True)
class Tool:
    """A tool as its server describes it, in raw JSON."""

    name: str
    """The server's own name, which may hold any characters."""
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = field(default_factory=dict)
    """Hints in the words of the specification: `readOnlyHint`, `idempotentHint`, …"""
    title: str | None = None

    @property
    def repeatable(self) -> bool:
        """Whether calling it twice is as good as once."""
        return self.annotations.get("readOnlyHint") is True or self.annotations.get("idempotentHint") is True


async def pages(ask: Ask, method: str) -> AsyncIterator[tuple[dict[str, Any], str | None]]:
    """Every page of a listing as it came; beside the last one, a sentence where more may be there."""
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        page = await ask(method, {"cursor": cursor} if cursor is not None else {})
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            yield page, None
            return
        if cursor in seen:
            yield page, "The listing repeats a page, so it was read up to there."
            return
        seen.add(cursor)
        yield page, None


async def list_tools(ask: Ask) -> tuple[list[Tool], list[str]]:
    """All tools of all pages, and a sentence for each entry that was left out."""
    tools: dict[str, Tool] = {}
    warnings: list[str] = []
    async for page, remark in pages(ask, "tools/list"):
        for entry in entries(page, "tools"):
            try:
                tool = read_tool(entry)
                if tool.name in tools:
                    raise ValueError("its name is there twice")
                tools[tool.name] = tool
            except ValueError as error:
                named = entry.get("name") if isinstance(entry, dict) else None
                warnings.append(f"Tool {named!r} was left out: {error}.")
        if remark is not None:
            warnings.append(remark)
    for warning in warnings:
        log.warning("%s", warning)
    return list(tools.values()), warnings


def entries(page: dict[str, Any], key: str) -> list[Any]:
    """What a page lists under `key`; empty where that is no list."""
    listed = page.get(key)
    return listed if isinstance(listed, list) else []


def read_tool(entry: Any) -> Tool:
    """Raises ValueError with what is wrong about the entry."""
    if not isinstance(entry, dict):
        raise ValueError("it is no JSON object")
    name, schema = entry.get("name"), entry.get("inputSchema")
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if not isinstance(schema, dict) or not schema:
        raise ValueError("its inputSchema is empty")
    if schema.get("type", "object") != "object":
        raise ValueError(f"its inputSchema is of type {schema['type']!r} instead of 'object'")
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
