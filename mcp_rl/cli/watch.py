"""`mcp-rl watch`."""

import functools
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from mcp_rl.cli.groups import with_groups
from mcp_rl.cli.options import Job, PlaceOptions

if TYPE_CHECKING:
    from mcp_rl.evaluation.tables import Grid
    from mcp_rl.runs.history import History

_NICENESS = 10
"""The run comes first where both want the processor."""


@with_groups
def watch(
    *,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME_OR_PATH...", help="Runs: their names or folders; several to compare.")
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.", min=0, max=65535)] = 8001,
    place: PlaceOptions,
) -> Job:
    """Serve a page on this machine that follows runs while they go on, until Ctrl-C."""
    return functools.partial(_watch, names, place, port)


def _watch(names: Sequence[str], place: PlaceOptions, port: int) -> int:
    import anyio

    from mcp_rl.cli.history import short_names
    from mcp_rl.runs.watch.app import make_pages, watch

    folders = [place.find(name, begun=False) for name in dict.fromkeys(names)]
    pages = make_pages(folders, short_names(list(dict.fromkeys(names)), folders), _describe)
    with suppress(OSError):
        os.nice(_NICENESS)
    try:
        anyio.run(watch, pages, port, _say)
    except KeyboardInterrupt:
        _say("Stopped watching; the runs go on." if len(folders) > 1 else "Stopped watching; the run goes on.")
    return 0


def _describe(histories: "Sequence[History]") -> "tuple[list[str], list[Grid]]":
    from mcp_rl.cli.printing.history_tables import grid, sentences

    return [" ".join(sentences(each)) for each in histories], [
        grid(each, each.shown(None, None), ()) for each in histories
    ]


def _say(line: str) -> None:
    from mcp_rl.system.visible import visible

    print(visible(line), flush=True)
