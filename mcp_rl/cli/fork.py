"""`mcp-rl fork`."""

import functools
import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mcp_rl.cli.options import Job, Json


def fork(
    run: Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="A run: its name or its folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="What is other in the fork, such as train.learning_rate=1e-4."),
    ] = None,
    from_step: Annotated[
        int | None, typer.Option(help="The step to begin at, of which there is a checkpoint.", min=0)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The new run; else the old name and the step.")] = None,
    project: Annotated[str, typer.Option(help="The folder of runs that belong together.")] = "default",
    output_dir: Annotated[Path, typer.Option(help="Where projects are kept; .mcp_rl here.")] = Path(".mcp_rl"),
    json: Json = False,
) -> Job:
    """Begin a new run at a checkpoint of another one, with its history, scenarios and pools up to there."""
    return functools.partial(_fork, run, tuple(overrides or ()), from_step, name, project, output_dir, as_json=json)


def _fork(
    run: str,
    overrides: Sequence[str],
    from_step: int | None,
    name: str | None,
    project: str,
    output_dir: Path,
    *,
    as_json: bool,
) -> None:
    from mcp_rl.errors import ConfigError
    from mcp_rl.run_directory import RunDirectory
    from mcp_rl.runs.find import find_run
    from mcp_rl.runs.fork import checkpoint_steps
    from mcp_rl.runs.fork import fork as make_fork
    from mcp_rl.runs.settings import read_overrides

    folder = find_run(run, output_dir, project)
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
