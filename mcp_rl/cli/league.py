"""`mcp-rl league`."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.groups import Sets, settings, with_groups
from mcp_rl.cli.options import (
    BaseUrl,
    ConfigFile,
    Count,
    EngineOptions,
    Job,
    Json,
    Overrides,
    RunOptions,
    ServerOptions,
)


@dataclass(frozen=True)
class LeagueOptions:
    """The models, and the games that they play."""

    model: Annotated[
        list[str] | None,
        typer.Option(
            help="mcp-rl/tiny, a run's NAME or NAME@STEP, a folder, a Hugging Face model, a LiteLLM name; two or more."
        ),
    ] = None
    scenarios: Annotated[
        Path | None,
        Sets("scenarios.file"),
        typer.Option(help="A JSON Lines file of scenarios with two seats. Default: those of the server's plugin."),
    ] = None
    count: Count = None
    samples: Annotated[
        int | None,
        Sets("evaluation.samples"),
        typer.Option(help="Games of each scenario, in both seats. Default: 4.", min=1),
    ] = None
    base_url: BaseUrl = None
    name: Annotated[
        str | None, typer.Option(help="Name of the league's folder. Default: the server's name and a number.")
    ] = None
    config: ConfigFile = None


@with_groups
def league(
    *,
    overrides: Overrides = None,
    server: ServerOptions,
    models: LeagueOptions,
    engine: EngineOptions,
    run: RunOptions,
    json: Json = False,
) -> Job:
    """Let every pair of models play against each other: a table of points with intervals."""
    asked: dict[str, Any] = {
        "file": models.config,
        "overrides": tuple(overrides or ()),
        "options": settings(server, models, engine, run),
        "base_url": models.base_url,
        "count": models.count,
        "name": models.name,
    }
    return functools.partial(_league, models.model or [], asked, as_json=json)


def _league(models: Sequence[str], asked: dict[str, Any], *, as_json: bool) -> int:
    from mcp_rl.evaluation.league import prepare_league, print_league, run_league

    job = prepare_league(models, **asked)
    from rich.console import Console

    from mcp_rl.system.held_loop import run_watched

    console = Console(stderr=as_json)
    report = run_watched(run_league, job, console)
    print_league(report, console)
    if as_json:
        print(report.model_dump_json(), flush=True)
    return 0
