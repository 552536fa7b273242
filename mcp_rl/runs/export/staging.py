"""Write an exported folder whole or not at all: fill it aside, seal it with a manifest, rename it into place."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil

from mcp_rl.errors import ConfigError
from mcp_rl.learning.disk.checkpoint import FORMAT, MANIFEST
from mcp_rl.system.durable import sync_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXPORT = "export"
"""Key of the manifest that marks a folder as an export and describes it."""


@contextmanager
def staged(out: Path, about: dict[str, Any], *, overwrite: bool = False) -> Iterator[Path]:
    """Fill a hidden folder beside `out` that becomes `out` in the end, or is removed where anything is raised.

    `about` goes into the manifest. Raises ConfigError where `out` already holds something; with `overwrite` only where
    that is no export of mcp-rl's.
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
    """Clean up after killed exports: restore a folder that was not replaced, remove the rest."""
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
    """Raise ConfigError if `out` must not be written. Leftovers of killed exports are cleaned up first."""
    with _typed(out):
        _tidy(out.resolve())
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise ConfigError(f"An export must be a folder, but {out} is {'a link' if out.is_symlink() else 'a file'}.")
    if not any(out.iterdir()):
        return
    if not _is_export(out):
        raise ConfigError(f"The folder {out} already holds something else; choose another one with --out.")
    if not overwrite:
        raise ConfigError(
            f"The folder {out} already holds an export: add --overwrite, or choose another folder with --out."
        )


def _is_export(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((folder / MANIFEST).read_bytes())
        return isinstance(content, dict) and EXPORT in content
    return False


def _seal(folder: Path, about: dict[str, Any]) -> None:
    """Force every file to the disk, and list it in the manifest with its size and SHA-256."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        path.chmod(folder.stat().st_mode & 0o666)  # the safetensors library makes its files private
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
    """Rename the folder into place. An older one is moved aside first, and removed once the new one is there."""
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
