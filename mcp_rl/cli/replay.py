"""`mcp-rl replay`."""

import functools
from collections.abc import Sequence
from typing import Annotated

import typer

from mcp_rl.cli.groups import with_groups
from mcp_rl.cli.options import Job, Json, PlaceOptions, RunName


@with_groups
def replay(
    *,
    run: RunName,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to learn with instead, such as train.loss=gspo."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", "--name", help="Name of the new run, beside the old one. Default: the old name and `-replay`."
        ),
    ] = None,
    place: PlaceOptions,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove an earlier replay of this name and start over.")
    ] = False,
    json: Json = False,
) -> Job:
    """Retrain from a run's recorded episodes, without server or engine: to the same bits, or with other settings.

    The same command again continues where it stopped.
    """
    return functools.partial(_replay, run, tuple(overrides or ()), to, place, fresh=fresh, as_json=json)


def _replay(
    run: str, overrides: Sequence[str], to: str | None, place: PlaceOptions, *, fresh: bool, as_json: bool
) -> None:
    from rich.console import Console

    from mcp_rl.runs.replay import replay as retrain
    from mcp_rl.runs.settings import read_overrides

    folder = place.find(run)
    console = Console(stderr=as_json)
    report = retrain(folder, to, read_overrides(overrides), fresh=fresh, console=console)
    for sentence in report.sentences():
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(report.json_line(), flush=True)
