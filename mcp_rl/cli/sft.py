"""`mcp-rl sft`."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.options import Job, Json, OutputDir, Project, Seed


def sft(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.jsonl]... [KEY=VALUE]...",
            help="Conversations, a JSON object with messages on each line, or a run's episodes; and settings such as "
            "train.learning_rate=1e-4.",
        ),
    ] = None,
    from_run: Annotated[
        str | None, typer.Option(help="Learn from the training episodes of this run: its name or its folder.")
    ] = None,
    min_reward: Annotated[float | None, typer.Option(help="Reward from which an episode is learned from; 1.")] = None,
    base_model: Annotated[
        str | None,
        typer.Option(help="mcp-rl/tiny, a Hugging Face model or a folder with one; else that of --init or --from-run."),
    ] = None,
    init: Annotated[Path | None, typer.Option(help="A run or a checkpoint whose adapter this run begins with.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the conversations; 3.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Conversations in a step; 16.")] = None,
    held_out: Annotated[
        float | None, typer.Option(help="Share of the prompts to measure with and not to train on; 0.1.")
    ] = None,
    seed: Seed = None,
    name: Annotated[str | None, typer.Option(help="The run's folder; else made from the file's name.")] = None,
    project: Project = None,
    output_dir: OutputDir = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an earlier run of this name is removed.")] = False,
    json: Json = False,
) -> Job:
    """Fine-tune a model on conversations, or on the episodes of a run that went well.

    `mcp-rl train --init` goes on from it. The same command again continues where it stopped.
    """
    options: dict[str, Any] = {
        "min_reward": min_reward,
        "init": init,
        "epochs": epochs,
        "batch_size": batch_size,
        "held_out": held_out,
        "seed": seed,
        "project": project,
        "output_dir": output_dir,
    }
    given = [word for word in words or () if re.match(r"\w+(\.\w+)*=", word)]
    files = tuple(Path(word) for word in words or () if word not in given)
    return SftJob(files, given, from_run, base_model, name, options, fresh=fresh, as_json=json)


@dataclass
class SftJob:
    """The sft command, once its words are read."""

    files: tuple[Path, ...]
    overrides: list[str]
    from_run: str | None
    base_model: str | None
    name: str | None
    options: dict[str, Any] = field(default_factory=dict)
    fresh: bool = False
    as_json: bool = False
    log_dir: Path | None = None
    """Where the traceback of a bug goes; known once the configuration is."""

    def __call__(self) -> int:
        from rich.console import Console

        from mcp_rl.sft.report import next_command
        from mcp_rl.sft.run import run_sft
        from mcp_rl.sft.settings import sft_config

        config = sft_config(
            self.files,
            self.overrides,
            from_run=self.from_run,
            base_model=self.base_model,
            name=self.name,
            options=self.options,
        )
        self.log_dir = config.run_dir / "logs"
        console = Console(stderr=self.as_json)
        report = run_sft(config, fresh=self.fresh, console=console)
        for line in report.sentences():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print(f"Go on with rewards: {next_command(config, report)}", highlight=False, soft_wrap=True)
        if self.as_json:
            print(report.model_dump_json(), flush=True)
        return 0
