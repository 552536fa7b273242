"""`mcp-rl fork`: begin a new run at a checkpoint of another one, with its history, scenarios and episodes up to there.

A fork is written aside and renamed into place, so it appears whole or not at all. The original run is only read, and
may be in progress.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import CheckpointError, ConfigError, RunDirectoryError
from mcp_rl.evaluation.difficulty import DIFFICULTY
from mcp_rl.evaluation.evaluate import summarize
from mcp_rl.evaluation.opponents import earlier_steps
from mcp_rl.learning.disk.checkpoint import find_damage
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, lock_run
from mcp_rl.runs.find import beside
from mcp_rl.runs.settings import (
    Origin,
    changed_settings,
    check_forkable,
    goes_on,
    measured_otherwise,
    train_command,
    with_settings,
)
from mcp_rl.runs.steps.curriculum import Curriculum
from mcp_rl.runs.steps.ending import Ending
from mcp_rl.runs.steps.pipeline import PENDING
from mcp_rl.runs.trained_tools import TrainedTools
from mcp_rl.system.durable import sync_file, sync_folder
from mcp_rl.system.seals import read_seal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mcp_rl.config import RunConfig

FORKED_FROM = "forked_from"
"""Key of model.json: the forks that led to this run, the newest last, each with the `run`, the `step` and, in `was`,
the former values of the settings that it changed."""


@dataclass(frozen=True)
class Fork:
    """A finished fork."""

    path: Path
    step: int
    command: str
    """The command that continues it."""
    notes: list[str]
    """Notes for the user, one sentence each."""


def fork(folder: Path, step: int, name: str | None = None, overrides: Mapping[str, Any] | None = None) -> Fork:
    """Make a run beside the one in `folder` that begins at its checkpoint of `step`.

    `name` defaults to the run's name followed by the step. `overrides` holds the dotted settings that the fork changes,
    such as those of `train.*`, `rollout.*`, `curriculum.*`, `reward.*` and `judge.*`. Raises ConfigError for one that a
    fork cannot change, CheckpointError if there is no such checkpoint, RunDirectoryError if a run of that name exists
    or a file of the run cannot be read or written.
    """
    overrides, target = dict(overrides or {}), beside(folder, name or f"{folder.resolve().name}-from-{step}")
    check_forkable(overrides)
    origin = Origin.of(folder)
    if "replay.of" in origin.identity.settings:
        raise RunDirectoryError(
            f"The run in {folder} is a replay, which cannot go on; --init {folder} begins a run with its adapter."
        )
    if folder.parent.name != "models":
        raise RunDirectoryError(
            f"The run in {folder} is not in the folder `models` of a project, where its fork must be."
        )
    placed = {"name": target.name, "project": target.parent.parent.name, "output_dir": target.parent.parent.parent}
    was = origin.config(placed)
    now = origin.config({**placed, **overrides})
    changed = changed_settings(was, now)
    ending = Ending(now, (line for line in origin.run.history() if line["step"] <= step))
    if "target_success" not in overrides and ending.reached is not None:
        now = now.model_copy(update={"target_success": None})  # else the fork would end where it begins
    unchecked = origin.run.check_whole()
    checkpoint = _checkpoint(origin.run, step)
    if now.train.max_staleness < was.train.max_staleness and (checkpoint / PENDING).is_file():
        raise ConfigError(
            f"A fork from step {step} cannot lower train.max_staleness: its checkpoint holds batches that were "
            f"started up to {was.train.max_staleness} steps ahead."
        )
    with lock_run(target):
        if target.exists():
            raise RunDirectoryError(f"{target} exists already; choose another name with --name.")
        with _staged(target) as staging:
            _fill(staging, origin, checkpoint, step, now, changed)
    steps = now.steps if now.steps > step else 2 * step
    command, missing = train_command(origin, now, steps=steps)
    notes = [*unchecked, *missing]
    if others := measured_otherwise(changed):
        notes.append(
            "The initial policy was evaluated with "
            f"{', '.join(f'{key} = {json.dumps(changed[key][0])}' for key in others)}: "
            "evaluations before and after the fork cannot be compared."
        )
    return Fork(target, step, command, notes)


def checkpoint_steps(run: RunDirectory) -> list[int]:
    """Return the steps of the checkpoints on disk, in order."""
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
    """Yield a folder that becomes `target` once it is filled. Leftovers of a killed fork are removed first."""
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
    source = origin.run
    forked = RunDirectory(staging, seals=read_seal(source.path) is not None)
    _copy_folder(checkpoint, forked.checkpoints / checkpoint.name)
    if damage := find_damage(forked.checkpoints / checkpoint.name):
        raise CheckpointError(f"The checkpoint {checkpoint} was removed while it was copied ({damage}); try again.")
    for earlier in earlier_steps(config, step):  # a checkpoint that the origin did not keep is missed by the fork
        _copy_folder(source.checkpoints / f"{earlier:04d}", forked.checkpoints / f"{earlier:04d}")
    for split in ("train", "val"):
        forked.write_files({f"{split}.jsonl": (source.path / f"{split}.jsonl").read_text(encoding="utf-8")})
    TrainedTools.carry(source.path, forked)
    if states := source.states():
        forked.save_states(states)
    for path in sorted((source.path / "trajectories").glob("*/*.jsonl")):
        if path.stem.isdigit() and int(path.stem) <= step:
            _copy(path, staging / path.relative_to(source.path))
    if source.judge.is_dir():
        _copy_folder(source.judge, forked.judge)
    forked.copy_history(source, step)
    state = _state(origin, checkpoint, step)
    train = forked.scenarios("train") or []
    curriculum = Curriculum(train, config.seed, state.progress.curriculum or None, config.curriculum)
    forked.save_state(state, {DIFFICULTY: curriculum.difficulty(state.before)}, saved=True)
    fork_entry = {"run": str(source.path), "step": step, "was": {key: was for key, (was, _) in changed.items()}}
    about = {
        **origin.about,
        "name": config.name,
        "project": config.project,
        "command": {
            **origin.command,
            **{key: now for key, (_, now) in changed.items() if goes_on(key) or key in origin.command},
        },
        FORKED_FROM: [*origin.about.get(FORKED_FROM, []), fork_entry],
    }
    forked.begin(with_settings(origin.identity, changed), about)
    forked.settle()


def _state(origin: Origin, checkpoint: Path, step: int) -> RunState:
    """Return the state of the run at this step."""
    state = origin.run.state()
    try:
        kept = StepProgress.model_validate(json.loads((checkpoint / "trainer_state.json").read_bytes())["frontier"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint} was not written by this version: fork from another step."
        ) from error
    after, after_step = (state.after, step) if state.after_step == step else (None, None)
    if after is None and (played := origin.run.trajectories("val", step)) and step:
        greedy = bool(origin.identity.settings.get("evaluation.greedy", True))
        after, after_step = summarize(played, step=step, greedy=greedy).model_dump(mode="json"), step
    return RunState(
        step=step,
        progress=kept,
        threads=state.threads,
        update_threads=state.update_threads,
        before=state.before,
        after=after,
        after_step=after_step,
    )


def _copy_folder(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            _copy(path, target / path.relative_to(source))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written)
        sync_file(written)
