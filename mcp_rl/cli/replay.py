"""`mcp-rl replay`."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mcp_rl.cli.options import Job, Json


def replay(
    run: Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="A run: its name or its folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="What to learn with instead, such as train.loss=cispo."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", "--name", help="The new run; else the old name and -replay.")
    ] = None,
    project: Annotated[str, typer.Option(help="The folder of runs that belong together.")] = "default",
    output_dir: Annotated[Path, typer.Option(help="Where projects are kept; .mcp_rl here.")] = Path(".mcp_rl"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an earlier replay is removed.")] = False,
    json: Json = False,
) -> Job:
    """Retrain from a run's recorded episodes, with no server and no engine: to the same bits, or with other settings.

    The same command again continues where it stopped.
    """
    return functools.partial(_replay, run, tuple(overrides or ()), to, project, output_dir, fresh=fresh, as_json=json)


def _replay(
    run: str, overrides: Sequence[str], to: str | None, project: str, output_dir: Path, *, fresh: bool, as_json: bool
) -> None:
    from rich.console import Console

    from mcp_rl.runs.find import find_run
    from mcp_rl.runs.replay import replay as retrain
    from mcp_rl.runs.settings import read_overrides

    folder = find_run(run, output_dir, project)
    console = Console(stderr=as_json)
    report = retrain(folder, to, read_overrides(overrides), fresh=fresh, console=console)
    for sentence in report.sentences():
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(report.json_line(), flush=True)
