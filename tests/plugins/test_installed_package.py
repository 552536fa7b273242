"""A third-party plugin package is installed with pip, found by its entry point, and takes part in a run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from mcp_rl.cli import main

ROOT = Path(__file__).parents[2]
SMALL = (
    *("scenarios.count=12", "scenarios.val=4", "rollout.groups_per_step=2", "rollout.group_size=2"),
    *("rollout.max_turns=2", "rollout.max_turn_tokens=24", "evaluation.samples=1", "evaluation.greedy=false"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, installed without a network."""
    folder = tmp_path_factory.mktemp("echo")
    source = shutil.copytree(Path(__file__).with_name("echo_package"), folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--no-compile", "--target", str(folder / "site")]
    done = subprocess.run([*command, *options, str(source)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def mcp_rl(site: Path, folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "mcp_rl", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_it_is_listed_with_version_origin_and_what_it_offers(site: Path, tmp_path: Path) -> None:
    done = mcp_rl(site, tmp_path, "plugins", "--json")
    assert done.returncode == 0, done.stderr
    (echo,) = [plugin for plugin in json.loads(done.stdout)["plugins"] if plugin["name"] == "echo"]
    assert (echo["version"], echo["origin"]) == ("1.2.3", "package mcp-rl-echo")
    assert echo["offers"] == {
        "server": ["echo"],
        "scenario source": ["doubles"],
        "verifier": ["echo_number"],
        "reward": ["echo_turns"],
        "backend": ["echo_local"],
        "tracker": ["echo_lines"],
    }
    assert len(echo["hooks"]) == 9


def test_its_mistakes_do_not_end_a_run(site: Path, tmp_path: Path) -> None:
    done = mcp_rl(
        site,
        tmp_path,
        *("train", "--server", "echo", "--steps", "1", "--json", "--source", "doubles", "--tracker", "echo_lines"),
        *("backend=echo_local", "reward.weights={verifier=0.5, echo_turns=0.5}", *SMALL),
        MCP_RL_PLUGINS="echo",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    run = tmp_path / report["run_dir"]
    assert (report["step"], report["val"]["scenarios"]) == (1, 4)

    groups = [json.loads(line) for line in (run / "trajectories/train/0001.jsonl").read_text().splitlines()]
    played = [(group["scenario"]["id"], t) for group in groups for t in group["trajectories"]]
    assert len(played) >= 4 and all(group["scenario"]["verifier"]["kind"] == "echo_number" for group in groups)
    for _, trajectory in played:
        parts = trajectory["metrics"]
        assert parts["echo_turns"] == 1 / (1 + trajectory["turns"])
        assert trajectory["reward"] == pytest.approx(0.5 * parts["verifier"] + 0.5 * parts["echo_turns"])

    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert [line["rollout"] for line in seen if "rollout" in line] == [scenario for scenario, _ in played]
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    (step,) = [line for line in history if line["split"] == "train"]
    assert step["part_echo_turns"] == pytest.approx(fmean(t["metrics"]["echo_turns"] for _, t in played))
    assert [line for line in seen if "step" in line] == [{"step": 1, "reward": step["reward"]}]
    assert [line for line in seen if "checkpoint" in line] == [{"checkpoint": "0001", "whole": True}]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["0001"], "this backend keeps one checkpoint"

    tracked = [json.loads(line) for line in (run / "echo.jsonl").read_text().splitlines()]
    assert [line.get("split") or next(iter(line)) for line in tracked] == ["started", "val", "train", "closed"]
    assert tracked[2]["metrics"] == {
        name: value for name, value in step.items() if name not in ("split", "step", "chain")
    }

    for failed in ("The tracker 'echo_lines'", "Plugin 'echo'"):
        (said,) = [line for line in done.stderr.splitlines() if failed in line]
        assert "plugin.py, line" in said and "the run goes on" in said


def test_without_the_package_nothing_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--server", "mcp_calculator", "--tracker", "echo_lines"]) == 2
    assert "There is no tracker named 'echo_lines'; choose one of mlflow, otlp, tensorboard" in capsys.readouterr().err
    assert not (tmp_path / ".mcp_rl").exists()
