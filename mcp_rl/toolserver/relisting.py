"""What became of a server's listing: tools that came, went, or are described in another way.

Only what a model sees counts, and so what `ToolSchemas.hash` depends on: names, descriptions and schemas, not the order
and not what only validators read.
"""

from collections.abc import Iterable, Sequence

from mcp_rl.errors import SchemaChanged
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.schema import ToolSchemas

_NAMED = 5
"""Tools that a sentence names of each kind."""


def listing_change(before: Sequence[Tool], after: Sequence[Tool]) -> str | None:
    """What is different, in words that follow "the server": "has added 'a' and changed 'b'"; None where nothing is."""
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


def changed_sentence(whose: str, change: str) -> str:
    """What `listing_change` found, as a sentence about the server that `whose` begins with."""
    return f"{whose} {change} since its tools were listed."


def schema_changed(sentence: str) -> SchemaChanged:
    """What a run gets whose model was told of other tools, and what to do about it."""
    return SchemaChanged(f"{sentence} Start again, or let calls go on with --allow-schema-change.")


def _seen_by_a_model(tools: Sequence[Tool]) -> dict[str, object]:
    schemas = ToolSchemas(tools)
    functions = {function["function"]["name"]: function for function in schemas.openai}
    return {name: functions[ours] for name, ours in schemas.to_openai.items()}


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ", ".join(repr(name)[:80] for name in ordered[:_NAMED])
    more = len(ordered) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown
