"""A real training run and a real evaluation for pages to show."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.cli import main

SMALL = (
    "scenarios.count=24", "scenarios.val=6", "rollout.groups_per_step=3", "rollout.group_size=3", 
    "evaluation.samples=2", "rollout.probes=0",
)  # fmt: skip
HOSTILE = (
    "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"
    "<!--<script>{{ 7 * 7 }}\u2028\u202e\x1b[31m<a href='javascript:window.owned = 3'>click</a>"
)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the built-in model, two steps."""
    root = tmp_path_factory.mktemp("runs")
    words = ["train", "--server", "mcp_calculator", "--transport", "stdio", "--steps", "2", "--output-dir", str(root)]
    assert main([*words, "--name", "small", *SMALL]) == 0
    return root / "default" / "models" / "small"


@pytest.fixture(scope="session")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best and the least that can be had on twelve scenarios."""
    root = tmp_path_factory.mktemp("evaluations")
    scenarios = root / "scenarios.jsonl"
    server = ["--server", "mcp_calculator", "--transport", "stdio"]
    assert main(["generate", *server, "--count", "12", "--out", str(scenarios)]) == 0
    models = ["--model", "scripted:reference", "--model", "scripted:refuse"]
    words = ["evaluate", *server, *models, "--scenarios", str(scenarios), "--samples", "2", "--output-dir", str(root)]
    assert main([*words, "--name", "scripts", "rollout.max_turns=7"]) == 0
    return root / "default" / "evaluations" / "scripts"


@pytest.fixture
def hostile(run: Path, tmp_path: Path) -> Path:
    """The run with what a hostile server, model and user could have made of its texts."""
    folder = tmp_path / "hostile"
    shutil.copytree(run, folder)
    for file in folder.glob("trajectories/*/*.jsonl"):
        groups = [poisoned(json.loads(line)) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(group) + "\n" for group in groups))
    about = json.loads((folder / "model.json").read_text())
    about["name"] = HOSTILE
    (folder / "model.json").write_text(json.dumps(about))
    return folder


def poisoned(group: dict[str, Any]) -> dict[str, Any]:
    group["scenario"]["task_description"] += HOSTILE
    for trajectory in group["trajectories"]:
        trajectory["explanation"] = HOSTILE
        for message in trajectory["messages"]:
            if isinstance(message.get("content"), str):
                message["content"] += HOSTILE
        for call in trajectory.get("calls", ()):
            call["name"] = HOSTILE
    return group
