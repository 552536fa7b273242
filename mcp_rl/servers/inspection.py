"""What a server lists: its tools as a model gets them, its resources and its prompts."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mcp_rl.config import Isolation
from mcp_rl.errors import ServerFault
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import OneServer
from mcp_rl.servers.isolation import effective_isolation
from mcp_rl.toolserver.connection import Connection, Deadlines, connect
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.offered import offering
from mcp_rl.toolserver.schema import ToolSchemas


@dataclass(frozen=True)
class OfferedTool:
    """A tool as the model gets it, and what the server says of it beside that."""

    name: str
    """The server's own name."""
    called: str
    """The name that the model uses."""
    description: str
    parameters: dict[str, Any]
    """The schema that the model reads."""
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any]
    offered: bool
    """Whether a model gets it at all; a reset tool it does not."""


@dataclass(frozen=True)
class Inspection:
    """All that is known of a server without calling a tool."""

    name: str
    origin: str
    transport: str
    server_info: dict[str, str]
    isolation: Isolation
    isolation_reason: str
    schema_hash: str
    prompt_tokens: int
    """What the schemas cost in every prompt, in tokens of the built-in model."""
    tools: list[OfferedTool]
    warnings: list[str]
    """A sentence for each tool that was left out."""
    resources: list[dict[str, Any]] = field(default_factory=list)
    resource_templates: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)


async def inspect(server: ToolServer, params: OneServer) -> Inspection:
    """Connect, ask for everything that the server lists, and close. Raises ServerError where it cannot be used."""
    async with connect(params, deadlines=deadlines_of(server), name=server.name) as connection:
        link = await offering(connection, server.offer)
        isolation, reason = effective_isolation(server, link.tools)
        schemas = offered_schemas(server, link.tools)
        functions = {function["function"]["name"]: function["function"] for function in schemas.openai}
        every = ToolSchemas(link.tools)
        everything = {function["function"]["name"]: function["function"] for function in every.openai}
        tools = []
        for tool in link.tools:
            offered = tool.name in schemas.to_openai
            called = schemas.to_openai[tool.name] if offered else every.to_openai[tool.name]
            function = functions[called] if offered else everything[called]
            tools.append(
                OfferedTool(
                    tool.name,
                    called,
                    function["description"],
                    function["parameters"],
                    tool.output_schema,
                    tool.annotations,
                    offered,
                )
            )
        return Inspection(
            server.name,
            server.origin,
            params.transport,
            connection.server_info,
            isolation,
            reason,
            schemas.hash,
            prompt_tokens(schemas.openai),
            tools,
            link.warnings,
            await connection.resources(),
            await _templates(connection),
            await connection.prompts(),
        )


def offered_schemas(server: ToolServer, tools: Iterable[Tool]) -> ToolSchemas:
    """What the model gets: everything but the tool that resets."""
    return ToolSchemas(tool for tool in tools if tool.name != server.reset_tool)


def deadlines_of(server: ToolServer) -> Deadlines:
    """The defaults, and what the plugin says."""
    return Deadlines(**server.deadlines)


def prompt_tokens(functions: Iterable[dict[str, Any]]) -> int:
    """Tokens of the tools' part of a prompt, in the format and with the tokenizer of the built-in model."""
    from tokenizers import Tokenizer

    from mcp_rl.tiny import weights_path

    text = "".join("\n" + json.dumps(function, ensure_ascii=False) for function in functions)
    tokenizer = Tokenizer.from_file(str(weights_path() / "tokenizer.json"))
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


async def _templates(connection: Connection) -> list[dict[str, Any]]:
    """The first page of resource templates; none where the server has none or fails to say."""
    try:
        listed = (await connection.ask("resources/templates/list")).get("resourceTemplates")
    except ServerFault:
        return []
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
