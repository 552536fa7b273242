"""Folders as bytes, which need no shared file system: names below the folder to contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Files = dict[str, bytes]


def read_folder(folder: Path) -> Files:
    """Return the contents of all files in a folder, by their paths in it."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def write_folder(folder: Path, files: Files) -> None:
    """Write files into a folder, which is made if need be. Raises ValueError for a name that leads out of it."""
    for name, content in files.items():
        target = (folder / name).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise ValueError(f"{name!r} leads out of {folder}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
