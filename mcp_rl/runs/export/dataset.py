"""Write scenarios and episodes as a dataset that the hub's viewer, `datasets`, and our own commands read.

The source is a run, an evaluation, or a file of scenarios. Each line of `scenarios/` is a scenario that `--scenarios`
takes, each line of `episodes/` a conversation as `export-trajectories` writes it. Secrets and the paths of the home
folder and of the current one are replaced once more, by the environment of the machine that exports.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.export import openai_episodes
from mcp_rl.evaluation.folder import find_folder, read_episodes
from mcp_rl.run_directory import RunDirectory
from mcp_rl.scenario import McpScenario, read_scenarios, scenario_lines
from mcp_rl.system.redaction import Redaction, without_secrets
from mcp_rl.system.visible import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SPLITS = {"train": "train", "val": "validation", "test": "test"}
"""The hub's name of each split."""
_SCENARIO_FEATURES = """\
  - {name: id, dtype: string}
  - {name: task_description, dtype: string}
  - {name: server, dtype: string}
  - {name: server_params, dtype: json}
  - {name: max_turns, dtype: int64}
  - {name: difficulty, dtype: float64}
  - {name: split, dtype: string}
  - name: verifier
    struct: [{name: kind, dtype: string}, {name: expected, dtype: json}, {name: options, dtype: json}]
  - name: reference
    list: [{name: tool, dtype: string}, {name: arguments, dtype: json}]
  - {name: reference_answer, dtype: string}
  - {name: seed, dtype: int64}
  - {name: initial_state, dtype: json}
  - {name: tags, list: string}
  - {name: schema_hash, dtype: string}
  - {name: level, dtype: string}
  - {name: least_calls, dtype: int64}
  - {name: proof, dtype: json}
  - {name: user_turns, list: string}
  - {name: user, dtype: json}
  - {name: seats, dtype: json}
  - {name: apart, list: string}
"""
"""Columns of scenarios, in the form of a dataset card. Declared, since a column may hold JSON of several types."""
_EPISODE_FEATURES = """\
  - name: messages
    list:
    - {name: role, dtype: string}
    - {name: content, dtype: string}
    - {name: reasoning_content, dtype: string}
    - name: tool_calls
      list:
      - {name: id, dtype: string}
      - {name: type, dtype: string}
      - name: function
        struct: [{name: name, dtype: string}, {name: arguments, dtype: string}]
    - {name: tool_call_id, dtype: string}
  - {name: tools, list: json}
  - name: metadata
    struct:
    - {name: model, dtype: string}
    - {name: server, dtype: string}
    - {name: scenario_id, dtype: string}
    - {name: episode, dtype: int64}
    - {name: stop_reason, dtype: string}
    - {name: success, dtype: bool}
    - {name: reward, dtype: float64}
    - {name: explanation, dtype: string}
    - {name: fault, dtype: string}
"""
_MESSAGE = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


@dataclass(frozen=True)
class DatasetSource:
    """The scenarios and files of episodes that a dataset is made of."""

    label: str
    """Name of the run, evaluation or file, the title of the card."""
    scenarios: dict[str, list[McpScenario]]
    """Scenarios by the name of their split."""
    episodes: dict[str, list[Path]] = field(default_factory=dict)
    """Files of episodes by the name of their split."""

    @property
    def server(self) -> str:
        """Names of the servers of the scenarios."""
        return ", ".join(sorted({scenario.server for scenario in self.every if scenario.server}))

    @property
    def every(self) -> list[McpScenario]:
        """The scenarios of all splits."""
        return [scenario for split in SPLITS for scenario in self.scenarios.get(split, [])]


def find_dataset(name: str, project: Path) -> DatasetSource:
    """Find scenarios and episodes by the name or folder of a run or an evaluation, or by a file of scenarios.

    Raises ConfigError, ScenarioError or RunDirectoryError where there are none, or they cannot be read.
    """
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == ".jsonl":
        return DatasetSource(path.stem, _by_split(read_scenarios(path)))
    folder = find_folder(name, project)
    run = RunDirectory(folder)
    run.check_whole()
    scenarios = {split: found for split in ("train", "val") if (found := run.scenarios(split))}
    files = {
        "train": sorted(folder.glob("trajectories/train/*.jsonl")),
        "val": sorted([*folder.glob("trajectories/val/*.jsonl"), *folder.glob("episodes/*.jsonl")]),
    }
    episodes = {split: listed for split, listed in files.items() if listed}
    scenarios = scenarios or _by_split(_played(episodes), "val")
    if not scenarios:
        raise ConfigError(f"{folder} holds neither scenarios nor episodes.")
    return DatasetSource(folder.name, scenarios, episodes)


def _by_split(scenarios: Iterable[McpScenario], otherwise: str = "train") -> dict[str, list[McpScenario]]:
    found: dict[str, list[McpScenario]] = {}
    for scenario in scenarios:
        found.setdefault(scenario.split or otherwise, []).append(scenario)
    return found


def _played(episodes: dict[str, list[Path]]) -> Iterable[McpScenario]:
    """Return the scenarios of an evaluation, which keeps them with its episodes."""
    groups = (g for files in episodes.values() for path in files for file in read_episodes(path) for g in file.groups)
    return {group.scenario.id: group.scenario for group in groups}.values()


