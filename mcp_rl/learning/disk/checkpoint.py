"""Checkpoints on disk: `checkpoints/0000 0001 …`, each of them complete or absent.

A checkpoint is written into a hidden folder, synced, and renamed into place; its manifest names every file with size
and SHA-256, so that a damaged one is noticed and the one before it is used. The run's seal (`system/seals.py`) has the
manifest's digest, so that another run's checkpoint is noticed too. This module handles bytes only;
`mcp_rl.learning.disk.state` gives them their meaning.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import CheckpointError, RunDirectoryError
from mcp_rl.system.chain import inside
from mcp_rl.system.durable import sync_file, sync_folder
from mcp_rl.system.seals import (
    HISTORY,
    check_kinds,
    checkpoint_entry,
    checkpoint_step,
    file_digest,
    last_line,
    read_seal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of a checkpoint's contents; no other version is read."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    skipped: list[str] = field(default_factory=list)
    """A sentence for each newer checkpoint that is damaged."""

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises CheckpointError if it cannot be read."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"Cannot read {self.path / name}: {error.strerror}.") from error

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file. Raises CheckpointError if it is not a JSON object."""
        try:
            content = json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path / name} is not JSON: {error}.") from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{self.path / name} is not a JSON object.")
        return content


def write_checkpoint(
    folder: Path,
    step: int,
    files: Mapping[str, bytes],
    *,
    write: Callable[[Path], object] | None = None,
    keep: int | None = None,
    protect: Collection[int] = (),
) -> Checkpoint:
    """Write `files` (name to content) as the checkpoint of a step, then remove all but the newest `keep`.

    `write` puts large files into the folder that it is given, so that they need not be in memory as bytes; it raises
    OSError or CheckpointError if it fails. The steps in `protect` stay, however old they are. Checkpoints of later
    steps do not: they were passed over when the run was continued. An earlier checkpoint of the same step is replaced.
    Raises CheckpointError, with everything as before, if the folder cannot be written.
    """
    path = folder / f"{step:04d}"
    temporary = folder / f".{path.name}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, orphans=False)
        temporary.mkdir()
        if write is not None:
            write(temporary)
        for name, content in files.items():
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        written = sorted(file for file in temporary.rglob("*") if file.is_file())
        with ThreadPoolExecutor(min(16, max(1, len(written)))) as pool:  # a disk syncs several files as fast as one
            sealed = list(pool.map(_seal, written))
        entries = {path.relative_to(temporary).as_posix(): seal for path, seal in zip(written, sealed, strict=True)}
        manifest = temporary / MANIFEST
        manifest.write_text(json.dumps({"format": FORMAT, "step": step, "files": entries}, indent=2))
        _seal(manifest)
        sync_folder(temporary)
        if path.exists():
            path.rename(_put_aside(path))
        temporary.rename(path)
        sync_folder(folder)
        _remove_leftovers(folder, orphans=True)
        if keep is not None:
            _retain(folder, keep, protect, newest=step)
    except CheckpointError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"Cannot write the checkpoint {path}: {error.strerror or error}.") from error
    return Checkpoint(path, step)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None without any.

    Raises CheckpointError if all are damaged, or if the newest complete one has another format than this version's.
    """
    skipped: list[str] = []
    problem: str | None = None
    for path in _newest_first(folder):
        if problem := find_damage(path):
            skipped.append(f"The checkpoint {path} is damaged ({problem}), so the one before it is used.")
        else:
            return _known_format(Checkpoint(path, _step_of(path), skipped))
    if skipped:
        raise CheckpointError(
            f"None of the {len(skipped)} checkpoints in {folder} is whole (in the newest, {problem}): put a good copy "
            "of one there, or start over with --fresh."
        )
    return None


def _known_format(checkpoint: Checkpoint) -> Checkpoint:
    found = checkpoint.read_json(MANIFEST).get("format", 1)
    if found != FORMAT:
        raise CheckpointError(
            f"The checkpoint {checkpoint.path} has format {found}, and this version reads format {FORMAT}: continue "
            "with the version of mcp_rl that wrote it, or start over with --fresh."
        )
    return checkpoint


def find_damage(path: Path) -> str | None:
    """Describe a checkpoint's damage in a few words; return None if every file is as it was written."""
    try:
        check_kinds(path)
        manifest = json.loads((path / MANIFEST).read_bytes())
        for name, known in manifest["files"].items():
            if not inside(name):
                return f"{MANIFEST} names files of other folders"
            with (path / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != known["sha256"]:
                    return f"{name} has changed"
        if _of_run(path) and manifest["step"] != _step_of(path):
            return f"it is the checkpoint of step {manifest['step']}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except RunDirectoryError as error:
        return str(error).rstrip(".")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    return _find_foreign(path)


def _find_foreign(path: Path) -> str | None:
    """Return why a whole checkpoint is not one that its run wrote; None if it is, or if nothing tells.

    A kill may have come between a checkpoint and its seal. Such a checkpoint is newer than all sealed ones, and the
    history reaches its step.
    """
    run = path.parent.parent
    seal = read_seal(run) if _of_run(path) else None
    if seal is None:
        return None
    step = _step_of(path)
    if known := seal.files.get(checkpoint_entry(step)):
        return None if file_digest(path / MANIFEST) == known else "it is not the one that the run wrote"
    if "state.json" not in seal.names:  # its program seals no checkpoints
        return None
    newest = max(map(checkpoint_step, seal.files), default=-1)
    return None if newest < step <= int(last_line(run / HISTORY).get("step", 0)) else "the run never wrote it"


def _of_run(path: Path) -> bool:
    """Return whether a checkpoint lies where a run keeps its own."""
    return path.parent.name == "checkpoints" and re.fullmatch(r"\d+|\.\d+\.old", path.name) is not None


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if path.name.isdigit()]
    return sorted(numbered + _orphans(folder), key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(".").removesuffix(".old"))


