"""`mcp-rl fork`."""

import functools
import json as jsonlib
from collections.abc import Sequence
from typing import Annotated

import typer

from mcp_rl.cli.groups import with_groups
from mcp_rl.cli.options import Job, Json, PlaceOptions, RunName


@with_groups
def fork(
    *,
    run: RunName,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that the fork changes, such as train.kl=0.01."),
    ] = None,
    from_step: Annotated[int | None, typer.Option(help="Step of the checkpoint to begin at.", min=0)] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the new run, beside the old one. Default: the old name and the step.")
    ] = None,
    place: PlaceOptions,
    json: Json = False,
) -> Job:
    """Begin a new run at a checkpoint of another one, with its history, scenarios and pools up to there."""
    return functools.partial(_fork, run, tuple(overrides or ()), from_step, name, place, as_json=json)


def _fork(
    run: str, overrides: Sequence[str], from_step: int | None, name: str | None, place: PlaceOptions, *, as_json: bool
) -> None:
    from mcp_rl.errors import ConfigError
    from mcp_rl.run_directory import RunDirectory
    from mcp_rl.runs.fork import checkpoint_steps
    from mcp_rl.runs.fork import fork as make_fork
    from mcp_rl.runs.settings import read_overrides

    folder = place.find(run)
    if from_step is None:
        there = ", ".join(map(str, checkpoint_steps(RunDirectory(folder))))
        raise ConfigError(f"Say where the fork begins: add --from-step with one of {there}.")
    made = make_fork(folder, from_step, name, read_overrides(overrides))
    if as_json:
        report = {"path": str(made.path), "step": made.step, "command": made.command, "notes": made.notes}
        print(jsonlib.dumps(report, ensure_ascii=False))
        return
    changed = f", with {', '.join(overrides)}" if overrides else ""
    print(f"{made.path} begins at step {made.step} of {folder}{changed}.")
    for note in made.notes:
        print(note)
    print("To go on with it, type:")
    print(f"\n    {made.command}")
