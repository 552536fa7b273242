"""`mcp-rl evaluate`."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.options import (
    AllowSchemaChange,
    ConfigFile,
    EngineKind,
    Isolation,
    Job,
    Json,
    JudgeBaseUrl,
    JudgeRubric,
    MaxJudgeCost,
    Offer,
    OutputDir,
    Overrides,
    Plugin,
    Project,
    Record,
    Replay,
    ResetTool,
    Seed,
    Server,
    ServerConfig,
    TransportOption,
    devices,
    judge_settings,
    server_settings,
)
from mcp_rl.cli.page import write_page


def evaluate(
    overrides: Overrides = None,
    server: Server = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="mcp-rl/tiny, a run's NAME or NAME@STEP, a folder, a Hugging Face model, a LiteLLM name, "
            "scripted:reference or scripted:refuse; given again to compare."
        ),
    ] = None,
    scenarios: Annotated[Path | None, typer.Option(help="Scenarios, a JSON Lines file.")] = None,
    count: Annotated[int | None, typer.Option(help="Scenarios at most, drawn with the seed.", min=1)] = None,
    samples: Annotated[int | None, typer.Option(help="Sampled episodes of each scenario; 4.", min=1)] = None,
    greedy: Annotated[
        bool | None, typer.Option(help="One greedy episode of each too; all but chat models do so anyway.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Where chat models are asked, an OpenAI-compatible address; or NAME@URL for one.")
    ] = None,
    engine: Annotated[
        EngineKind | None,
        typer.Option(help="What samples models of ours: the in-process engine or vLLM; else by what is there."),
    ] = None,
    engine_url: Annotated[
        str | None, typer.Option(help="A vLLM server that runs already, such as http://127.0.0.1:8000/v1.")
    ] = None,
    engine_gpus: Annotated[str | None, typer.Option(help="GPUs of vLLM, such as 0,1; else the first.")] = None,
    transport: TransportOption = None,
    server_config: ServerConfig = None,
    isolation: Isolation = None,
    reset_tool: ResetTool = None,
    offer: Offer = None,
    record: Record = None,
    replay: Replay = None,
    allow_schema_change: AllowSchemaChange = None,
    seed: Seed = None,
    name: Annotated[str | None, typer.Option(help="The evaluation's folder; else the server and a number.")] = None,
    project: Project = None,
    output_dir: OutputDir = None,
    judge_model: Annotated[
        list[str] | None,
        typer.Option(help="A judge (RULER, a LiteLLM name) scores too, and is held against the verifier."),
    ] = None,
    judge_base_url: JudgeBaseUrl = None,
    judge_rubric: JudgeRubric = None,
    max_judge_cost: MaxJudgeCost = None,
    config: ConfigFile = None,
    plugin: Plugin = None,
    json: Json = False,
) -> Job:
    """Compare models on the same scenarios: success with its interval, differences, errors, time and cost."""
    options: dict[str, Any] = {
        **server_settings(
            server, transport, server_config, isolation, reset_tool, offer, record, replay, allow_schema_change, plugin
        ),
        "scenarios.file": scenarios,
        "engine.kind": engine and engine.value,
        "engine.url": engine_url,
        "placement.engine_gpus": devices(engine_gpus, "--engine-gpus"),
        "evaluation.samples": samples,
        "seed": seed,
        "project": project,
        "output_dir": output_dir,
        **judge_settings(judge_model or [], judge_base_url, judge_rubric, max_judge_cost),
    }
    asked: dict[str, Any] = {
        "file": config,
        "overrides": tuple(overrides or ()),
        "options": options,
        "base_url": base_url,
        "count": count,
        "greedy": greedy,
        "name": name,
    }
    return functools.partial(_evaluate, model or [], asked, as_json=json)


def _evaluate(models: Sequence[str], asked: dict[str, Any], *, as_json: bool) -> int:
    from mcp_rl.evaluation.run import prepare, run_evaluation

    job = prepare(models, **asked)
    import anyio
    from rich.console import Console

    from mcp_rl.evaluation.tables import print_tables

    console = Console(stderr=as_json)
    report = anyio.run(run_evaluation, job, console)
    print_tables(report, console)
    if as_json:
        print(report.json_line(), flush=True)
    write_page(Path(report.path), console)
    return 0
