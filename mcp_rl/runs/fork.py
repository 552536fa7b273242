"""`mcp-rl fork`: a new run that begins at a checkpoint of another, with everything that belongs to it up to there.

The fork is written aside and renamed into place, so it is there whole or not at all. The run it comes from is only
read, and may be going on.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_rl.config import RunConfig
from mcp_rl.durable import sync_file, sync_folder
from mcp_rl.errors import CheckpointError, ConfigError, RunDirectoryError
from mcp_rl.evaluate import summarize
from mcp_rl.learning.checkpoint import find_damage
from mcp_rl.report.reading import history_in
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, lock_run
from mcp_rl.runs.find import beside
from mcp_rl.runs.settings import (
    KEPT,
    Origin,
    changed_settings,
    check_forkable,
    measured_otherwise,
    train_command,
    with_settings,
)
from mcp_rl.training.curriculum import Curriculum
from mcp_rl.training.difficulty import DIFFICULTY, measured_difficulty
from mcp_rl.training.pipeline import PENDING

FORKED_FROM = "forked_from"
"""The key of model.json that says where a fork comes from: a list, the newest last, each with the `run`, the `step`
and, of the settings that were changed there, what they `was`."""


@dataclass(frozen=True)
class Fork:
    """A fork that was made."""

    path: Path
    step: int
    command: str
    """What goes on with it."""
    notes: list[str]
    """What the user must know, one sentence each."""


def fork(folder: Path, step: int, name: str | None = None, overrides: Mapping[str, Any] | None = None) -> Fork:
    """Make a run beside the one in `folder` that begins at its checkpoint of `step`.

    `name` is by default the run's with the step behind it. `overrides` is dotted settings of the fork, as of `train.*`,
    `rollout.*`, `curriculum.*`, `reward.*` and `judge.*`. Raises ConfigError for one that a fork cannot change,
    CheckpointError where there is no such checkpoint, RunDirectoryError where there is a run of that name already or a
    file of the run cannot be read or written.
    """
    overrides, target = dict(overrides or {}), beside(folder, name or f"{folder.resolve().name}-from-{step}")
    check_forkable(overrides)
    origin = Origin.of(folder)
    if "replay.of" in origin.identity.settings:
        raise RunDirectoryError(
            f"The run in {folder} is a replay, which has no next step to play; --init {folder} begins a run with it."
        )
    if folder.parent.name != "models":
        raise RunDirectoryError(
            f"The run in {folder} is in no project's folder `models`, where its fork would be found."
        )
    placed = {"name": target.name, "project": target.parent.parent.name, "output_dir": target.parent.parent.parent}
    was = origin.config(placed)
    now = origin.config({**placed, **overrides})
    changed = changed_settings(was, now)
    checkpoint = _checkpoint(origin.run, step)
    if now.train.max_staleness < was.train.max_staleness and (checkpoint / PENDING).is_file():
        raise ConfigError(
            f"A fork from step {step} cannot lower train.max_staleness: its checkpoint holds batches that were begun "
            f"up to {was.train.max_staleness} steps ahead."
        )
    with lock_run(target):
        if target.exists():
            raise RunDirectoryError(f"There is a run in {target} already; choose another name with --name.")
        with _staged(target) as staging:
            _fill(staging, origin, checkpoint, step, now, changed)
    steps = now.steps if now.steps > step else 2 * step
    command, missing = train_command(origin, now, steps=steps)
    notes = [*missing]
    if others := measured_otherwise(changed):
        notes.append(
            f"The base was evaluated with {', '.join(f'{key} = {json.dumps(changed[key][0])}' for key in others)}: the "
            "evaluations before and after the fork are not of one kind."
        )
    return Fork(target, step, command, notes)


def checkpoint_steps(run: RunDirectory) -> list[int]:
    """The steps of the checkpoints on disk, in order."""
    return sorted(int(path.name) for path in run.checkpoints.glob("[0-9]*") if path.name.isdigit())


def _checkpoint(run: RunDirectory, step: int) -> Path:
    path = run.checkpoints / f"{step:04d}"
    if not path.is_dir():
        there = ", ".join(map(str, checkpoint_steps(run)))
        raise CheckpointError(
            f"The run in {run.path} has no checkpoint of step {step}; it has those of {there}."
            if there
            else f"The run in {run.path} has no checkpoint yet."
        )
    if damage := find_damage(path):
        raise CheckpointError(f"The checkpoint {path} is damaged ({damage}); fork from another step.")
    return path


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` when it is filled. What a kill left of an earlier one is removed first."""
    staging = target.with_name(f".{target.name}.fork")
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        yield staging
        sync_folder(staging)
        staging.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise RunDirectoryError(f"Cannot make the fork {target}: {where}{error.strerror or error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fill(
    staging: Path,
    origin: Origin,
    checkpoint: Path,
    step: int,
    config: RunConfig,
    changed: Mapping[str, tuple[Any, Any]],
) -> None:
    source, forked = origin.run, RunDirectory(staging)
    _copy_folder(checkpoint, forked.checkpoints / checkpoint.name)
    if damage := find_damage(forked.checkpoints / checkpoint.name):
        raise CheckpointError(f"The checkpoint {checkpoint} went away while it was copied ({damage}); try again.")
    for name in ("train.jsonl", "val.jsonl"):
        _copy(source.path / name, staging / name)
    for path in sorted((source.path / "trajectories").glob("*/*.jsonl")):
        if path.stem.isdigit() and int(path.stem) <= step:
            _copy(path, staging / path.relative_to(source.path))
    if source.judge.is_dir():
        _copy_folder(source.judge, forked.judge)
    _write(staging / "history.jsonl", b"".join(_lines_up_to(source.path, step)))
    state = _state(origin, checkpoint, step)
    forked.save_state(state)
    train = forked.scenarios("train") or []
    curriculum = Curriculum(train, config.seed, state.progress.curriculum or None, config.curriculum)
    forked.save_lines(DIFFICULTY, measured_difficulty(curriculum, train, state.before))
    come_from = {"run": str(source.path), "step": step, "was": {key: was for key, (was, _) in changed.items()}}
    about = {
        **origin.about,
        "name": config.name,
        "project": config.project,
        "command": {
            **origin.command,
            **{key: now for key, (_, now) in changed.items() if key in KEPT or key in origin.command},
        },
        FORKED_FROM: [*origin.about.get(FORKED_FROM, []), come_from],
    }
    forked.begin(with_settings(origin.identity, changed), about)


