"""`mcp-rl doctor`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.options import (
    ConfigFile,
    EngineKind,
    Job,
    OutputDir,
    Overrides,
    Server,
    ServerConfig,
    devices,
)


def doctor(
    overrides: Overrides = None,
    base_model: Annotated[
        str | None, typer.Option(help="mcp-rl/tiny, a Hugging Face model or a folder with one.")
    ] = None,
    server: Server = None,
    server_config: ServerConfig = None,
    engine: Annotated[EngineKind | None, typer.Option(help="What would sample, as of `mcp-rl train`.")] = None,
    engine_url: Annotated[str | None, typer.Option(help="A vLLM server that runs already.")] = None,
    learner_gpus: Annotated[str | None, typer.Option(help="GPUs that would learn, such as 0,1.")] = None,
    engine_gpus: Annotated[str | None, typer.Option(help="GPUs that would sample, such as 2,3.")] = None,
    output_dir: OutputDir = None,
    config: ConfigFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> Job:
    """Say what this machine has, what a run comes to on it, and what would not work and why.

    The exit code is 0 where a run with these settings would work, and 2 where not.
    """
    options = {
        "server": tuple(server) if server else None,
        "tools.server_config": server_config,
        "base_model": base_model,
        "engine.kind": engine and engine.value,
        "engine.url": engine_url,
        "placement.learner_gpus": devices(learner_gpus, "--learner-gpus"),
        "placement.engine_gpus": devices(engine_gpus, "--engine-gpus"),
        "output_dir": output_dir,
    }
    return DoctorJob(config, tuple(overrides or ()), options, as_json=json)


@dataclass
class DoctorJob:
    """The doctor command, once its words are read."""

    file: Path | None
    overrides: tuple[str, ...]
    options: dict[str, Any]
    as_json: bool

    def __call__(self) -> int:
        from mcp_rl.doctor.examine import examine
        from mcp_rl.overrides import load_config, read_toml

        given = self.options["server"] is not None
        given = given or any(override.startswith("server=") for override in self.overrides)
        given = given or (self.file is not None and "server" in read_toml(self.file))
        if not given:  # the machine is asked about, whatever the server
            self.options["server"] = ("mcp_calculator",)
        config = load_config(file=self.file, overrides=self.overrides, options=self.options)
        report = examine(config, server_given=given)
        if self.as_json:
            print(report.model_dump_json())
        else:
            from rich.console import Console

            from mcp_rl.doctor.words import print_report

            print_report(report, Console())
        return 0 if report.works else 2
