"""`mcp-rl report` and `mcp-rl export-trajectories`: what there is to see of a run or an evaluation."""

import functools
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mcp_rl.cli.options import Job


def report(
    run: Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="A run or an evaluation: its name or its folder.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; report.html in the folder.")] = None,
    megabytes: Annotated[
        float | None, typer.Option(help="Room for episodes in the page; 3.", min=0.0, max=200.0)
    ] = None,
    project: Annotated[str, typer.Option(help="The folder of runs that belong together.")] = "default",
    output_dir: Annotated[Path, typer.Option(help="Where projects are kept; .mcp_rl here.")] = Path(".mcp_rl"),
) -> Job:
    """Write one HTML page about a run or an evaluation, with charts and a browser for episodes."""

    def job() -> None:
        from mcp_rl.report import find_folder, write_report

        room = {} if megabytes is None else {"megabytes": megabytes}
        page = write_report(find_folder(run, output_dir / project), out, **room)
        print(f"The page is {page} ({page.stat().st_size / 1e6:.1f} MB); open it in a browser.")

    return job


class Format(StrEnum):
    """How episodes are exported."""

    OPENAI = "openai"
    INSPECT = "inspect"


def export_trajectories(
    source: Annotated[
        Path, typer.Argument(help="The folder of an evaluation or of a run, or one of its files of episodes.")
    ],
    out: Annotated[Path, typer.Option(help="The JSON Lines file to write, or the folder for inspect's logs.")],
    format: Annotated[
        Format, typer.Option(help="JSON Lines of OpenAI messages, or the logs of inspect_ai.")
    ] = Format.OPENAI,
    only_successful: Annotated[
        bool, typer.Option("--only-successful", help="Leave out every episode that did not succeed.")
    ] = False,
) -> Job:
    """Write episodes in the formats that other tools read."""
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
