"""Folders of evaluations, `<project>/evaluations/<name>/`, and of runs: create them, find them, read their episodes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.run_directory import RunDirectory, read_groups
from mcp_rl.system.durable import write_atomically
from mcp_rl.system.seals import check_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

_KINDS = {"models": "model.json", "evaluations": "report.json"}
"""For each folder of a project the file that marks its entries."""


@dataclass(frozen=True)
class EpisodeFile:
    """A file of episodes, all of one model at one time."""

    path: Path
    label: str
    """Name of the model, or the run with split and step."""
    server: str
    groups: list[TrajectoryGroup]
    tools: list[dict[str, Any]] = field(default_factory=list)
    """OpenAI function schemas; empty if the folder does not hold them."""
    about: dict[str, Any] = field(default_factory=dict)

    def episodes(self, *, only_successful: bool = False) -> Iterator[tuple[TrajectoryGroup, int, Trajectory]]:
        """Yield each episode with its group and its place in the group."""
        for group in self.groups:
            for place, trajectory in enumerate(group):
                if trajectory.success or not only_successful:
                    yield group, place, trajectory


def claim(evaluations: Path, server: str, name: str | None) -> Path:
    """Create a folder of this name, or of the server's name and the next free number.

    Raises RunDirectoryError if the name is taken or the folder cannot be written.
    """
    try:
        evaluations.mkdir(parents=True, exist_ok=True)
        if name is not None:
            (evaluations / name).mkdir()
            return evaluations / name
        return _numbered(evaluations, server)
    except FileExistsError as error:
        raise RunDirectoryError(
            f"The evaluation {evaluations / (name or '')} already exists; choose another name with --name."
        ) from error
    except OSError as error:
        raise RunDirectoryError(f"Cannot write {evaluations}: {error.strerror or error}.") from error


def save_episodes(folder: Path, label: str, groups: Iterable[TrajectoryGroup]) -> str:
    """Write one group per line; return the file's name inside the folder."""
    slug = re.sub(r"[^\w.@-]+", "-", label).strip("-.")[-80:] or "model"
    name, number = f"episodes/{slug}.jsonl", 2
    while (folder / name).exists():
        name, number = f"episodes/{slug}-{number}.jsonl", number + 1
    write_atomically(folder / name, "".join(group.model_dump_json() + "\n" for group in groups).encode())
    return name


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically."""
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def find_folder(name: str, project: Path) -> Path:
    """Find the folder of a run or of an evaluation by its path, or by its name in the project's folder.

    Raises ConfigError if there is none, if the name means two, or if the folder is neither.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.exists() and path.name in {"report.json", "model.json", "report.html"}:
        return _checked(path.parent)
    if path.exists():
        raise ConfigError(f"{path} is a file; name the folder of a run or of an evaluation.")
    found = [project / kind / name for kind in _KINDS if (project / kind / name).is_dir()] if path.name == name else []
    if len(found) > 1:
        raise ConfigError(
            f"Both a run and an evaluation are called {name!r}; name the folder: {found[0]} or {found[1]}."
        )
    if found:
        return _checked(found[0])
    known = sorted(entry.parent.name for kind, file in _KINDS.items() for entry in (project / kind).glob(f"*/{file}"))
    close = get_close_matches(path.name, known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}." if known else "there is none yet."
    raise ConfigError(f"There is no run or evaluation {name!r} in {project}; {hint}")


def _numbered(evaluations: Path, server: str) -> Path:
    taken = [int(path.name[-3:]) for path in evaluations.glob(f"{server}-[0-9][0-9][0-9]")]
    number = max(taken, default=0) + 1
    while True:
        path = evaluations / f"{server}-{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:  # another process was faster
            number += 1
            continue
        return path


def _checked(folder: Path) -> Path:
    if any((folder / file).is_file() for file in _KINDS.values()):
        return folder
    raise ConfigError(
        f"The folder {folder} is neither a run's nor an evaluation's: it holds no model.json and no report.json."
    )


def read_episodes(path: Path) -> list[EpisodeFile]:
    """Read all episode files of a folder, or one file. Raises ConfigError if there are none."""
    if not path.exists():
        raise ConfigError(f"There is no folder or file {path}; name the folder of an evaluation or a run.")
    root = _root(path)
    files = [path] if path.is_file() else sorted([*root.glob("episodes/*.jsonl"), *root.glob("trajectories/*/*.jsonl")])
    if not files:
        raise ConfigError(f"The folder {path} holds no episodes: no episodes/*.jsonl and no trajectories/*/*.jsonl.")
    recorded = RunDirectory(root).recorded_episodes() if check_sealed(root) else None
    if recorded:  # a run in progress may have written more
        files = [file for file in files if path.is_file() or file.relative_to(root).as_posix() in recorded]
    tools, report = _json(root / "tools.json") or [], _json(root / "report.json") or {}
    return [_episode_file(file, root, tools, report) for file in files]


def _root(path: Path) -> Path:
    """Return the folder of the evaluation or run that a path belongs to."""
    if path.is_dir():
        return path
    return path.parent.parent if path.parent.name == "episodes" else path.parent.parent.parent


def _episode_file(path: Path, root: Path, tools: list[dict[str, Any]], report: dict[str, Any]) -> EpisodeFile:
    relative = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    models = [m for m in report.get("models", []) if isinstance(m, dict) and m.get("episodes") == relative.as_posix()]
    groups = list(read_groups(path))
    if not groups:
        raise ConfigError(f"The file {path} holds no episodes.")
    label = models[0]["model"] if models else f"{root.name}-{path.parent.name}-{path.stem}"
    server = next((group.scenario.server for group in groups if group.scenario.server), report.get("server", ""))
    about: dict[str, Any] = {key: report[key] for key in ("seed", "temperature", "limits") if key in report}
    return EpisodeFile(path, label, server, groups, tools, about)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
