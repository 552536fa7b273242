"""`mcp-rl servers`: list the tool servers, inspect one, check one, or begin a new one."""

import functools
import json as jsons
from collections.abc import Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_rl.cli.groups import settings, with_groups
from mcp_rl.cli.options import ConnectionOptions, IsolationOptions, Job, Json, Plugin, ServerConfig

if TYPE_CHECKING:
    from mcp_rl.config import RunConfig
    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.tool_server import ToolServer

servers = typer.Typer(name="servers", invoke_without_command=True)


class InspectFormat(StrEnum):
    """Other forms in which tools are printed."""

    OPENAI = "openai"


Named = Annotated[
    list[str],
    typer.Argument(
        metavar="SERVER...", help="What --server takes: a name, a script, a quoted command, a URL or registry:NAME."
    ),
]


@servers.callback()
def list_servers(
    context: typer.Context, plugin: Plugin = None, server_config: ServerConfig = None, json: Json = False
) -> Job | None:
    """List the tool servers, inspect one, check one, or begin one of your own."""
    if context.invoked_subcommand is not None:
        given = [name for name, value in context.params.items() if value]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise typer.BadParameter(f"it comes after the word {context.invoked_subcommand}", param_hint=option)
        return None

    def job() -> None:
        from mcp_rl.cli.printing.server_tables import print_servers

        print_servers(plugins=plugin or [], server_config=server_config, as_json=json)

    return job


@servers.command()
@with_groups
def inspect(
    *,
    server: Named,
    connection: ConnectionOptions,
    format: Annotated[
        InspectFormat | None,
        typer.Option(
            help="openai: print only the tools, as the list that OpenAI's `tools` takes, exactly as a model sees them "
            "in training; a run keeps the same list in tools.json. Those of several servers are called server__tool."
        ),
    ] = None,
    world: Annotated[
        bool,
        typer.Option(
            "--world",
            help="Call its reading tools, and show the things behind it instead: what there is, with "
            "which fields, and the calls that show it (docs/world.md).",
        ),
    ] = False,
    json: Json = False,
) -> Job:
    """Show what a server lists: its tools with their schemas and annotations, its resources and prompts."""
    asked = {**settings(connection), "server": tuple(server)}
    if format and json:
        raise typer.BadParameter("leave out --json, since --format openai is JSON already", param_hint="--format")
    if format and world:
        raise typer.BadParameter("leave it out, since --world shows no tools", param_hint="--format")

    def job() -> None:
        if format:
            _print_openai_tools(asked)
        elif world:
            _print_world(asked, as_json=json)
        else:
            inspect_server(_resolved(asked), transport=asked["transport"], as_json=json)

    return job


@servers.command()
@with_groups
def check(
    *,
    server: Named,
    connection: IsolationOptions,
    calls: Annotated[int, typer.Option(help="Calls of each tool, with sampled arguments.", min=1)] = 3,
    call_all: Annotated[
        bool, typer.Option("--call-all", help="Call destructive tools too, even where nothing keeps that harmless.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.", min=0)] = 0,
    json: Json = False,
) -> Job:
    """Start a server, call its tools, and report what would break training on it; the exit code is then 1."""
    asked = {**settings(connection), "server": tuple(server)}

    def job() -> int | None:
        return check_server(
            _resolved(asked),
            transport=asked["transport"],
            calls=calls,
            seed=seed,
            call_all=call_all,
            as_json=json,
        )

    return job


