"""Atomic writes: a file is written aside, forced to the disk, and renamed into place."""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Make `path` hold `content`; if the process is killed meanwhile, it holds all of the old or all of the new. Raises
    OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            sync_file(file)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_file(file: IO[bytes]) -> None:
    """Force the content of an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force the entries of a folder to the disk, after a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