def _state(origin: Origin, checkpoint: Path, step: int) -> RunState:
    """The run's state when it was at this step."""
    state = origin.run.state()
    try:
        kept = StepProgress.model_validate(json.loads((checkpoint / "trainer_state.json").read_bytes())["frontier"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint} was not written by this version, so it says not where it stands."
        ) from error
    after, after_step = (state.after, step) if state.after_step == step else (None, None)
    if after is None and (played := origin.run.trajectories("val", step)) and step:
        greedy = bool(origin.identity.settings.get("evaluation.greedy", True))
        after, after_step = summarize(played, step=step, greedy=greedy).model_dump(mode="json"), step
    return RunState(
        step=step,
        progress=kept,
        threads=state.threads,
        before=state.before,
        after=after,
        after_step=after_step,
    )


def _lines_up_to(folder: Path, step: int) -> Iterator[bytes]:
    """The run's own lines. Raises RunDirectoryError where one of them cannot be read."""
    history_in(folder)
    history = folder / "history.jsonl"
    for line in history.read_bytes().splitlines(keepends=True) if history.exists() else []:
        if line.endswith(b"\n") and line.strip() and json.loads(line)["step"] <= step:
            yield line


def _copy_folder(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            _copy(path, target / path.relative_to(source))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written)
        sync_file(written)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        sync_file(file)
