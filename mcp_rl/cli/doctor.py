"""`mcp-rl doctor`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.groups import settings, with_groups
from mcp_rl.cli.options import (
    BaseModel,
    ComputeOptions,
    ConfigFile,
    Job,
    OutputDir,
    Overrides,
    Server,
    ServerConfig,
    Yes,
)


@dataclass(frozen=True)
class DoctorOptions:
    """The run that is asked about."""

    base_model: BaseModel = None
    server: Server = None
    server_config: ServerConfig = None
    yes: Yes = False
    output_dir: OutputDir = None
    config: ConfigFile = None


@with_groups
def doctor(
    *,
    overrides: Overrides = None,
    asked: DoctorOptions,
    compute: ComputeOptions,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> Job:
    """Show what this machine has, the plan of a run on it, and what would not work and why.

    The exit code is 0 if a run with these settings would work, else 2.
    """
    return DoctorJob(asked.config, tuple(overrides or ()), settings(asked, compute), as_json=json)


@dataclass
class DoctorJob:
    """The doctor command, after its words are read."""

    file: Path | None
    overrides: tuple[str, ...]
    options: dict[str, Any]
    as_json: bool

    def __call__(self) -> int:
        from mcp_rl.config.load import load_config, read_toml
        from mcp_rl.runs.doctor.examine import examine

        given = self.options["server"] is not None
        given = given or any(override.startswith("server=") for override in self.overrides)
        given = given or (self.file is not None and "server" in read_toml(self.file))
        if not given:  # the machine is examined, whatever the server
            self.options["server"] = ("mcp_calculator",)
        config = load_config(file=self.file, overrides=self.overrides, options=self.options)
        report = examine(config, server_given=given)
        if self.as_json:
            print(report.model_dump_json())
        else:
            from rich.console import Console

            from mcp_rl.cli.printing.doctor_tables import print_report

            print_report(report, Console())
        return 0 if report.works else 2
