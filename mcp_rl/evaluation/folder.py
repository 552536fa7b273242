"""The folder of one evaluation: `<project>/evaluations/<name>/`."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mcp_rl.durable import write_atomically
from mcp_rl.errors import RunDirectoryError
from mcp_rl.trajectory import TrajectoryGroup


def claim(evaluations: Path, server: str, name: str | None) -> Path:
    """A new folder of this name, or of the server's name and the next free number.

    Raises RunDirectoryError where the name is taken, or the folder cannot be written.
    """
    try:
        evaluations.mkdir(parents=True, exist_ok=True)
        if name is not None:
            (evaluations / name).mkdir()
            return evaluations / name
        return _numbered(evaluations, server)
    except FileExistsError as error:
        raise RunDirectoryError(
            f"There is an evaluation in {evaluations / (name or '')} already; choose another name with --name."
        ) from error
    except OSError as error:
        raise RunDirectoryError(f"Cannot write {evaluations}: {error.strerror or error}.") from error


def save_episodes(folder: Path, label: str, groups: Iterable[TrajectoryGroup]) -> str:
    """Write one group on a line; returns the file's name inside the folder."""
    slug = re.sub(r"[^\w.@-]+", "-", label).strip("-.")[-80:] or "model"
    name, number = f"episodes/{slug}.jsonl", 2
    while (folder / name).exists():
        name, number = f"episodes/{slug}-{number}.jsonl", number + 1
    write_atomically(folder / name, "".join(group.model_dump_json() + "\n" for group in groups).encode())
    return name


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _numbered(evaluations: Path, server: str) -> Path:
    taken = [int(path.name[-3:]) for path in evaluations.glob(f"{server}-[0-9][0-9][0-9]")]
    number = max(taken, default=0) + 1
    while True:
        path = evaluations / f"{server}-{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:  # somebody else was faster
            number += 1
            continue
        return path
