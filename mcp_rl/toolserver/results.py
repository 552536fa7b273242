"""What a tool returned, and the text of it that a model reads."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_CHARACTERS = 40_000


@dataclass(frozen=True)
class ToolResult:
    """The outcome of one call. A tool that reports an error is an outcome too, not a fault."""

    text: str
    """What the model reads."""
    structured: Any = None
    """The structured content as JSON; None where there is none."""
    is_error: bool = False
    seconds: float = 0.0
    """From the call to its result."""


def read_result(raw: dict[str, Any], seconds: float, *, max_characters: int = MAX_CHARACTERS) -> ToolResult:
    """The result of `tools/call` as it came over the wire (MCP specification 2025-11-25, server/tools)."""
    blocks = raw.get("content")
    texts = [block_text(block) for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    structured = raw.get("structuredContent")
    text = "\n".join(texts)
    if not texts and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    return ToolResult(truncate_middle(text, max_characters), structured, raw.get("isError") is True, seconds)


def truncate_middle(text: str, limit: int, measure: Callable[[str], int] = len, unit: str = "characters") -> str:
    """`text`, or its beginning and end with a mark between them that says how much there was.

    `measure` gives the size of a text in `unit`, `limit` is the size of the result at most; pass a tokenizer's count
    to cut by tokens. `measure` may not shrink when text is added.
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
    """What a model reads of one content block."""
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "image" | "audio" as kind:
            return f"[{kind}: {block.get('mimeType', 'unknown type')}, {_size(block.get('data'))}]"
        case "resource_link":
            about = " - ".join(str(block[key]) for key in ("name", "description") if block.get(key))
            return f"[link: {block.get('uri', '')}{', ' + about if about else ''}]"
        case "resource":
            return resource_text(block.get("resource") or {})
        case kind:
            return f"[{kind} content]"


def resource_text(resource: dict[str, Any]) -> str:
    """What a model reads of the contents of a resource."""
    name = f"{resource.get('uri', '')}, {resource.get('mimeType', 'unknown type')}"
    if isinstance(resource.get("text"), str):
        return f"[resource: {name}]\n{resource['text']}"
    return f"[resource: {name}, {_size(resource.get('blob'))}]"


def _size(base64: Any) -> str:
    """Bytes behind base64 data, counted without decoding it."""
    text = base64 if isinstance(base64, str) else ""
    return f"{len(text) * 3 // 4 - text[-2:].count('=')} bytes"
