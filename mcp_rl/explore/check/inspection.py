"""The listing of a server: its tools as a model gets them, its resources and its prompts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ServerFault
from mcp_rl.explore.first_contact import will_measure
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.connection.connection import Connection, connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.isolation import effective_isolation
from mcp_rl.toolserver.launchers.direct import direct, packages
from mcp_rl.toolserver.pool import open_sessions
from mcp_rl.toolserver.sandbox.choice import sandbox_of
from mcp_rl.toolserver.tools.offered import offering
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.config import Isolation
    from mcp_rl.scenario import OneServer, ServerParams
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool


_COUNTED = 200_000
"""Characters of the tools' part of a prompt whose tokens are counted."""


@dataclass(frozen=True)
class OfferedTool:
    """A tool as the model gets it, with what else the server says about it."""

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
    """False for tools that no model gets."""
    why_hidden: str = ""
    """Why no model gets it: it is the reset tool, or ends the server."""


@dataclass(frozen=True)
class Inspection:
    """The listing of a server, known without calling a tool."""

    name: str
    origin: str
    transport: str
    protocol: str
    """The protocol revision that is spoken, such as 2025-11-25."""
    server_info: dict[str, str]
    isolation: Isolation
    isolation_reason: str
    schema_hash: str
    prompt_tokens: int
    """Cost of the schemas in every prompt, in tokens of the built-in model."""
    tools: list[OfferedTool]
    warnings: list[str]
    """A sentence for each tool left out."""
    resources: list[dict[str, Any]] = field(default_factory=list)
    resource_templates: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    package: dict[str, str] | None = None
    """The package or image that a launcher started it from: launcher, name, version, integrity, dependencies."""
    command: tuple[str, ...] = ()
    """The command that the launcher was replaced by; empty if the server is started as it is named."""


async def inspect(server: ToolServer, params: OneServer) -> Inspection:
    """Connect, ask for everything that the server lists, and close. Raises ServerError where it cannot be used."""
    sandbox = sandbox_of(server)
    async with connect(params, deadlines=deadlines_of(server), name=server.name, sandbox=sandbox) as connection:
        link = await offering(connection, server.offer)
        schemas = offered_schemas(server, link.tools)
        if server.measured is not None and server.measured.listing != schemas.hash:
            server = replace(server, isolation=None, measured=None)
        isolation, reason = effective_isolation(server, link.tools)
        if will_measure(server, params.transport, ToolsConfig()):
            reason += "; the first run measures it, and mcp-rl servers check does so now"
        every = ToolSchemas(link.tools)
        return Inspection(
            server.name, server.origin, params.transport, connection.revision, connection.server_info, isolation,
            reason, schemas.hash, prompt_tokens(schemas.openai),
            [_offered_tool(tool, schemas, every, server.reset_tool) for tool in link.tools], link.warnings,
            await connection.resources(), await _templates(connection), await connection.prompts(),
            asdict(found) if (found := packages(params, name=server.name).get(server.name)) else None,
            await _direct_command(params, server.name),
        )  # fmt: skip


async def openai_tools(server: ToolServer, params: ServerParams, tools: ToolsConfig) -> list[dict[str, Any]]:
    """Return the tools of a server, or of several together, as rollouts show them. Raises ServerError, ConfigError."""
    async with open_sessions(server, tools) as sessions:
        return (await sessions.get(params)).schemas.openai


def _offered_tool(tool: Tool, schemas: ToolSchemas, every: ToolSchemas, reset_tool: str | None) -> OfferedTool:
    """Describe a tool by the schemas that the model gets, or where it gets none by those of every tool."""
    offered = tool.name in schemas.to_openai
    shown = schemas if offered else every
    called = shown.to_openai[tool.name]
    function = next(entry["function"] for entry in shown.openai if entry["function"]["name"] == called)
    return OfferedTool(
        tool.name, called, function["description"], function["parameters"], tool.output_schema, tool.annotations,
        offered, "" if offered else "the reset tool" if tool.name == reset_tool else "it ends the server",
    )  # fmt: skip


def offered_schemas(server: ToolServer, tools: Iterable[Tool]) -> ToolSchemas:
    """Return the schemas that the model gets: those of all tools but the reset tool and those that end the server."""
    fatal = {call.tool for call in server.measured.fatal} if server.measured else set()
    return ToolSchemas(tool for tool in tools if tool.name != server.reset_tool and tool.name not in fatal)


def deadlines_of(server: ToolServer) -> Deadlines:
    """Return the default deadlines with those that the plugin sets."""
    return Deadlines().of_steps(server.deadlines)


def prompt_tokens(functions: Iterable[dict[str, Any]]) -> int:
    """Count the tokens of the tools' part of a prompt, in the built-in model's format and with its tokenizer.

    Of more than 200,000 characters, which no model reads, the first ones are counted, and the rest like them.
    """
    from tokenizers import Tokenizer

    from mcp_rl.tiny import weights_path

    text = "".join("\n" + json.dumps(function, ensure_ascii=False) for function in functions)
    tokenizer = Tokenizer.from_file(str(weights_path() / "tokenizer.json"))
    tokens = len(tokenizer.encode(text[:_COUNTED], add_special_tokens=False).ids)
    return tokens if len(text) <= _COUNTED else tokens * len(text) // _COUNTED


async def _direct_command(params: OneServer, name: str) -> tuple[str, ...]:
    """Return the command that a server is started by in place of its launcher; its launcher has been asked already."""
    started = await direct(params, server=f"The server {name}")
    launch = started if isinstance(started, StdioServer) else started.launch
    return (launch.command, *launch.args) if launch is not None and started is not params else ()


async def _templates(connection: Connection) -> list[dict[str, Any]]:
    """Return the first page of resource templates, or none where the server has none or fails to answer."""
    try:
        listed = (await connection.ask("resources/templates/list")).get("resourceTemplates")
    except ServerFault:
        return []
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
