"""The settings and scenarios of the kill tests' runs, and the record that must be the same for stopped runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.system.chain import LINK
from mcp_rl.system.seals import SEAL

STEPS = 8
SETTINGS = (
    *("rollout.groups_per_step=2", "rollout.group_size=4", "rollout.max_turns=2", "curriculum.solved_share=1"),
    *("train.checkpoint_every=2", "train.learning_rate=3e-5", "train.epochs=1"),
    *("evaluation.samples=1", "evaluation.greedy=false", "evaluation.every=4"),
)
CLOCKS = ("_seconds", "_time_share")
"""Endings of the names of measured times."""
OTHER_CLOCKS = ("seconds", "seconds_p95", "peak_rss_mb", "cached_tokens")
"""Other fields that differ between runs. `cached_tokens` depends on which turns the engine takes up together."""


OMITTED = (*OTHER_CLOCKS, LINK)


def write_scenarios(path: Path) -> None:
    """Write two held-out and seven training scenarios that the built-in model solves now and then."""
    path.write_text(scenario_lines(_scenarios()))


def _scenarios() -> Iterator[McpScenario]:
    kinds = (("add {} and {}", "add", int.__add__), ("multiply {} by {}", "multiply", int.__mul__))
    for number in range(9):
        words, tool, compute = kinds[number % 2]
        a, b = 3 + 5 * number % 17, 2 + number
        yield McpScenario(
            task_description=words.format(a, b),
            server_params=StdioServer(command="server"),
            verifier=Verifier(kind="number", expected=compute(a, b)),
            reference=(ToolCall(tool=tool, arguments={"a": a, "b": b}),),
            split="val" if number < 2 else "train",
        )


def record(run: Path) -> dict[str, Any]:
    """Return the content of each file of a run, without measured times.

    Left out are the card and the manifest of a checkpoint, which repeat metrics and their hash, the judges' calls and
    costs, the page, what a run says of itself while it goes on, its own name, and the digests of what holds measured
    times.
    """
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if (
            path.is_dir()
            or name.startswith(("judge/", "live/", "logs/"))
            or path.name in ("README.md", "manifest.json")
        ):
            continue
        match path.suffix:
            case ".jsonl":
                found[name] = [json.dumps(_timeless(json.loads(line))) for line in path.read_text().splitlines()]
            case ".json" if name not in ("model.json", "report.json", SEAL):
                found[name] = json.dumps(_timeless(json.loads(path.read_bytes())))
            case ".html" | ".json" | ".png":
                """The page and the report hold the path of the run."""
            case _:
                found[name] = path.read_bytes()
    report = _timeless(json.loads((run / "report.json").read_bytes()))
    del report["run_dir"], report["server"]
    report["details"].get("judge", {}).pop("spent", None)
    return {**found, "report.json": json.dumps(report)}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not k.endswith(CLOCKS) and k not in OMITTED}
    return [_timeless(entry) for entry in value] if isinstance(value, list) else value


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of differing files, each with its first difference."""
    return [
        f"{name}: {_first(one.get(name), other.get(name))}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]


def _first(one: Any, other: Any) -> str:
    if one is None or other is None or isinstance(one, bytes):
        return f"{type(one).__name__} and {type(other).__name__}"
    if isinstance(one, list):
        pairs = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
        return _first(*pairs[0]) if pairs else f"{len(one)} and {len(other)} lines"
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return f"…{one[max(0, at - 60) : at + 40]}… and …{other[max(0, at - 60) : at + 40]}…"


def played(run: Path) -> list[str]:
    """Return the ids of the training scenarios in the order of their use."""
    return [
        json.loads(line)["scenario"]["id"]
        for path in sorted((run / "trajectories" / "train").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
