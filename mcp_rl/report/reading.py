"""Files of episodes and histories, read line by line, also while a run writes them. Nothing is locked or changed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcp_rl.errors import RunDirectoryError
from mcp_rl.trajectory import TrajectoryGroup


def groups_in(path: Path, most: int | None = None) -> Iterator[TrajectoryGroup]:
    """The groups of a file in order, until `most` bytes of it are read; at least one of them.

    Raises RunDirectoryError where the file or a line of it cannot be read.
    """
    taken = 0
    try:
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield TrajectoryGroup.model_validate_json(line)
                taken += len(line)
                if most is not None and taken > most:
                    return
    except OSError as error:
        raise RunDirectoryError(f"The episodes in {path} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RunDirectoryError(f"The episodes in {path} cannot be read: {place}: {first['msg']}.") from error


def history_in(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's history.jsonl by step, training before evaluation; empty where there is none yet.

    A step that was taken again has the newest of its lines, and a last line that is not whole yet is left out. Raises
    RunDirectoryError where the file or another line of it cannot be read.
    """
    path = folder / "history.jsonl"
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunDirectoryError(f"The history in {path} cannot be read: {error.strerror or error}.") from error
    newest: dict[tuple[int, str], dict[str, Any]] = {}
    for number, text in enumerate(content.splitlines(keepends=True), 1):
        if text.endswith(b"\n") and text.strip():
            line = _history_line(text, path, number)
            newest[line["step"], line["split"]] = line
    return [newest[key] for key in sorted(newest)]


def _history_line(text: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise RunDirectoryError(f"The history in {path} cannot be read: line {number} is not JSON.") from error
    if not (isinstance(line, dict) and isinstance(line.get("step"), int) and isinstance(line.get("split"), str)):
        raise RunDirectoryError(f"The history in {path} cannot be read: line {number} has no step and split.")
    for name, value in line.items():
        if isinstance(value, str) and name != "split":
            raise RunDirectoryError(f"The history in {path} cannot be read: in line {number}, {name} is no number.")
    return line
