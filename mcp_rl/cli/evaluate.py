"""`mcp-rl evaluate`."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.groups import Sets, settings, with_groups
from mcp_rl.cli.options import (
    Agent,
    BaseUrl,
    ConfigFile,
    Count,
    EngineOptions,
    Job,
    Json,
    JudgeOptions,
    Overrides,
    RunOptions,
    ServerOptions,
)
from mcp_rl.cli.page import write_page


@dataclass(frozen=True)
class EvaluateOptions:
    """The models, and the episodes that they play."""

    model: Annotated[
        list[str] | None,
        typer.Option(
            help="mcp-rl/tiny, a run's NAME or NAME@STEP, a folder, a Hugging Face model, a LiteLLM name, "
            "scripted:reference or scripted:refuse; repeat to compare several."
        ),
    ] = None
    scenarios: Annotated[
        Path | None,
        Sets("scenarios.file"),
        typer.Option(
            help="A JSON Lines file of scenarios. Default: those that the first run among the models "
            "held out, or that a run with this seed would."
        ),
    ] = None
    agent: Agent = None
    count: Count = None
    samples: Annotated[
        int | None,
        Sets("evaluation.samples"),
        typer.Option(help="Sampled episodes of each scenario. Default: 4.", min=1),
    ] = None
    greedy: Annotated[
        bool | None,
        typer.Option(help="Play one greedy episode of each scenario too. Default: for all but chat models."),
    ] = None
    base_url: BaseUrl = None
    name: Annotated[
        str | None, typer.Option(help="Name of the evaluation's folder. Default: the server's name and a number.")
    ] = None
    config: ConfigFile = None


@with_groups
def evaluate(
    *,
    overrides: Overrides = None,
    server: ServerOptions,
    evaluation: EvaluateOptions,
    engine: EngineOptions,
    run: RunOptions,
    judge: JudgeOptions,
    json: Json = False,
) -> Job:
    """Compare models on the same scenarios: success with its interval, differences, errors, time and cost."""
    asked: dict[str, Any] = {
        "file": evaluation.config,
        "overrides": tuple(overrides or ()),
        "options": settings(server, evaluation, engine, run, judge),
        "base_url": evaluation.base_url,
        "count": evaluation.count,
        "greedy": evaluation.greedy,
        "name": evaluation.name,
    }
    return functools.partial(_evaluate, evaluation.model or [], asked, as_json=json)


def _evaluate(models: Sequence[str], asked: dict[str, Any], *, as_json: bool) -> int:
    from mcp_rl.evaluation.run import prepare, run_evaluation

    job = prepare(models, **asked)
    from rich.console import Console

    from mcp_rl.evaluation.tables import print_tables
    from mcp_rl.system.held_loop import run_watched

    console = Console(stderr=as_json)
    report = run_watched(run_evaluation, job, console)
    print_tables(report, console)
    if as_json:
        print(report.json_line(), flush=True)
    write_page(Path(report.path), console)
    return 0
