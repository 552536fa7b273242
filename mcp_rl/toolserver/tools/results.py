"""Results of tool calls, and the text that a model reads of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHARACTERS = 40_000


@dataclass(frozen=True)
class ToolResult:
    """The outcome of a call. An error that the tool reports is a result, not a fault."""

    text: str
    """The text that the model reads."""
    structured: Any = None
    """The structured content as JSON; None if there is none."""
    is_error: bool = False
    seconds: float = 0.0
    """Time from the call to its result."""
    asked: tuple[dict[str, Any], ...] = ()
    """Questions that the server asked the user during the call: `message`, `action` and, if accepted, `content`."""


def read_result(raw: dict[str, Any], seconds: float, *, max_characters: int = MAX_CHARACTERS) -> ToolResult:
    """Read the raw result of `tools/call` (MCP specification 2025-11-25, server/tools)."""
    blocks = raw.get("content")
    texts = [block_text(block) for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    structured = raw.get("structuredContent")
    text = "\n".join(texts)
    if not texts and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    return ToolResult(truncate_middle(text, max_characters), structured, raw.get("isError") is True, seconds)


def truncate_middle(text: str, limit: int, measure: Callable[[str], int] = len, unit: str = "characters") -> str:
    """Cut the middle out of a text longer than `limit`, and put a mark with the full size in its place.

    `measure` returns the size of a text in `unit`, for example a tokenizer's count, and must not decrease when text is
    added.
    """
    size = measure(text)
    if size <= limit:
        return text
    mark = f"\n[… cut: {size} {unit} in all …]\n"
    low, high = 0, len(text)
    while low < high:
        kept = (low + high + 1) // 2
        if measure(_ends(text, kept, mark)) <= limit:
            low = kept
        else:
            high = kept - 1
    return _ends(text, low, mark)


def _ends(text: str, kept: int, mark: str) -> str:
    head = (kept + 1) // 2
    tail = kept - head
    return text[:head] + mark + (text[-tail:] if tail else "")


def block_text(block: dict[str, Any]) -> str:
    """Return the text of one content block."""
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "image" | "audio" as kind:
            return f"[{kind}: {block.get('mimeType', 'unknown type')}, {_size(block.get('data'))}]"
        case "resource_link":
            about = " - ".join(str(block[key]) for key in ("name", "description") if block.get(key))
            return f"[link: {block.get('uri', '')}{', ' + about if about else ''}]"
        case "resource":
            inside = block.get("resource")
            return resource_text(inside if isinstance(inside, dict) else {})
        case kind:
            return f"[{kind} content]"


def resource_text(resource: dict[str, Any]) -> str:
    """Return the text of a resource's contents."""
    name = f"{resource.get('uri', '')}, {resource.get('mimeType', 'unknown type')}"
    if isinstance(resource.get("text"), str):
        return f"[resource: {name}]\n{resource['text']}"
    return f"[resource: {name}, {_size(resource.get('blob'))}]"


def _size(base64: Any) -> str:
    """Return the number of bytes of base64 data, without decoding it."""
    text = base64 if isinstance(base64, str) else ""
    return f"{len(text) * 3 // 4 - text[-2:].count('=')} bytes"
