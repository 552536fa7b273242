"""`mcp-rl sft`."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_rl.cli.groups import Sets, settings, with_groups
from mcp_rl.cli.options import Fresh, Init, Job, Json, RunOptions


@dataclass(frozen=True)
class SftOptions:
    """The episodes to learn from, the model, and the length of the fine-tuning."""

    from_run: Annotated[
        str | None,
        typer.Option(
            help="Learn from the training episodes of this run (name or folder), token for token as they were sampled."
        ),
    ] = None
    min_reward: Annotated[
        float | None, Sets("min_reward"), typer.Option(help="Minimum reward of an episode to learn from. Default: 1.")
    ] = None
    base_model: Annotated[
        str | None,
        typer.Option(
            help="mcp-rl/tiny, the name of a Hugging Face model, or a folder with a model. Default: that of --init or "
            "--from-run."
        ),
    ] = None
    init: Init = None
    epochs: Annotated[int | None, Sets("epochs"), typer.Option(help="Passes over the conversations. Default: 3.")] = (
        None
    )
    batch_size: Annotated[
        int | None, Sets("batch_size"), typer.Option(help="Conversations in a step. Default: 16.")
    ] = None
    held_out: Annotated[
        float | None,
        Sets("held_out"),
        typer.Option(
            help="Share of the prompts to measure with instead of training on them; 0 for none. Default: 0.1."
        ),
    ] = None
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder. Default: `sft-` and the name of the file or the run.")
    ] = None


@with_groups
def sft(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE.jsonl]... [KEY=VALUE]...",
            help="Conversations (a JSON object with messages on each line) or a run's episodes, and settings such as "
            "train.learning_rate=1e-4.",
        ),
    ] = None,
    tuning: SftOptions,
    run: RunOptions,
    fresh: Fresh = False,
    json: Json = False,
) -> Job:
    """Fine-tune a model on conversations, or on the successful episodes of a run.

    `mcp-rl train --init` trains further from there. The same command again continues where it stopped.
    """
    given = [word for word in words or () if re.match(r"\w+(\.\w+)*=", word)]
    files = tuple(Path(word) for word in words or () if word not in given)
    options = settings(tuning, run)
    return SftJob(files, given, tuning.from_run, tuning.base_model, tuning.name, options, fresh=fresh, as_json=json)


@dataclass
class SftJob:
    """The sft command, after its words are read."""

    files: tuple[Path, ...]
    overrides: list[str]
    from_run: str | None
    base_model: str | None
    name: str | None
    options: dict[str, Any] = field(default_factory=dict)
    fresh: bool = False
    as_json: bool = False
    log_dir: Path | None = None
    """Folder for the traceback of a bug; None until the configuration is known."""

    def __call__(self) -> int:
        from rich.console import Console

        from mcp_rl.runs.sft.report import next_command
        from mcp_rl.runs.sft.run import run_sft
        from mcp_rl.runs.sft.settings import sft_config

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
