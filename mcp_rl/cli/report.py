"""`mcp-rl report` and `mcp-rl export-trajectories`."""

import functools
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mcp_rl.cli.groups import with_groups
from mcp_rl.cli.options import Job, PlaceOptions


@with_groups
def report(
    *,
    run: Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="A run or an evaluation: its name or its folder.")],
    out: Annotated[Path | None, typer.Option(help="File to write. Default: report.html in the folder.")] = None,
    megabytes: Annotated[
        float | None, typer.Option(help="Room for episodes in the page, in MB. Default: 3.", min=0.0, max=200.0)
    ] = None,
    place: PlaceOptions,
) -> Job:
    """Write one HTML page about a run or an evaluation, with charts and a browser for episodes."""

    def job() -> None:
        from mcp_rl.evaluation.page import find_folder, write_report
        from mcp_rl.run_directory import readable

        room = {} if megabytes is None else {"megabytes": megabytes}
        folder = find_folder(run, place.output_dir / place.project)
        with readable(folder):
            page = write_report(folder, out, **room)
        print(f"The page is {page} ({page.stat().st_size / 1e6:.1f} MB); open it in a browser.")

    return job


class Format(StrEnum):
    """Formats of exported episodes."""

    OPENAI = "openai"
    INSPECT = "inspect"


def export_trajectories(
    source: Annotated[
        Path, typer.Argument(help="The folder of a run or an evaluation, or one of its files of episodes.")
    ],
    out: Annotated[Path, typer.Option(help="The JSON Lines file to write, or the folder for the logs of inspect_ai.")],
    format: Annotated[
        Format,
        typer.Option(
            help="JSON Lines with messages, tools and metadata on each line, or logs of inspect_ai, "
            "one for each file of episodes."
        ),
    ] = Format.OPENAI,
    only_successful: Annotated[
        bool, typer.Option("--only-successful", help="Export successful episodes only.")
    ] = False,
) -> Job:
    """Write episodes in a format that other tools read."""
    return functools.partial(_export, source, out, format, only_successful)


def _export(source: Path, out: Path, format: Format, only_successful: bool) -> None:
    from mcp_rl.evaluation.export import export_inspect, export_openai

    if format is Format.INSPECT:
        logs = export_inspect(source, out, only_successful=only_successful)
        print(
            f"{len(logs)} {'log is' if len(logs) == 1 else 'logs are'} in {out}; `inspect view --log-dir {out}` shows."
        )
    else:
        print(f"{export_openai(source, out, only_successful=only_successful)} episodes are in {out}.")
