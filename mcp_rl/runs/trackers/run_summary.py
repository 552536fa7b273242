"""The settings of a run and a table of its episodes, in the form that several trackers show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.config import RunConfig
    from mcp_rl.runs.trackers.spans import Span

COLUMNS = ("step", "scenario", "reward", "success", "stop_reason", "turns", "calls", "seconds")
_TEXT_COLUMNS = ("task", "calls made", "answer", "explanation")


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run as JSON. Left out are its folder and its server, whose address or command may hold
    secrets."""
    settings: dict[str, Any] = json.loads(without_secrets(config.model_dump_json(exclude={"server", "output_dir"})))
    return settings


def table_of(episodes: Sequence[Span], *, texts: bool) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of a table with one row for each episode."""
    columns = [*COLUMNS, *(_TEXT_COLUMNS if texts else ())]
    return columns, [_row(episode, texts) for episode in episodes]


def _row(episode: Span, texts: bool) -> list[Any]:
    attributes = episode.attributes
    calls = [child for child in episode.children if child.kind == "tool"]
    turns = sum(child.kind == "turn" for child in episode.children)
    seconds = round(episode.period[1] - episode.period[0], 3)
    row = [attributes.get(f"mcp_rl.{name}") for name in COLUMNS[:5]] + [turns, len(calls), seconds]
    if texts:
        task = next((message["content"] for message in episode.inputs or () if message["role"] == "user"), "")
        answer = episode.outputs[0]["content"] if episode.outputs else ""
        made = "\n".join(
            f"{call.attributes['gen_ai.tool.name']} {json.dumps(call.inputs)}: {call.outputs}" for call in calls
        )
        row += [task, made, answer, attributes.get("mcp_rl.explanation") or ""]
    return row
