"""`mcp-rl generate`."""

import functools
import json
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_rl.cli.options import (
    AllowSchemaChange,
    Isolation,
    Job,
    Json,
    Offer,
    Plugin,
    Record,
    Replay,
    ResetTool,
    Server,
    ServerConfig,
    ServerOverrides,
    Source,
    TransportOption,
    server_settings,
)

if TYPE_CHECKING:
    from mcp_rl.plugins.server import ToolServer


class SplitBy(StrEnum):
    """What the splits of a scenarios file have not in common, beside requests."""

    CALLS = "calls"
    COMBINATIONS = "combinations"


def generate(
    overrides: ServerOverrides = None,
    server: Server = None,
    transport: TransportOption = None,
    server_config: ServerConfig = None,
    isolation: Isolation = None,
    reset_tool: ResetTool = None,
    offer: Offer = None,
    record: Record = None,
    replay: Replay = None,
    allow_schema_change: AllowSchemaChange = None,
    out: Annotated[Path, typer.Option(help="The file to write, JSON Lines.")] = Path("scenarios.jsonl"),
    source: Source = None,
    count: Annotated[int, typer.Option(help="Scenarios to make at most.", min=1)] = 720,
    seed: Annotated[int, typer.Option(help="All randomness follows from it.", min=0)] = 0,
    val: Annotated[float, typer.Option(help="Share to mark for validation, 0 to 1.")] = 0.0,
    test: Annotated[float, typer.Option(help="Share to mark for tests, 0 to 1.")] = 0.0,
    held_out_tool: Annotated[
        list[str] | None, typer.Option(help="A tool whose tasks are all marked for tests; may be given more than once.")
    ] = None,
    split_by: Annotated[
        SplitBy, typer.Option(help="What the splits may not share: calls, or combinations of tools too.")
    ] = SplitBy.CALLS,
    max_steps: Annotated[int, typer.Option(help="Calls of the longest tasks, 1 to 5.")] = 5,
    unsolvable: Annotated[float, typer.Option(help="Share of tasks that cannot be done, 0 to 1.")] = 0.05,
    without_tools: Annotated[float, typer.Option(help="Share of requests that need no tool, 0 to 1.")] = 0.05,
    author: Annotated[
        str | None, typer.Option(help="A language model that proposes tasks and words requests (a LiteLLM name).")
    ] = None,
    author_base_url: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible author of your own.")
    ] = None,
    author_share: Annotated[float | None, typer.Option(help="Share of tasks that the author proposes; 0.3.")] = None,
    author_steps: Annotated[
        str | None, typer.Option(metavar="FEWEST-MOST", help="Calls of a task that the author proposes; 2-4.")
    ] = None,
    max_author_cost: Annotated[float | None, typer.Option(help="US dollars that the author may cost.")] = None,
    keep_unverified: Annotated[
        bool, typer.Option("--keep-unverified", help="Keep tasks that only a judge can score, tagged ruler-only.")
    ] = False,
    check: Annotated[
        Path | None, typer.Option(help="Make nothing; execute this file's reference solutions again.")
    ] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> Job:
    """Make scenarios for a tool server by exploring it, or check that those in a file still hold."""
    writing: dict[str, Any] = {
        "model": author,
        "base_url": author_base_url,
        "share": author_share,
        "steps": author_steps and _range(author_steps),
        "max_cost": max_author_cost,
        "keep_unverified": keep_unverified or None,
    }
    return functools.partial(
        _generate,
        tuple(overrides or ()),
        server_settings(
            server, transport, server_config, isolation, reset_tool, offer, record, replay, allow_schema_change, plugin
        ),
        out=out,
        recipe={
            "count": count,
            "seed": seed,
            "max_steps": max_steps,
            "unsolvable": unsolvable,
            "without_tools": without_tools,
        },
        order={
            "val": val,
            "test": test,
            "held_out_tools": tuple(held_out_tool or ()),
            "split_by": split_by.value,
            **({"source": source} if source else {}),
        },
        writing={name: value for name, value in writing.items() if value is not None},
        check=check,
        as_json=json,
    )


def _generate(
    overrides: Sequence[str],
    settings: dict[str, Any],
    *,
    out: Path,
    recipe: dict[str, Any],
    order: dict[str, Any],
    writing: dict[str, Any],
    check: Path | None,
    as_json: bool,
) -> int:
    import anyio

    from mcp_rl.errors import ConfigError
    from mcp_rl.generate import AuthorOptions, Order, generate_file
    from mcp_rl.generate_words import lines
    from mcp_rl.overrides import load_config, parse_override
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers
    from mcp_rl.scenarios.recipe import Recipe

    for key, _ in map(parse_override, overrides):
        if key.split(".")[0] not in ("server", "transport", "plugins", "tools"):
            raise ConfigError(f"{key} says nothing about a server, and `generate` takes no other settings.")
    config = load_config(overrides=overrides, options=settings)
    if writing and "model" not in writing:
        raise ConfigError("Options for an author are given, and no author: add --author openai/gpt-4.1-mini.")
    if writing and check is not None:
        raise ConfigError("--check makes nothing, so it takes no author: leave one of the two out.")
    wanted = Order(Recipe(**recipe), **order, author=AuthorOptions(**writing) if writing else None)
    plugins = load_plugins(config.plugins)
    tool_server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
    reached: dict[str, Any] = {"transport": config.transport, "tools": config.tools}
    if check is not None:
        return _check(tool_server, check, reached, as_json)
    generated = anyio.run(functools.partial(generate_file, tool_server, out, wanted, plugins=plugins, **reached))
    for line in lines(generated, out):
        print(line, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps({"out": str(out), "server": tool_server.name, **generated.summary()}))
    return 0


def _range(text: str) -> tuple[int, int]:
    """Two numbers from "2-4", or the same one twice from "3"."""
    if not (found := re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", text)):
        raise typer.BadParameter(f"{text!r} is no range of calls such as 2-4.")
    return int(found[1]), int(found[2] or found[1])


def _check(server: "ToolServer", file: Path, reached: dict[str, Any], as_json: bool) -> int:
    import anyio

    from mcp_rl.generate import check_file

    findings = anyio.run(functools.partial(check_file, server, file, **reached))
    if as_json:
        print(json.dumps({"file": str(file), "findings": [{"id": f.id, "problem": f.problem} for f in findings]}))
        return 1 if findings else 0
    for finding in findings:
        print(f"{finding.id}: {finding.problem}")
    print(f"{len(findings)} of the scenarios in {file} do not hold." if findings else f"{file} holds.")
    return 1 if findings else 0
