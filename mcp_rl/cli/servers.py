"""`mcp-rl servers`: what there is, and what one of them is like."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_rl.cli.options import (
    Isolation,
    Job,
    Json,
    Offer,
    Plugin,
    ResetTool,
    ServerConfig,
    TransportOption,
    server_settings,
)

if TYPE_CHECKING:
    from mcp_rl.plugins.server import ToolServer

servers = typer.Typer(name="servers", invoke_without_command=True)

Named = Annotated[
    list[str],
    typer.Argument(metavar="SERVER...", help="What --server takes: a name, a script, a quoted command or a URL."),
]


@servers.callback()
def list_servers(
    context: typer.Context, plugin: Plugin = None, server_config: ServerConfig = None, json: Json = False
) -> Job | None:
    """List the tool servers there are, look at one, check one, or begin one of your own."""
    if context.invoked_subcommand is not None:
        given = [name for name, value in context.params.items() if value]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise typer.BadParameter(f"it comes after the word {context.invoked_subcommand}", param_hint=option)
        return None

    def job() -> None:
        from mcp_rl.servers import print_servers

        print_servers(plugins=plugin or [], server_config=server_config, as_json=json)

    return job


@servers.command()
def inspect(
    server: Named,
    transport: TransportOption = None,
    server_config: ServerConfig = None,
    offer: Offer = None,
    plugin: Plugin = None,
    json: Json = False,
) -> Job:
    """Show what a server lists: its tools with their schemas and annotations, its resources and prompts."""
    settings = server_settings(server, transport, server_config, offer=offer, plugin=plugin)

    def job() -> None:
        from mcp_rl.servers import inspect_server

        inspect_server(_resolved(settings), transport=transport and transport.value, as_json=json)

    return job


@servers.command()
def check(
    server: Named,
    transport: TransportOption = None,
    server_config: ServerConfig = None,
    isolation: Isolation = None,
    reset_tool: ResetTool = None,
    offer: Offer = None,
    calls: Annotated[int, typer.Option(help="Calls of each tool, with sampled arguments.", min=1)] = 3,
    call_all: Annotated[
        bool, typer.Option("--call-all", help="Call tools that destroy too, where nothing keeps that harmless.")
    ] = False,
    seed: Annotated[int, typer.Option(help="All randomness follows from it.", min=0)] = 0,
    plugin: Plugin = None,
    json: Json = False,
) -> Job:
    """Start a server, call its tools, and say what training on it would trip over; exit code 1 where it would."""
    settings = server_settings(server, transport, server_config, isolation, reset_tool, offer, plugin=plugin)

    def job() -> int | None:
        from mcp_rl.servers import check_server

        return check_server(
            _resolved(settings),
            transport=transport and transport.value,
            calls=calls,
            seed=seed,
            call_all=call_all,
            as_json=json,
        )

    return job


@servers.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the server: letters, digits and _.")],
    folder: Annotated[Path, typer.Option("--dir", help="The folder to write to; this one if not given.")] = Path(),
    json: Json = False,
) -> Job:
    """Write a server, its plugin and its test, which work at once."""

    def job() -> None:
        from mcp_rl.servers import new_server

        new_server(name, folder=folder, as_json=json)

    return job


def _resolved(settings: dict[str, Any]) -> "ToolServer":
    from mcp_rl.overrides import load_config
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers

    config = load_config(options=settings)
    return resolve_servers(config.server, config.transport, plugins=load_plugins(config.plugins), tools=config.tools)
