"""`mcp-rl history`."""

import functools
import json as jsonlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mcp_rl.cli.groups import with_groups
from mcp_rl.cli.options import Job, PlaceOptions


class Split(StrEnum):
    """Kinds of lines: training steps, evaluations, and small evaluations between them."""

    TRAIN = "train"
    VAL = "val"
    VAL_SUBSET = "val_subset"


@with_groups
def history(
    *,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME_OR_PATH...", help="Runs: their names or folders; several to compare.")
    ],
    place: PlaceOptions,
    split: Annotated[Split | None, typer.Option(help="Only training steps, or only evaluations.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Metrics to show, separated by commas. Default: the most important ones."
        ),
    ] = None,
    last: Annotated[int | None, typer.Option(help="Show only this many lines, the last ones.", min=1)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the history into this .png or .html file.")] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print the lines as CSV, with all metrics if none are chosen.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the lines and the summary as one JSON object.")] = False,
) -> Job:
    """Show the steps and evaluations of a run, finished or not; plot them; compare several runs."""
    if csv and json:
        raise typer.BadParameter("--csv and --json exclude each other: leave one of them out.")
    chosen = tuple(dict.fromkeys(name.strip() for name in (metrics or "").split(",") if name.strip()))
    form = "csv" if csv else "json" if json else "table"
    return functools.partial(_history, names, place, split and split.value, chosen, last, plot=plot, form=form)


def _history(
    names: Sequence[str],
    place: PlaceOptions,
    split: str | None,
    metrics: Sequence[str],
    last: int | None,
    *,
    plot: Path | None,
    form: str,
) -> None:
    from rich.console import Console

    from mcp_rl.cli.printing.history_tables import grid, print_history, sentences, to_csv
    from mcp_rl.runs.history import History, check_metrics, summary

    if plot is not None:
        from mcp_rl.evaluation.page.plots import check_plot_file

        check_plot_file(plot)
    folders = [place.find(name) for name in names]
    histories = [History.read(folder, name) for folder, name in zip(folders, short_names(names, folders), strict=True)]
    check_metrics(metrics, histories)
    shown = {history.name: history.shown(split, last) for history in histories}
    if form == "json":
        runs = [
            {"name": h.name, "path": str(h.folder), "lines": shown[h.name], "summary": summary(h)} for h in histories
        ]
        print(jsonlib.dumps({"runs": runs}, ensure_ascii=False))
    elif form == "csv":
        print(to_csv(shown, metrics, histories), end="")
    else:
        console = Console()
        for history in histories:
            print_history(history, shown[history.name], metrics, console)
    if plot is not None:
        from mcp_rl.evaluation.page.plots import write_plot

        write_plot(
            {h.name: h.lines for h in histories},
            plot,
            sentences=[" ".join(sentences(h)) for h in histories],
            tables=[grid(h, shown[h.name], metrics) for h in histories],
        )
        Console(stderr=form != "table").print(f"The plot is {plot}.", highlight=False, markup=False, soft_wrap=True)


def short_names(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return what tables call the runs: the folders' names if these differ, else the names as typed."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else list(names)
