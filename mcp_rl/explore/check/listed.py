"""Findings about a listing alone: schemas, names, annotations, undeclared isolation."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.check import catalogue
from mcp_rl.explore.check.inspection import prompt_tokens
from mcp_rl.explore.explorable import reads_only
from mcp_rl.explore.words import words_of
from mcp_rl.system.visible import count, shortened
from mcp_rl.toolserver.isolation import changing_tools, effective_isolation, names
from mcp_rl.toolserver.tools.validation import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.explore.check.findings import Finding
    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool
    from mcp_rl.toolserver.tools.schema import ToolSchemas

_DESTROYS = re.compile(
    r"\b(?:delete|remove|drop|destroy|erase|purge|truncate|overwrite|write|create|insert|append|update|rename)\b"
)
_LOOKS = re.compile(r"^(?:get|list|read|search|find|show|count|describe|lookup|look up)\b")
_RESETS = re.compile(r"^(?:reset|restart|clear all|delete all)\b")
_DEAREST = 4000
"""Most tokens of schemas without a finding. The built-in model has a context of 8192."""


def listing_findings(
    server: ToolServer, params: OneServer, tools: Sequence[Tool], warnings: Sequence[str], schemas: ToolSchemas
) -> Iterator[Finding]:
    """Yield everything that can be said before a tool is called; `warnings` name tools that were left out."""
    for warning in warnings:
        yield catalogue.TOOL_LEFT_OUT.found(warning=warning)
    yield from _schemas(tools)
    yield from _names(schemas)
    if silent := [tool.name for tool in tools if not (tool.description or tool.title)]:
        yield catalogue.NO_DESCRIPTION.found(silent, names=names(silent))
    if (tokens := prompt_tokens(schemas.openai)) > _DEAREST:
        yield catalogue.COSTLY_SCHEMAS.found(tokens=tokens)
    yield from _annotations(tools)
    if server.isolation is None:
        yield from _undeclared(server, params, tools)


def _schemas(tools: Sequence[Tool]) -> Iterator[Finding]:
    valid = True
    for tool in tools:
        for kind, schema in (
            (catalogue.BAD_INPUT_SCHEMA, tool.input_schema),
            (catalogue.BAD_OUTPUT_SCHEMA, tool.output_schema),
        ):
            if schema is not None and (why := _schema_error(schema)):
                valid = False
                yield kind.found([tool.name], tool=tool.name, why=why)
    if valid:
        yield catalogue.VALID_SCHEMAS.found(tools=count(len(tools), "tool"))


def _schema_error(schema: dict[str, Any]) -> str | None:
    try:
        check_schema(schema)
    except Exception as error:  # jsonschema's SchemaError, and anything that a malformed pattern or reference raises
        return shortened(str(getattr(error, "message", error)), 120)
    return None


def _names(schemas: ToolSchemas) -> Iterator[Finding]:
    cleaned = {name: clean for name, clean in schemas.to_openai.items() if name != clean}
    if cleaned:
        pairs = names([f"{name} -> {clean}" for name, clean in cleaned.items()])
        yield catalogue.CLEANED_NAMES.found(cleaned, number=len(cleaned), names=pairs)


def _annotations(tools: Sequence[Tool]) -> Iterator[Finding]:
    agreed = True
    for tool in tools:
        words, read_only = words_of(tool.name), tool.annotations.get("readOnlyHint")
        sounds_changing = _DESTROYS.search(words)
        if read_only is True and sounds_changing:
            kind = catalogue.CALLED_READ_ONLY
        elif read_only is True and tool.annotations.get("destructiveHint") is True:
            kind = catalogue.CONTRADICTORY_HINTS
        elif read_only is False and _LOOKS.search(words) and not sounds_changing:
            kind = catalogue.CALLED_CHANGING
        else:
            continue
        agreed = False
        yield kind.found([tool.name], tool=tool.name)
    bare = [tool.name for tool in tools if not {"readOnlyHint", "destructiveHint"} & tool.annotations.keys()]
    if bare:
        yield catalogue.UNANNOTATED.found(bare, number=len(bare), all=len(tools), names=names(bare))
    elif agreed:
        yield catalogue.ANNOTATED.found()


def _undeclared(server: ToolServer, params: OneServer, tools: Sequence[Tool]) -> Iterator[Finding]:
    """Yield findings about tools that seem to change things on a server without a declared isolation."""
    isolation, _ = effective_isolation(server, tools)
    reset = next((tool.name for tool in tools if _RESETS.search(words_of(tool.name))), None)
    quick = f"--reset-tool {reset}, or else " if reset else ""
    bare = [tool for tool in tools if not tool.annotations]
    sound_changing = [tool.name for tool in bare if not reads_only(replace(tool, annotations={}))]
    if isolation == "shared" and sound_changing:
        yield catalogue.UNDECLARED_AND_UNANNOTATED.found(sound_changing, names=names(sound_changing), quick=quick)
    elif isolation == "per-rollout":
        changing = changing_tools(tools)
        own_process, own_connection = catalogue.UNDECLARED_OWN_PROCESS, catalogue.UNDECLARED_OWN_CONNECTION
        kind = own_process if params.ours_to_start else own_connection
        yield kind.found(changing, names=names(changing), quick=quick)
