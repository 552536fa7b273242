"""Findings about a listing alone: schemas, names, annotations."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jsonschema.validators import Draft202012Validator, validator_for

from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import OneServer
from mcp_rl.scenarios.explorable import reads_only
from mcp_rl.servers.findings import Finding, note, ok, problem
from mcp_rl.servers.isolation import effective_isolation, names
from mcp_rl.servers.visible import count, shortened
from mcp_rl.toolserver.isolation import changing_tools
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.schema import ToolSchemas

_DESTROYS = re.compile(
    r"(?i)(?:^|_)(?:delete|remove|drop|destroy|erase|purge|truncate|overwrite|write|create|insert|append|update|rename)"
    r"(?:_|$)"
)
_LOOKS = re.compile(r"(?i)^(?:get|list|read|search|find|show|count|describe|lookup|look_up)(?:_|$)")
_RESETS = re.compile(r"^(?:reset|restart|clear_all|delete_all)(?:_|$)")
_DEAREST = 4000
"""Tokens of the built-in model that schemas may cost without a word; its context holds 8192."""


def listing_findings(
    server: ToolServer,
    params: OneServer,
    tools: Sequence[Tool],
    warnings: Sequence[str],
    schemas: ToolSchemas,
    tokens: int,
) -> list[Finding]:
    """Everything that can be said before a tool is called."""
    return [
        *_schemas(tools, warnings),
        *_names(schemas),
        *_descriptions(tools, tokens),
        *_annotations(tools),
        *_undeclared(server, params, tools),
    ]


def snake(name: str) -> str:
    """A tool's name in words with `_` between them."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower())


def _schemas(tools: Sequence[Tool], warnings: Sequence[str]) -> Iterator[Finding]:
    for warning in warnings:
        yield problem(
            "schemas",
            warning,
            "No model ever sees this tool.",
            "Mend its entry in the server's listing; the others are used without it.",
        )
    bad = False
    for tool in tools:
        for what, schema in (("inputSchema", tool.input_schema), ("outputSchema", tool.output_schema)):
            if schema is not None and (why := _no_schema(schema)):
                bad = True
                yield problem(
                    "schemas",
                    f"The {what} of {tool.name} is no valid JSON Schema: {why}",
                    "Arguments are sent without being checked, and the model is never told what it got wrong."
                    if what == "inputSchema"
                    else "Clients that check results refuse every result of this tool.",
                    "Mend the schema; https://json-schema.org/draft/2020-12 is the default dialect.",
                    [tool.name],
                )
    if not bad:
        yield ok("schemas", f"{count(len(tools), 'schema')}, all of them valid JSON Schema of objects.")


def _no_schema(schema: dict[str, Any]) -> str | None:
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except Exception as error:  # jsonschema's SchemaError, and whatever a malformed pattern or reference raises
        return shortened(str(getattr(error, "message", error)), 120)
    return None


def _names(schemas: ToolSchemas) -> Iterator[Finding]:
    cleaned = [f"{theirs} -> {ours}" for theirs, ours in schemas.to_openai.items() if theirs != ours]
    if cleaned:
        yield note(
            "schemas",
            f"OpenAI's rules do not allow the names of {len(cleaned)} tools: {names(cleaned)}.",
            "The model uses the cleaned names; calls and records have the server's own.",
            "Nothing, unless other clients are to use the server: name tools with letters, digits, _ and - alone.",
            [name for name, ours in schemas.to_openai.items() if name != ours],
        )


def _descriptions(tools: Sequence[Tool], tokens: int) -> Iterator[Finding]:
    silent = [tool.name for tool in tools if not (tool.description or tool.title)]
    if silent:
        yield note(
            "schemas",
            f"{names(silent)}: no description.",
            "A model has only the names to go by.",
            "Describe what each tool does and gives back, in a sentence.",
            silent,
        )
    if tokens > _DEAREST:
        yield note(
            "schemas",
            f"The schemas cost {tokens:,} tokens of mcp-rl/tiny in every prompt.",
            "They fill the built-in model's context of 8,192 tokens, and every episode pays for them.",
            "Choose tools: tools.include='[\"get_*\"]' or tools.exclude, or take a model with more context.",
        )


def _annotations(tools: Sequence[Tool]) -> Iterator[Finding]:
    wrong = False
    for tool in tools:
        hints = tool.annotations
        sounds = _DESTROYS.search(snake(tool.name))
        if hints.get("readOnlyHint") is True and sounds:
            wrong = True
            yield problem(
                "annotations",
                f"{tool.name} is annotated as read-only, and its name says that it changes something.",
                "Episodes would share its effects, and a call whose answer was lost is sent again.",
                "Set readOnlyHint to false; where the name misleads, rename the tool.",
                [tool.name],
            )
        elif hints.get("readOnlyHint") is True and hints.get("destructiveHint") is True:
            wrong = True
            yield note(
                "annotations",
                f"{tool.name} is annotated as read-only and as destructive.",
                "It is taken to be read-only, since the other hint has no meaning then.",
                "Remove one of the two.",
                [tool.name],
            )
        elif hints.get("readOnlyHint") is False and _LOOKS.search(snake(tool.name)) and not sounds:
            wrong = True
            yield note(
                "annotations",
                f"{tool.name} is annotated as changing things, and its name says that it looks something up.",
                "Where nobody declares an isolation, each rollout gets a process of its own for it, which is slow.",
                "Set readOnlyHint to true if it changes nothing.",
                [tool.name],
            )
    bare = [tool.name for tool in tools if not {"readOnlyHint", "destructiveHint"} & tool.annotations.keys()]
    if bare:
        yield note(
            "annotations",
            f"{len(bare)} of {len(tools)} tools do not say whether they change anything: {names(bare)}.",
            "They are judged by their names, and a call of theirs whose answer was lost is not sent again.",
            "Annotate them with readOnlyHint, destructiveHint and idempotentHint.",
            bare,
        )
    elif not wrong:
        yield ok("annotations", "All tools say whether they change anything, and their names agree.")


def _undeclared(server: ToolServer, params: OneServer, tools: Sequence[Tool]) -> Iterator[Finding]:
    """Tools that seem to change things on a server that nobody keeps episodes apart on."""
    if server.isolation is not None:
        return
    isolation, _ = effective_isolation(server, tools)
    resets = [tool.name for tool in tools if _RESETS.search(snake(tool.name))]
    quick = f"--reset-tool {resets[0]}, or else " if resets else ""
    bare = [tool.name for tool in tools if not reads_only(replace(tool, annotations={})) and not tool.annotations]
    if isolation == "shared" and bare:
        yield problem(
            "isolation",
            f"Nobody declared how episodes are kept apart, no annotation says that anything changes, and {names(bare)} "
            "sound as if they changed things.",
            "All rollouts would share one server, and one would see what another one did.",
            f"Declare it: {quick}--isolation per-rollout (--isolation shared where they change nothing).",
            bare,
        )
    elif isolation == "per-rollout":
        changing = changing_tools(tools)
        yield note(
            "isolation",
            f"Nobody declared how episodes are kept apart; {names(changing)} may change things.",
            "Each rollout gets a new process, and a temporary folder of its own ({tmp}); files, databases and "
            "services that the server uses elsewhere are not kept apart by that."
            if params.ours_to_start
            else "Each rollout gets a connection of its own; whether they see each other is up to the server.",
            f"Declare it: {quick}--isolation per-rollout where {'a new process' if params.ours_to_start else 'that'} "
            "is enough.",
            changing,
        )
