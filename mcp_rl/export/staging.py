"""An exported folder is there whole or not at all: filled aside, sealed with a manifest, renamed into place."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from mcp_rl.durable import sync_file, sync_folder
from mcp_rl.errors import ConfigError
from mcp_rl.learning.checkpoint import FORMAT, MANIFEST

EXPORT = "export"
"""The key of the manifest that says that the folder is an export, and of what."""


@contextmanager
def staged(out: Path, about: dict[str, Any], *, overwrite: bool = False) -> Iterator[Path]:
    """A hidden folder beside `out`, to be filled; at the end it becomes `out`. Where anything is raised it goes.

    `about` is for the manifest. Raises ConfigError where `out` holds something already: with `overwrite` only where it
    is no export of ours.
    """
    check_free(out, overwrite=overwrite)
    target = out.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with _typed(out):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    try:
        yield temporary
        with _typed(out):
            _seal(temporary, about)
            _put(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _tidy(target: Path) -> None:
    """What exports that were killed have left: put back what had no successor, remove the rest."""
    for kind in ("old", "tmp"):
        for left in target.parent.glob(f".{glob.escape(target.name)}.*.{kind}"):
            owner = left.name.split(".")[-2]
            if not owner.isdigit() or psutil.pid_exists(int(owner)):
                continue
            if kind == "old" and not target.exists():
                left.rename(target)
            else:
                shutil.rmtree(left, ignore_errors=True)


def check_free(out: Path, *, overwrite: bool) -> None:
    """Raises ConfigError where `out` must not be written. What killed exports left there is put right first."""
    with _typed(out):
        _tidy(out.resolve())
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise ConfigError(f"An export is a folder, and {out} is {'a link' if out.is_symlink() else 'a file'}.")
    if not any(out.iterdir()):
        return
    if not _is_export(out):
        raise ConfigError(f"The folder {out} holds something else already; choose another one with --out.")
    if not overwrite:
        raise ConfigError(f"There is an export in {out} already: add --overwrite, or choose another folder with --out.")


def _is_export(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((folder / MANIFEST).read_bytes())
        return isinstance(content, dict) and EXPORT in content
    return False


def _seal(folder: Path, about: dict[str, Any]) -> None:
    """Force everything to the disk, and name it with size and SHA-256."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        path.chmod(folder.stat().st_mode & 0o666)  # the safetensors library lets nobody else read its files
        with path.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            sync_file(file)
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
    content = {"format": FORMAT, "step": about.get("step", 0), EXPORT: about, "files": files}
    with (folder / MANIFEST).open("wb") as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())
        sync_file(file)
    for inner in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        sync_folder(inner)


def _put(temporary: Path, target: Path) -> None:
    """In its place. What was there is moved aside first, and removed when the new one is there."""
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _typed(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"Cannot write {out}: {error.strerror or error}.") from error