@servers.command()
@with_groups
def login(
    *,
    server: Named,
    connection: ConnectionOptions,
    scope: Annotated[
        str | None,
        typer.Option(help="Permissions to ask for, with spaces between them. Default: those that the server names."),
    ] = None,
    client_id: Annotated[
        str | None,
        typer.Option(
            help="A client that is registered at the authorization server already. Its secret, if it has one, is read "
            "from the environment variable MCP_RL_CLIENT_SECRET."
        ),
    ] = None,
    issuer: Annotated[
        str | None,
        typer.Option(
            help="Log in as the client itself, without a person: the URL of the authorization server that gave it its "
            "secret, which is sent nowhere else."
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address without opening it.")] = False,
) -> Job:
    """Log in at a remote server that wants it (OAuth), once for all later commands."""
    asked = {**settings(connection), "server": tuple(server)}
    if issuer and not client_id:
        raise typer.BadParameter("it needs --client-id too", param_hint="--issuer")

    def job() -> None:
        import os

        import anyio

        from mcp_rl.errors import ConfigError
        from mcp_rl.toolserver.logins.login import LoginWishes, log_in

        secret = os.environ.get("MCP_RL_CLIENT_SECRET")
        if issuer and not secret:
            raise ConfigError("--issuer needs the client's secret in the environment variable MCP_RL_CLIENT_SECRET.")
        wishes = LoginWishes(client_id, secret if client_id else None, issuer, scope, not no_browser)
        for label, url in _remote(_resolved(asked), asked["transport"]):
            print(anyio.run(functools.partial(log_in, url, server=label, wishes=wishes)))

    return job


@servers.command()
@with_groups
def logout(*, server: Named, connection: ConnectionOptions) -> Job:
    """Remove the login that is kept for a remote server."""
    asked = {**settings(connection), "server": tuple(server)}

    def job() -> None:
        from mcp_rl.toolserver.logins.kept import forget_login, resource_of

        for _, url in _remote(_resolved(asked), asked["transport"]):
            there = forget_login(url)
            print(f"Logged out at {resource_of(url)}." if there else f"No login is kept for {resource_of(url)}.")

    return job


def _remote(server: "ToolServer", transport: str | None) -> Iterator[tuple[str, str]]:
    """Yield the beginning of errors and the URL of every server. Raises ConfigError for one that we start ourselves."""
    from mcp_rl.errors import ConfigError
    from mcp_rl.toolserver.connection.launch import expand

    for one, params in _each(server, transport):
        label = f"The server {one.name}"
        if params.transport == "stdio" or params.ours_to_start:
            raise ConfigError(f"{label} starts on this machine and needs no login; logins are for URLs.")
        yield label, expand(params.url, server=label)


@servers.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the server: letters, digits and _.")],
    folder: Annotated[Path, typer.Option("--dir", help="Folder to write to. Default: the current one.")] = Path(),
    json: Json = False,
) -> Job:
    """Write a new server with its plugin and its test, all of which work at once."""

    def job() -> None:
        from mcp_rl.plugins.scaffold.new import new_server

        new_server(name, folder=folder, as_json=json)

    return job


def inspect_server(server: "ToolServer", *, transport: str | None = None, as_json: bool = False) -> None:
    """Print what a server lists. Raises ServerError if it cannot be used."""
    import anyio

    from mcp_rl.cli.printing.inspection_tables import print_inspection
    from mcp_rl.cli.printing.terminal import page
    from mcp_rl.config import ToolsConfig
    from mcp_rl.explore.check.inspection import inspect
    from mcp_rl.explore.first_contact import recalled

    known = recalled(server, transport, ToolsConfig())
    found = [anyio.run(inspect, one, params) for one, params in _each(known, transport)]
    if as_json:
        print(jsons.dumps(asdict(found[0]) if len(found) == 1 else {"servers": [asdict(one) for one in found]}))
        return
    with page() as console:
        for number, inspection in enumerate(found):
            if number:
                console.print()
            print_inspection(inspection, console)


def _print_openai_tools(asked: dict[str, Any]) -> None:
    import anyio

    from mcp_rl.explore.check.inspection import openai_tools
    from mcp_rl.runs.trained_tools import as_json

    config, server = _configured(asked)
    print(as_json(anyio.run(openai_tools, server, server.params(config.transport), config.tools)))


def _print_world(asked: dict[str, Any], *, as_json: bool) -> None:
    import anyio

    from mcp_rl.cli.printing.terminal import page
    from mcp_rl.cli.printing.world_tables import print_world
    from mcp_rl.explore.entities.builder import world_of

    config, server = _configured(asked)
    built = anyio.run(world_of, server, config.transport, config.tools)
    if as_json:
        print(jsons.dumps({**built.model.model_dump(mode="json"), "remarks": list(built.remarks)}))
        return
    with page() as console:
        print_world(built, console)


def check_server(
    server: "ToolServer",
    *,
    transport: str | None = None,
    calls: int = 3,
    seed: int = 0,
    call_all: bool = False,
    as_json: bool = False,
) -> int:
    """Print what would break training on a server. Return 1 if anything would, else 0.

    `calls` is the number of calls of each tool, with sampled arguments. Raises ServerError if it cannot be used.
    """
    import anyio

    from mcp_rl.cli.printing.check_tables import print_report
    from mcp_rl.cli.printing.terminal import page
    from mcp_rl.config import ToolsConfig
    from mcp_rl.explore.check.fitness import CheckOptions, check_fitness
    from mcp_rl.explore.first_contact import understood

    server = anyio.run(functools.partial(understood, server, transport, ToolsConfig(), anew=True))
    wanted = CheckOptions(calls=calls, seed=seed, call_all=call_all)
    reports = [anyio.run(check_fitness, one, params, wanted) for one, params in _each(server, transport)]
    if as_json:
        objects = [report.as_json() for report in reports]
        print(jsons.dumps(objects[0] if len(objects) == 1 else {"servers": objects}))
    else:
        with page() as console:
            for number, report in enumerate(reports):
                if number:
                    console.print()
                print_report(report, console)
    return 1 if any(report.problems for report in reports) else 0


def _each(server: "ToolServer", transport: str | None) -> Iterator[tuple["ToolServer", "OneServer"]]:
    """Yield every server on its own, with its parameters."""
    from mcp_rl.scenario import ServerGroup

    for one in server.members or (server,):
        params = one.params(transport)
        if not isinstance(params, ServerGroup):
            yield replace(one, members=()), params


def _resolved(asked: dict[str, Any]) -> "ToolServer":
    return _configured(asked)[1]


def _configured(asked: dict[str, Any]) -> tuple["RunConfig", "ToolServer"]:
    from mcp_rl.config.load import load_config
    from mcp_rl.errors import ConfigError
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers

    config = load_config(options=asked)
    plugins = load_plugins(config.plugins)
    server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
    if server.toolless:
        raise ConfigError(f"{server.name} means that there is no server; name one to look at.")
    return config, server
