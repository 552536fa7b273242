"""Export episodes for other tools: JSON Lines of OpenAI messages, and logs of inspect_ai.

The source is the folder of an evaluation or of a training run, or one of their episode files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.folder import EpisodeFile, read_episodes
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def openai_lines(files: Sequence[EpisodeFile], *, only_successful: bool = False) -> Iterator[str]:
    """Yield one JSON object for each episode: `messages`, `tools` if they are known, and `metadata`."""
    for file in files:
        for line in openai_episodes(file, only_successful=only_successful):
            yield json.dumps(line, ensure_ascii=False)


def openai_episodes(file: EpisodeFile, *, only_successful: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects that `openai_lines` writes for one file."""
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
        yield line


def export_openai(path: Path, out: Path, *, only_successful: bool = False) -> int:
    """Write the episodes of `path` to the JSON Lines file `out`; return their number. Raises ConfigError."""
    lines = list(openai_lines(read_episodes(path), only_successful=only_successful))
    if not lines:
        raise ConfigError(f"No episode in {path} succeeded, so there is nothing to write.")
    _write(out, "".join(f"{line}\n" for line in lines))
    return len(lines)


def export_inspect(path: Path, out: Path, *, only_successful: bool = False) -> list[Path]:
    """Write a log for each episode file of `path` into the folder `out`; return the logs.

    Raises ConfigError if inspect_ai is not installed.
    """
    try:
        from mcp_rl.evaluation.inspect_log import write_log  # imports inspect_ai
    except ImportError as error:
        raise ConfigError("The format inspect needs the package inspect_ai: pip install 'mcp-rl[inspect]'.") from error
    if out.exists() and not out.is_dir():
        raise ConfigError(f"Cannot write logs into {out}: it is a file; name a folder.")
    files = read_episodes(path)
    written = [log for file in files if (log := write_log(file, out, only_successful=only_successful))]
    if not written:
        raise ConfigError(f"No episode in {path} succeeded, so there is nothing to write.")
    return written


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as OpenAI's API takes it, where a tool's message has no name."""
    return {key: value for key, value in message.items() if not (key == "name" and message.get("role") == "tool")}


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"Cannot write {path}: there is no folder {path.parent}.")
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror or error}.") from error
