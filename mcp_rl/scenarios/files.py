"""Reader of scenario files: those of `mcp-rl generate`, of people, and of other generators.

A file is JSON Lines, a JSON list, or a JSON object that holds one list. An entry is a whole scenario, or
`{"task": …, "difficulty": 1..5}`, completed with the server that it is read for, or any object whose fields
`scenarios.fields` maps to a scenario's parts. A claimed difficulty is not a measured one, so it becomes the tag
`claimed-difficulty-N`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario, distinct, parse_json, parse_scenario, read_text, text_lines
from mcp_rl.scenarios.fit import without_server
from mcp_rl.scenarios.mapped import mapped

if TYPE_CHECKING:
    from mcp_rl.config import ScenarioConfig
    from mcp_rl.toolserver.tool_server import ToolServer

_DIFFICULTIES = range(1, 6)
_REQUEST = {"task", "task_description"}
_FIELDS = {"task", *McpScenario.model_fields}
_ELSEWHERE = ("prompt", "messages", "question", "instruction", "query", "input")
"""Names of the request in the datasets of other trainers."""


def read_scenario_file(
    path: str | Path,
    server: ToolServer | None = None,
    transport: str | None = None,
    reading: ScenarioConfig | None = None,
) -> list[McpScenario]:
    """Return the scenarios in a file of any of the formats above.

    `server` completes entries that do not name their server; `reading` maps the fields of entries to a scenario's.
    Raises ScenarioError with the file, the line or entry and the error; also for duplicates, and for an entry without a
    server where `server` is None.
    """
    path = Path(path)
    text = read_text(path)
    unit, entries = _entries(path, text)
    if reading is not None and reading.fields:
        toolless = server is not None and server.toolless
        _check_optional(path, unit, entries, reading.fields)
        entries = [(n, _mapped(entry, reading, f"{path}, {unit} {n}", toolless)) for n, entry in entries]
    read = ((n, _scenario(entry, server, transport, f"{path}, {unit} {n}")) for n, entry in entries)
    return distinct(path, read, unit=unit)


def _mapped(entry: Any, reading: ScenarioConfig, where: str, toolless: bool) -> Any:
    return mapped(entry, reading, where, server=not toolless) if isinstance(entry, dict) else entry


def _check_optional(path: Path, unit: str, entries: list[tuple[int, Any]], fields: dict[str, str]) -> None:
    """Check that some entry has each field that entries may leave out. Raises ScenarioError."""
    for part, name in fields.items():
        if part not in ("task", "answer") and not any(
            isinstance(entry, dict) and name in entry for _, entry in entries
        ):
            raise ScenarioError(f"{path}: no {unit} has the field {name!r} that scenarios.fields.{part} names.")


def _entries(path: Path, text: str) -> tuple[str, list[tuple[int, Any]]]:
    """Return the unit of counting ("line" or "entry"), and each entry with its number."""
    whole = _whole(path, text)
    lines = text_lines(text)
    if isinstance(whole, dict):
        lists = [name for name, value in whole.items() if isinstance(value, list)]
        if len(lists) == 1 and lists[0] not in (*McpScenario.model_fields, *_ELSEWHERE) and not _REQUEST & whole.keys():
            whole = whole[lists[0]]
        elif not lists or (_FIELDS | {*_ELSEWHERE}) & whole.keys():
            if len(lines) == 1:  # JSON Lines with one line
                return "line", [(lines[0][0], whole)]
            whole = [whole]
        else:
            raise ScenarioError(
                f"{path} is one JSON object with {len(lists)} lists ({', '.join(lists)}); keep only the list of "
                'scenarios, with entries such as {"task": "…"}.'
            )
    if isinstance(whole, list):
        return "entry", list(enumerate(whole, 1))
    return "line", [(number, parse_json(line, f"{path}, line {number}")) for number, line in lines]


def _whole(path: Path, text: str) -> Any:
    """Return the single JSON value of a file, or None if it is JSON Lines. Raises ScenarioError for a broken value."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        first = next((line.strip() for _, line in text_lines(text)), "")
        # The first line of JSON Lines is an object; that of an indented value only begins one.
        if first.startswith("[") or (first.startswith("{") and first.endswith(("{", "[", ","))):
            parse_json(text, str(path))
        return None


def _scenario(entry: Any, server: ToolServer | None, transport: str | None, where: str) -> McpScenario:
    if not isinstance(entry, dict):
        return parse_scenario(entry, where)
    if not _REQUEST & entry.keys() and (name := next((name for name in _ELSEWHERE if name in entry), None)):
        raise ScenarioError(
            f"{where}: a task's request is a text called 'task', not {name!r}, and its right answer is in a verifier, "
            'such as {"task": "What is 3 plus 4?", "verifier": {"kind": "number", "expected": 7}}; or name the fields '
            f"that hold them, such as scenarios.fields.task={name} and scenarios.fields.answer=answer."
        )
    fields = _with_scenario_names(entry, where) if "task" in entry else dict(entry)
    if server is not None and "server_params" not in fields:
        fields["server_params"] = server.params(transport)
        fields.setdefault("server", server.name)
    scenario = parse_scenario(fields, where)
    return without_server(scenario) if server is not None and server.toolless else scenario


def _with_scenario_names(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """Rename `task` and `difficulty` to a scenario's fields; every other name must be a field already."""
    if "task_description" in entry:
        raise ScenarioError(f"{where}: it has both 'task' and 'task_description'; keep one of the two.")
    fields = {name: value for name, value in entry.items() if name not in ("task", "difficulty")}
    fields["task_description"] = entry["task"]
    claimed = entry.get("difficulty")
    if claimed is not None:
        if isinstance(claimed, bool) or claimed not in _DIFFICULTIES:
            raise ScenarioError(f"{where}: difficulty must be an integer from 1 to 5, not {json.dumps(claimed)[:40]}.")
        tags = fields.get("tags", [])
        fields["tags"] = [*tags, f"claimed-difficulty-{int(claimed)}"] if isinstance(tags, list) else tags
    return fields