def tidy(folder: Path, keep: int, protect: Collection[int] = ()) -> None:
    """Remove a killed process's leftovers, and all checkpoints but the newest `keep` and those in `protect`.

    Raises CheckpointError if the folder cannot be written.
    """
    try:
        for path in _orphans(folder):
            if find_damage(path) is None:
                path.rename(folder / f"{_step_of(path):04d}")
        _remove_leftovers(folder, orphans=True)
        _retain(folder, keep, protect)
    except OSError as error:
        raise CheckpointError(f"Cannot remove old checkpoints in {folder}: {error.strerror or error}.") from error


def _retain(folder: Path, keep: int, protect: Collection[int], newest: float = math.inf) -> None:
    """Remove old checkpoints, each renamed first, so that a kill never leaves half of one under its number."""
    every = _newest_first(folder)  # by now no checkpoint is put aside
    kept = [path for path in every if _step_of(path) <= newest][: max(1, keep)]
    for path in every:
        if path in kept or _step_of(path) in protect:
            continue
        doomed = _put_aside(path)
        path.rename(doomed)
        shutil.rmtree(doomed)


def _put_aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _orphans(folder: Path) -> list[Path]:
    """Return checkpoints that were put aside and whose successor never took their place, because of a kill."""
    return [path for path in folder.glob(".*.old") if not (folder / f"{_step_of(path):04d}").exists()]


def _remove_leftovers(folder: Path, *, orphans: bool) -> None:
    kept = [] if orphans else _orphans(folder)
    for path in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
        if path not in kept:
            shutil.rmtree(path)


def _seal(path: Path) -> dict[str, Any]:
    """Force a file to the disk, as readable as its folder; return its size and SHA-256."""
    path.chmod(path.parent.stat().st_mode & 0o666)  # the safetensors library makes its files private
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        sync_file(file)
        return {"bytes": file.tell(), "sha256": digest}
