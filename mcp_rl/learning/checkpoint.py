"""Checkpoints on disk: `checkpoints/0000 0001 …`, each whole or not there at all.

A checkpoint is written into a hidden folder, synced, and renamed into place; its manifest names every file with size
and SHA-256, so that a damaged one is seen and the one before is used. This module knows bytes only; what they mean is
in `mcp_rl.learning.state`.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_rl.durable import sync_file, sync_folder
from mcp_rl.errors import CheckpointError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    step: int
    skipped: list[str] = field(default_factory=list)
    """One sentence for each newer checkpoint that was not whole."""

    def read(self, name: str) -> bytes:
        """Content of one file. Raises CheckpointError where it is not there."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"Cannot read {self.path / name}: {error.strerror}.") from error

    def read_json(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.read(name))
        return content


def write_checkpoint(folder: Path, step: int, files: Mapping[str, bytes], *, keep: int | None = None) -> Checkpoint:
    """Write `files` (name to content) as the checkpoint of a step, then remove all but the newest `keep`.

    An earlier checkpoint of the same step is replaced. Raises CheckpointError where the folder cannot be written; what
    was there before is then still there.
    """
    path = folder / f"{step:04d}"
    temporary = folder / f".{path.name}.tmp"
    manifest = {
        "step": step,
        "files": {name: {"bytes": len(content), "sha256": _digest(content)} for name, content in files.items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, orphans=False)
        temporary.mkdir()
        for name, content in files.items():
            _write(temporary / name, content)
        _write(temporary / MANIFEST, json.dumps(manifest, indent=2).encode())
        sync_folder(temporary)
        if path.exists():
            path.rename(_put_aside(path))
        temporary.rename(path)
        sync_folder(folder)
        _remove_leftovers(folder, orphans=True)
        if keep is not None:
            _retain(folder, keep)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"Cannot write the checkpoint {path}: {error.strerror or error}.") from error
    return Checkpoint(path, step)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, or None where there is none."""
    skipped: list[str] = []
    for path in _newest_first(folder):
        if problem := find_damage(path):
            skipped.append(f"The checkpoint {path} is damaged ({problem}), so the one before it is used.")
        else:
            return Checkpoint(path, _step_of(path), skipped)
    return None


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None where every file is as it was written."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        for name, known in manifest["files"].items():
            content = (path / name).read_bytes()
            if len(content) != known["bytes"] or _digest(content) != known["sha256"]:
                return f"{name} has changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if path.name.isdigit()]
    return sorted(numbered + _orphans(folder), key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(".").removesuffix(".old"))


def _retain(folder: Path, keep: int) -> None:
    """Renamed first, so that a kill while removing never leaves half a checkpoint under its number."""
    for path in _newest_first(folder)[max(1, keep) :]:  # nothing is put aside by now
        doomed = _put_aside(path)
        path.rename(doomed)
        shutil.rmtree(doomed)


def _put_aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _orphans(folder: Path) -> list[Path]:
    """Checkpoints that were put aside and whose successor never took their place, because of a kill."""
    return [path for path in folder.glob(".*.old") if not (folder / f"{_step_of(path):04d}").exists()]


def _remove_leftovers(folder: Path, *, orphans: bool) -> None:
    kept = [] if orphans else _orphans(folder)
    for path in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
        if path not in kept:
            shutil.rmtree(path)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        sync_file(file)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
