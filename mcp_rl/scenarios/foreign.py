"""Scenario files that were written by people and by other generators, beside our own.

An entry is either a whole scenario, or `{"task": …, "difficulty": 1..5}`, to which the server that it is read for is
added. A file is JSON Lines, a JSON list, or a JSON object that holds such a list. A difficulty that somebody claims is
not one that was measured, so it becomes the tag `claimed-difficulty-N`.
"""

import json
from pathlib import Path
from typing import Any

from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import McpScenario, distinct, parse_scenario, read_text, text_lines

_DIFFICULTIES = range(1, 6)
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


def read_scenario_file(
    path: str | Path, server: ToolServer | None = None, transport: str | None = None
) -> list[McpScenario]:
    """The scenarios in a file of any of the formats above.

    `server` fills in what an entry does not say about its server. Raises ScenarioError that names the file, the line or
    the entry and what is wrong there; also for duplicates, and for an entry without a server where `server` is None.
    """
    path = Path(path)
    text = read_text(path)
    unit, entries = _entries(path, text)
    read = ((n, _scenario(entry, server, transport, f"{path}, {unit} {n}")) for n, entry in entries)
    return distinct(path, read, unit=unit)


def _entries(path: Path, text: str) -> tuple[str, list[tuple[int, Any]]]:
    """What an entry is counted by, and each entry with its number."""
    whole = _whole(text)
    lines = text_lines(text)
    if isinstance(whole, dict) and {"task", "task_description"} & whole.keys():
        if len(lines) == 1:  # JSON Lines with one line
            return "line", [(lines[0][0], whole)]
        whole = [whole]
    elif isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise ScenarioError(
                f"{path} holds one JSON object that is no scenario and has {len(lists)} lists in it; one list of "
                'entries such as {"task": "…", "difficulty": 3} is needed.'
            )
        whole = lists[0]
    if isinstance(whole, list):
        return "entry", list(enumerate(whole, 1))
    return "line", [(number, _line(line, f"{path}, line {number}")) for number, line in lines]


def _whole(text: str) -> Any:
    """The one JSON value that a file consists of; None where it is JSON Lines or no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or "it is nested too deeply"
        raise ScenarioError(f"{where}: Invalid JSON: {reason}, at column {getattr(error, 'colno', 1)}.") from error


def _scenario(entry: Any, server: ToolServer | None, transport: str | None, where: str) -> McpScenario:
    if not isinstance(entry, dict):
        raise ScenarioError(f"{where}: a scenario is a JSON object, not {_KINDS.get(type(entry), 'a number')}.")
    fields = _own_names(entry, where) if "task" in entry else dict(entry)
    if server is not None and "server_params" not in fields:
        fields["server_params"] = server.params(transport)
        fields.setdefault("server", server.name)
    return parse_scenario(fields, where)


def _own_names(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """`task` and `difficulty` under our names; whatever else there is must be a field of a scenario."""
    if "task_description" in entry:
        raise ScenarioError(f"{where}: it has both 'task' and 'task_description'; keep one of them.")
    fields = {name: value for name, value in entry.items() if name not in ("task", "difficulty")}
    fields["task_description"] = entry["task"]
    claimed = entry.get("difficulty")
    if claimed is not None:
        if isinstance(claimed, bool) or claimed not in _DIFFICULTIES:
            raise ScenarioError(f"{where}: difficulty is a whole number from 1 to 5, not {json.dumps(claimed)[:40]}.")
        tags = fields.get("tags", [])
        fields["tags"] = [*tags, f"claimed-difficulty-{int(claimed)}"] if isinstance(tags, list) else tags
    return fields
