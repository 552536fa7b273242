"""`mcp-rl train`."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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
    Source,
    TransportOption,
    devices,
    judge_settings,
    server_settings,
)
from mcp_rl.cli.page import write_page

if TYPE_CHECKING:
    from mcp_rl.config import RunConfig


def train(
    overrides: Overrides = None,
    server: Server = None,
    transport: TransportOption = None,
    server_config: ServerConfig = None,
    isolation: Isolation = None,
    reset_tool: ResetTool = None,
    offer: Offer = None,
    record: Record = None,
    replay: Replay = None,
    allow_schema_change: AllowSchemaChange = None,
    scenarios: Annotated[Path | None, typer.Option(help="Your own scenarios, a JSON Lines file.")] = None,
    source: Source = None,
    base_model: Annotated[
        str | None, typer.Option(help="mcp-rl/tiny, a Hugging Face model or a folder with one.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="What trains and samples: local, this machine, or a plugin's.")
    ] = None,
    engine: Annotated[
        EngineKind | None, typer.Option(help="What samples: the in-process engine or vLLM; else by what is there.")
    ] = None,
    engine_url: Annotated[
        str | None, typer.Option(help="A vLLM server that runs already, such as http://127.0.0.1:8000/v1.")
    ] = None,
    learner_gpus: Annotated[str | None, typer.Option(help="GPUs that learn, such as 0,1: one process each.")] = None,
    engine_gpus: Annotated[
        str | None, typer.Option(help="GPUs that sample, such as 2,3; else the learner's, shared.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps in all, those of earlier sessions included.")
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(help="Steps by which a sampled token may be older than the learner; 0, the default: none."),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="A run or a checkpoint whose adapter this run begins with."),
    ] = None,
    seed: Seed = None,
    name: Annotated[str | None, typer.Option(help="The run's folder; else made from server, model and seed.")] = None,
    project: Project = None,
    output_dir: OutputDir = None,
    judge_model: Annotated[
        list[str] | None,
        typer.Option(help="Score groups with this model (RULER, a LiteLLM name); given again, the mean counts."),
    ] = None,
    judge_base_url: JudgeBaseUrl = None,
    judge_rubric: JudgeRubric = None,
    max_judge_cost: MaxJudgeCost = None,
    tracker: Annotated[
        list[str] | None, typer.Option(help="Where metrics go too (see `mcp-rl plugins`); may be given more than once.")
    ] = None,
    config: ConfigFile = None,
    plugin: Plugin = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an earlier run of this name is removed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and exit.")] = False,
    json: Json = False,
) -> Job:
    """Train a model on a tool server, and show success before and after on tasks it never trained on.

    The same command again continues where the run stopped.
    """
    options: dict[str, Any] = {
        **server_settings(
            server, transport, server_config, isolation, reset_tool, offer, record, replay, allow_schema_change, plugin
        ),
        "scenarios.file": scenarios,
        "scenarios.source": source,
        "base_model": base_model,
        "backend": backend,
        "engine.kind": engine and engine.value,
        "engine.url": engine_url,
        "placement.learner_gpus": devices(learner_gpus, "--learner-gpus"),
        "placement.engine_gpus": devices(engine_gpus, "--engine-gpus"),
        "steps": steps,
        "init": init,
        "train.max_staleness": max_staleness,
        "seed": seed,
        "name": name,
        "project": project,
        "output_dir": output_dir,
        "trackers": tuple(tracker) if tracker else None,
        **judge_settings(judge_model or [], judge_base_url, judge_rubric, max_judge_cost),
    }
    return TrainJob(config, tuple(overrides or ()), options, fresh=fresh, dry_run=dry_run, as_json=json)


@dataclass
class TrainJob:
    """The train command, once its words are read."""

    file: Path | None
    overrides: Sequence[str]
    options: dict[str, Any]
    fresh: bool
    dry_run: bool
    as_json: bool
    learns: ClassVar[bool] = True
    """Where several processes were started together, those after the first are its learners."""
    log_dir: Path | None = None
    """Where the traceback of a bug goes; known once the configuration is."""

    def __call__(self) -> int:
        from mcp_rl.overrides import load_config

        config = load_config(file=self.file, overrides=self.overrides, options=self.options)
        if self.dry_run:
            _print_resolved(config, self.as_json)
            return 0
        self.log_dir = config.run_dir / "logs"
        import anyio
        from rich.console import Console

        from mcp_rl.tracking.report import print_report
        from mcp_rl.train import run_training

        console = Console(stderr=self.as_json)
        try:
            report = anyio.run(functools.partial(run_training, config, fresh=self.fresh, console=console))
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_kept(config)) from error
        print_report(report, console)
        if self.as_json:
            print(report.json_line(), flush=True)
        write_page(config.run_dir, console)
        return 0


def _print_resolved(config: "RunConfig", as_json: bool) -> None:
    """Every setting as the override that would set it, after a check that the server's name means something."""
    from mcp_rl.config import settings
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers

    resolve_servers(config.server, config.transport, plugins=load_plugins(config.plugins), tools=config.tools)
    if as_json:
        print(config.model_dump_json())
        return
    print(f"# This run would be kept in {config.run_dir}")
    for key, value in settings(config):
        print(f"# {key} is not set" if value is None else f"{key} = {value}")


def _kept(config: "RunConfig") -> str:
    from mcp_rl.run_directory import RunDirectory

    step = RunDirectory(config.run_dir).state().step
    if not step:
        return "Interrupted before the first whole step; the same command starts again."
    return f"Interrupted; step {step} is kept in {config.run_dir}, and the same command continues from there."
