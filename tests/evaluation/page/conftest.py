"""A real training run with a judge, and a real evaluation without one, for pages to show."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.judge_server import fenced, scores, serve
from mcp_rl.cli import main

SMALL = (
    "scenarios.count=24", "scenarios.val=6", "rollout.groups_per_step=3", "rollout.group_size=3", 
    "evaluation.samples=2", "rollout.probes=0", "rollout.max_turns=3", "reward.weights={verifier=0.5, ruler=0.5}",
)  # fmt: skip
HOSTILE = (
    "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"
    "<!--<script>{{ 7 * 7 }}\u2028\u202e\x1b[31m<a href='javascript:window.owned = 3'>click</a>"
)


def likes_calls(prompt: str, ids: list[str]) -> str:
    """A judge that is often right: it prefers episodes in which a tool was called."""
    return scores({id: 0.9 if '"tool"' in record else 0.2 for id, record in fenced(prompt).items()})


@pytest.fixture(scope="session")
def judge() -> Iterator[str]:
    """The address of a running judge."""
    with serve(likes_calls) as server:
        yield server.url


def train(root: Path, judge: str, *more: str) -> int:
    """Run or continue the training run below `root`; return the exit code."""
    words = ["train", "--server", "mcp_calculator", "--transport", "stdio", "--steps", "2", "--output-dir", str(root)]
    return main([*words, "--name", "small", *SMALL, "judge.model=openai/judge", f"judge.base_url={judge}", *more])


@pytest.fixture(scope="session")
def run(judge: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the built-in model, two steps, scored by the verifier and by a judge."""
    root = tmp_path_factory.mktemp("runs")
    assert train(root, judge) == 0
    return root / "default" / "models" / "small"


@pytest.fixture(scope="session")
def evaluation(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of the best and the worst script on the run's held-out scenarios."""
    root = tmp_path_factory.mktemp("evaluations")
    scenarios = run / "val.jsonl"
    server = ["--server", "mcp_calculator", "--transport", "stdio"]
    models = ["--model", "scripted:reference", "--model", "scripted:refuse"]
    words = ["evaluate", *server, *models, "--scenarios", str(scenarios), "--samples", "2", "--output-dir", str(root)]
    assert main([*words, "--name", "scripts", "rollout.max_turns=7"]) == 0
    return root / "default" / "evaluations" / "scripts"


@pytest.fixture
def hostile(run: Path, tmp_path: Path) -> Path:
    """The run with texts of a hostile server, model and user."""
    folder = tmp_path / "hostile"
    shutil.copytree(run, folder)
    (folder / "seal.json").unlink()
    for file in folder.glob("trajectories/*/*.jsonl"):
        groups = [poisoned(json.loads(line)) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(group) + "\n" for group in groups))
    about = json.loads((folder / "model.json").read_text())
    about["name"] = HOSTILE
    (folder / "model.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def hostile_evaluation(evaluation: Path, tmp_path: Path) -> Path:
    """The evaluation with hostile names."""
    folder = tmp_path / "hostile-evaluation"
    shutil.copytree(evaluation, folder)
    (folder / "seal.json").unlink()
    report = json.loads((folder / "report.json").read_text())
    for model in report["models"]:
        model["model"] += HOSTILE
        model["result"]["sampled_by_tool"][HOSTILE] = {"scenarios": 3, "success": 0.5, "low": 0.1, "high": 0.9}
    report["server"] = HOSTILE
    (folder / "report.json").write_text(json.dumps(report))
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
    group["exceptions"] = [HOSTILE]
    group["metadata"]["judge"]["model"] = HOSTILE
    return group