def write_dataset(source: DatasetSource, folder: Path, name: str) -> list[str]:
    """Write the files and the card; return notes for a person, one sentence each.

    `name` is that of the dataset on the hub, for the card.
    """
    notes: list[str] = []
    private = _redaction()
    parts: dict[str, dict[str, int]] = {"scenarios": {}, "episodes": {}}
    for split, scenarios in source.scenarios.items():
        lines = (private.value(_portable(scenario, notes)) for scenario in scenarios)
        parts["scenarios"][split] = _write(folder / "scenarios" / f"{split}.jsonl", lines)
    successes = {}
    for split, files in source.episodes.items():
        outcomes: Counter[bool | None] = Counter()
        rows = (private.value(_episode(line, outcomes)) for path in files for line in _lines_of(path))
        parts["episodes"][split] = _write(folder / "episodes" / f"{split}.jsonl", rows)
        successes[split] = outcomes[True] / max(1, outcomes[True] + outcomes[False])
    text = without_secrets(_card(source, name, parts, successes, notes))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return list(dict.fromkeys(notes))


def _redaction() -> Redaction:
    """Return a redaction of secrets, of the home folder and of the current folder."""
    places = {"HOME": Path.home(), "PWD": Path.cwd()}
    return Redaction((name, str(place)) for name, place in places.items() if len(place.parts) > 1)


def _portable(scenario: McpScenario, notes: list[str]) -> dict[str, Any]:
    """Return the scenario as JSON, without a server that only this machine can start."""
    line: dict[str, Any] = json.loads(scenario_lines([scenario]))
    text = json.dumps(line.get("server_params"))
    if any(Path(word).is_absolute() and Path(word).exists() for word in text.split('"')):
        del line["server_params"]
        notes.append(
            "The server is started by a command with a path of this machine, which is left out: name the server with "
            "--server where the scenarios are used."
        )
    return line


def _lines_of(path: Path) -> Iterator[dict[str, Any]]:
    for file in read_episodes(path):
        yield from openai_episodes(file)


def _episode(line: dict[str, Any], outcomes: Counter[bool | None]) -> dict[str, Any]:
    """Return an episode with the columns of _EPISODE_FEATURES alone, and count its outcome."""
    outcomes[line["metadata"]["success"]] += 1
    return {**line, "messages": [_message(message) for message in line["messages"]]}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    kept = {key: message[key] for key in _MESSAGE if message.get(key) is not None}
    if "content" in kept:
        kept["content"] = _text(kept["content"])
    if "tool_calls" in kept:
        kept["tool_calls"] = [_call(call) for call in kept["tool_calls"]]
    return kept


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    called = {"name": function.get("name"), "arguments": _text(function.get("arguments"))}
    return {"id": call.get("id"), "type": call.get("type", "function"), "function": called}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Write JSON Lines and return their number."""
    path.parent.mkdir(exist_ok=True)
    number = 0
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            number += 1
    return number


def _card(
    source: DatasetSource, name: str, parts: dict[str, dict[str, int]], successes: dict[str, float], notes: list[str]
) -> str:
    server = source.server or "an MCP server"
    header = ["---", "tags: [mcp, tool-use, reinforcement-learning]", "task_categories: [text-generation]", "configs:"]
    for part, splits in parts.items():
        header += [f"- config_name: {part}", "  data_files:"] if splits else []
        header += [f"  - {{split: {SPLITS[split]}, path: {part}/{split}.jsonl}}" for split in splits]
    header.append("dataset_info:")
    for part, features in (("scenarios", _SCENARIO_FEATURES), ("episodes", _EPISODE_FEATURES)):
        header += [f"- config_name: {part}", "  features:", features.rstrip()] if parts[part] else []
    tools = Counter(call.tool for scenario in source.every for call in scenario.reference)
    said = [f"# {source.label}\n", f"Tasks for the tools of `{server}`{_with_episodes(parts, successes)}.\n"]
    if tools:
        listed = ", ".join(f"`{tool}`" for tool, _ in sorted(tools.items(), key=lambda pair: (-pair[1], pair[0])))
        said.append(f"Tools of the reference solutions, the most used first: {listed}.\n")
    said += ["| part | split | rows |", "| --- | --- | --- |"]
    said += [
        f"| {part} | {SPLITS[split]} | {rows:,} |" for part, splits in parts.items() for split, rows in splits.items()
    ]
    first = next(iter(parts["scenarios"]))
    said += [
        "\nEach scenario has a request, the server to do it on, a verifier of the answer and the calls of a solution "
        "that was executed on the server.",
        *(
            ["Each episode is a conversation as OpenAI's API has it, with the tools that were offered."]
            if successes
            else []
        ),
        "\n```python\nfrom datasets import load_dataset\n",
        f'scenarios = load_dataset("{name}", "scenarios", split="{SPLITS[first]}")\n```\n',
        "With [mcp-rl](https://pypi.org/project/mcp-rl/):\n\n```",
        f"hf download {name} --repo-type dataset --local-dir data",
        f"mcp-rl train --server {source.server or 'SERVER'} --scenarios data/scenarios/{first}.jsonl\n```\n",
        *(f"- {note}" for note in dict.fromkeys(notes)),
    ]
    return "\n".join([*header, "---", *said]).rstrip() + "\n"


def _with_episodes(parts: dict[str, dict[str, int]], successes: dict[str, float]) -> str:
    told = [
        f"{count(parts['episodes'][split], 'episode')} of {SPLITS[split]}, {share:.0%} successful"
        for split, share in successes.items()
    ]
    return f", and models' tries at them: {'; '.join(told)}" if told else ""
