"""Episodes in forms that other tools read: JSON Lines of OpenAI messages, and the logs of inspect_ai.

Episodes are found in the folder of an evaluation or of a training run, or in one of their files.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcp_rl.durable import write_atomically
from mcp_rl.errors import ConfigError
from mcp_rl.trajectory import Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class EpisodeFile:
    """The episodes of one model at one time."""

    path: Path
    label: str
    """The model, or the split and step of a training run."""
    server: str
    groups: list[TrajectoryGroup]
    tools: list[dict[str, Any]] = field(default_factory=list)
    """OpenAI function schemas; none where the folder does not hold them."""
    about: dict[str, Any] = field(default_factory=dict)

    def episodes(self, *, only_successful: bool = False) -> Iterator[tuple[TrajectoryGroup, int, Trajectory]]:
        """Each with its group and its place in it."""
        for group in self.groups:
            for place, trajectory in enumerate(group):
                if trajectory.success or not only_successful:
                    yield group, place, trajectory


def read_episodes(path: Path) -> list[EpisodeFile]:
    """All episode files of a folder, or the one that is named. Raises ConfigError where there are none."""
    if not path.exists():
        raise ConfigError(f"There is no folder or file {path}; name an evaluation's or a run's folder.")
    root = _root(path)
    files = [path] if path.is_file() else sorted([*root.glob("episodes/*.jsonl"), *root.glob("trajectories/*/*.jsonl")])
    if not files:
        raise ConfigError(f"The folder {path} holds no episodes: no episodes/*.jsonl and no trajectories/*/*.jsonl.")
    tools, report = _json(root / "tools.json") or [], _json(root / "report.json") or {}
    return [_file(file, root, tools, report) for file in files]


def openai_lines(files: Sequence[EpisodeFile], *, only_successful: bool = False) -> Iterator[str]:
    """One JSON object for each episode: `messages`, `tools` where they are known, and `metadata`."""
    for file in files:
        for group, place, trajectory in file.episodes(only_successful=only_successful):
            line: dict[str, Any] = {"messages": [_message(message) for message in trajectory.messages]}
            if file.tools:
                line["tools"] = file.tools
            line["metadata"] = {
                "model": file.label,
                "server": file.server,
                "scenario_id": group.scenario.id,
                "episode": place,
                "stop_reason": trajectory.stop_reason.value,
                "success": trajectory.success,
                "reward": trajectory.reward,
                "explanation": trajectory.explanation,
                "fault": trajectory.fault,
            }
            yield json.dumps(line, ensure_ascii=False)


def export_openai(path: Path, out: Path, *, only_successful: bool = False) -> int:
    """Write the episodes of `path` to the JSON Lines file `out`; returns how many. Raises ConfigError."""
    lines = list(openai_lines(read_episodes(path), only_successful=only_successful))
    if not lines:
        raise ConfigError(f"No episode in {path} succeeded, so there is nothing to write.")
    _write(out, "".join(f"{line}\n" for line in lines))
    return len(lines)


def export_inspect(path: Path, out: Path, *, only_successful: bool = False) -> list[Path]:
    """Write a log for each episode file of `path` into the folder `out`; returns the logs.

    Raises ConfigError where inspect_ai is not installed.
    """
    try:
        from mcp_rl.evaluation.inspect_log import write_log  # imports inspect_ai
    except ImportError as error:
        raise ConfigError("Logs of inspect_ai need that package: pip install 'mcp-rl[inspect]'.") from error
    if out.exists() and not out.is_dir():
        raise ConfigError(f"Logs are written into a folder, and {out} is a file.")
    files = read_episodes(path)
    written = [log for file in files if (log := write_log(file, out, only_successful=only_successful))]
    if not written:
        raise ConfigError(f"No episode in {path} succeeded, so there is nothing to write.")
    return written


def _root(path: Path) -> Path:
    """The folder that says what the episodes are of."""
    if path.is_dir():
        return path
    return path.parent.parent if path.parent.name == "episodes" else path.parent.parent.parent


def _file(path: Path, root: Path, tools: list[dict[str, Any]], report: dict[str, Any]) -> EpisodeFile:
    relative = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    models = [m for m in report.get("models", []) if isinstance(m, dict) and m.get("episodes") == relative.as_posix()]
    groups = _groups(path)
    label = models[0]["model"] if models else f"{root.name}-{path.parent.name}-{path.stem}"
    server = next((group.scenario.server for group in groups if group.scenario.server), report.get("server", ""))
    about: dict[str, Any] = {key: report[key] for key in ("seed", "temperature", "limits") if key in report}
    return EpisodeFile(path, label, server, groups, tools, about)


def _groups(path: Path) -> list[TrajectoryGroup]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from error
    groups = [_group(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not groups:
        raise ConfigError(f"The file {path} holds no episodes.")
    return groups


def _group(line: bytes, where: str) -> TrajectoryGroup:
    try:
        return TrajectoryGroup.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where}, holds no group of episodes: {error.errors()[0]['msg']}.") from error


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's API takes it: a tool's message has no name there."""
    return {key: value for key, value in message.items() if not (key == "name" and message.get("role") == "tool")}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"Cannot write {path}: there is no folder {path.parent}.")
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror or error}.") from error
