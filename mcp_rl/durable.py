"""Files that are whole whenever anyone looks: written aside, forced to the disk, renamed into place."""

import contextlib
import os
from pathlib import Path
from typing import IO


def write_atomically(path: Path, content: bytes) -> None:
    """Make `path` hold `content`, all of it or, where we are killed, what it held before. Raises OSError."""
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
    """Force what was written to an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, after a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
