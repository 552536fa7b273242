"""`mcp-rl train`."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from mcp_rl.cli.groups import Sets, settings, with_groups
from mcp_rl.cli.options import (
    Agent,
    BaseModel,
    ComputeOptions,
    ConfigFile,
    Fresh,
    Init,
    Job,
    Json,
    JudgeOptions,
    Overrides,
    RunOptions,
    ServerOptions,
    Source,
)
from mcp_rl.cli.page import write_page

if TYPE_CHECKING:
    from mcp_rl.config import RunConfig


@dataclass(frozen=True)
class TrainOptions:
    """The model to train, its tasks, and the length of the training."""

    scenarios: Annotated[
        Path | None,
        Sets("scenarios.file"),
        typer.Option(
            help="Your own scenarios, JSON Lines or JSON, instead of exploring the server (docs/scenarios.md)."
        ),
    ] = None
    source: Source = None
    agent: Agent = None
    base_model: BaseModel = None
    backend: Annotated[
        str | None,
        Sets("backend"),
        typer.Option(
            help="Backend that trains and samples: local, this machine (the default), ray, a Ray cluster "
            "(docs/cluster.md), or a plugin's."
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        Sets("ray.address"),
        typer.Option(
            help="Address of the Ray cluster, HOST:PORT of its head node, with --backend ray. Default: the cluster of "
            "this machine, else one is started here for the run."
        ),
    ] = None
    steps: Annotated[
        int | None,
        Sets("steps"),
        typer.Option(help="Training steps in all, with those of earlier sessions; fewer if target_success is reached."),
    ] = None
    max_staleness: Annotated[
        int | None,
        Sets("train.max_staleness"),
        typer.Option(
            help="Steps by which a sampled token may be older than the learner (docs/learning.md). Default: 0."
        ),
    ] = None
    init: Init = None
    name: Annotated[
        str | None,
        Sets("name"),
        typer.Option(help="Name of the run's folder. Default: made from server, model and seed."),
    ] = None
    tracker: Annotated[
        list[str] | None,
        Sets("trackers"),
        typer.Option(help="Show the run in this tool too, such as tensorboard (docs/tracking.md); repeat for several."),
    ] = None


@dataclass(frozen=True)
class SessionOptions:
    """The settings file of this session, its start and its output."""

    config: ConfigFile = None
    fresh: Fresh = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check all that can be checked without starting anything, print what is set by you "
            "and by presets as overrides, and exit.",
        ),
    ] = False
    every: Annotated[bool, typer.Option("--all", help="With --dry-run: print every setting, not only what is set.")] = (
        False
    )
    json: Json = False


@with_groups
def train(
    *,
    overrides: Overrides = None,
    server: ServerOptions,
    training: TrainOptions,
    compute: ComputeOptions,
    run: RunOptions,
    judge: JudgeOptions,
    session: SessionOptions,
) -> Job:
    """Train a model on a tool server, and measure its success before and after on held-out tasks.

    The same command again continues where the run stopped.
    """
    return TrainJob(
        session.config,
        tuple(overrides or ()),
        settings(server, training, compute, run, judge),
        fresh=session.fresh,
        dry_run=session.dry_run,
        every=session.every,
        as_json=session.json,
    )


@dataclass
class TrainJob:
    """The train command, after its words are read."""

    file: Path | None
    overrides: Sequence[str]
    options: dict[str, Any]
    fresh: bool
    dry_run: bool
    every: bool
    as_json: bool
    learns: ClassVar[bool] = True
    """True if further processes, started together with the first, are its learners."""
    log_dir: Path | None = None
    """Folder for the traceback of a bug; None until the configuration is known."""

    def __call__(self) -> int:
        from mcp_rl.config.load import load_config
        from mcp_rl.errors import ConfigError

        config = load_config(file=self.file, overrides=self.overrides, options=self.options)
        if self.dry_run:
            self._rehearse(config)
            return 0
        if self.every:
            raise ConfigError("--all prints every setting of a --dry-run: add --dry-run, or leave --all out.")
        self.log_dir = config.run_dir / "logs"
        from rich.console import Console

        from mcp_rl.evaluation.progress import spinner
        from mcp_rl.system.held_loop import run_watched

        console = Console(stderr=self.as_json)
        with spinner(f"loading what is needed to train on {', '.join(config.server)}", console):
            from mcp_rl.runs.report import print_report
            from mcp_rl.runs.train import run_training

        try:
            report = run_watched(functools.partial(run_training, config, fresh=self.fresh, console=console))
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(_kept(config)) from error
        print_report(report, console)
        if self.as_json:
            print(report.json_line(), flush=True)
        write_page(config.run_dir, console)
        return 0

    def _rehearse(self, config: "RunConfig") -> None:
        """Check all that needs no server, and print the settings as the overrides that set them."""
        from mcp_rl.plugins.manager import load_plugins
        from mcp_rl.plugins.resolve import resolve_servers
        from mcp_rl.runs.identity import rehearse

        plugins = load_plugins(config.plugins)
        server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
        said = rehearse(config, server, plugins, fresh=self.fresh)
        if self.as_json:
            print(config.model_dump_json())
            return
        _print_settings(config, every=self.every)
        for sentence in said:
            print(f"# {sentence}")
        print("# Nothing was started. Nothing is wrong with what can be checked without the server.")


def _print_settings(config: "RunConfig", *, every: bool) -> None:
    from mcp_rl.config import chosen_settings, settings

    everything = dict(settings(config))
    if every:
        for key, value in everything.items():
            print(f"# {key} is not set" if value is None else f"{key} = {value}")
        return
    own, preset = chosen_settings(config)
    for title, chosen in (("Set by you", own), (f"Set for {config.base_model} or the judge", preset)):
        if chosen:
            print(f"# {title}:")
        for key, value in chosen.items():
            print(f"{key} = {value}")
    print(f"# {len(everything) - len(own) - len(preset)} settings are at their defaults; --all prints them.")


def _kept(config: "RunConfig") -> str:
    from mcp_rl.run_directory import RunDirectory

    step = RunDirectory(config.run_dir).state().step
    if not step:
        return "Interrupted before the first whole step; the same command starts again."
    return f"Interrupted; step {step} is kept in {config.run_dir}, and the same command continues from there."
