"""Changes of a server's listing: tools that were added, removed or described differently.

Only changes that a model sees count, which are those of `ToolSchemas.hash`: names, descriptions and schemas, but not
the order or what only validators read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.errors import SchemaChanged
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.toolserver.tools.listing import Tool

_NAMED = 5
"""Number of tools of each kind that a sentence names."""


def listing_change(before: Sequence[Tool], after: Sequence[Tool]) -> str | None:
    """Return the difference as a predicate such as "has added 'a' and changed 'b'"; None if there is none."""
    if before == after:
        return None
    old, new = _seen_by_a_model(before), _seen_by_a_model(after)
    parts = [
        f"{verb} {_names(names)}"
        for verb, names in (
            ("added", new.keys() - old.keys()),
            ("removed", old.keys() - new.keys()),
            ("changed", {name for name in old.keys() & new.keys() if old[name] != new[name]}),
        )
        if names
    ]
    return f"has {' and '.join(parts)}" if parts else None


def changed_sentence(server: str, change: str) -> str:
    """Return a sentence from the result of `listing_change`; `server` is its subject, such as "The server NAME"."""
    return f"{server} {change} since its tools were listed."


def schema_changed(sentence: str) -> SchemaChanged:
    """Return the error that stops a run whose model was given other tools."""
    return SchemaChanged(f"{sentence} Start again, or allow the change with --allow-schema-change.")


def _seen_by_a_model(tools: Sequence[Tool]) -> dict[str, object]:
    schemas = ToolSchemas(tools)
    functions = {function["function"]["name"]: function for function in schemas.openai}
    return {name: functions[ours] for name, ours in schemas.to_openai.items()}


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(repr(name)[:80] for name in ordered[:_NAMED])
    more = len(ordered) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown
