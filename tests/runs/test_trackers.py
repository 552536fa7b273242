"""Trackers receive every finite metric, and a failing tracker is dropped alone."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mcp_rl.config import RunConfig
from mcp_rl.errors import ConfigError, PluginError
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.runs.trackers.trackers import Trackers, check_trackers, finite

ROOT = Path(__file__).parents[2]


class Lines:
    """A tracker that records its calls; `broken` is the method that raises."""

    def __init__(self, broken: str = "") -> None:
        self.broken, self.lines = broken, list[Any]()

    def log(self, split: str, step: int, metrics: dict[str, float]) -> None:
        self.lines.append((split, step, metrics))
        if self.broken == "log":
            raise OSError("no room")

    def close(self) -> None:
        self.lines.append("closed")
        if self.broken == "close":
            raise SystemExit("no room")


def offering(**trackers: Any) -> Plugins:
    plugins = load_plugins()
    for name, tracker in trackers.items():
        plugins.trackers.add(name, lambda folder, config, tracker=tracker: tracker, "a test")
    return plugins


def config(*trackers: str, **fields: Any) -> RunConfig:
    return RunConfig(server="mcp_calculator", trackers=trackers, **fields)


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Read the values that TensorBoard shows."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 6)) for event in events.Scalars(tag)]


def test_tensorboard_shows_the_last_of_repeated_steps(tmp_path: Path) -> None:
    plugins = load_plugins()
    for steps, reward in (((1, 2, 3), 0.1), ((3, 4), 0.5)):  # the first session was killed in step 3
        with Trackers.opened(tmp_path, config("tensorboard"), plugins, print) as trackers:
            if steps[0] == 1:
                trackers.log("val", 0, {"greedy_success": 0.25, "greedy_ci95": (0.1, 0.4)})
            for step in steps:
                trackers.log("train", step, {"reward": reward + step, "loss": float("nan"), "note": "words"})
    assert curve(tmp_path, "train/reward") == [(1, 1.1), (2, 2.1), (3, 3.5), (4, 4.5)]
    assert curve(tmp_path, "val/greedy_success") == [(0, 0.25)]
    assert curve(tmp_path, "val/greedy_ci95_high") == [(0, 0.4)]


def test_tensorboard_files_are_written_during_the_run(tmp_path: Path) -> None:
    with Trackers.opened(tmp_path, config("tensorboard"), load_plugins(), print) as trackers:
        trackers.log("train", 1, {"reward": 0.5})
        assert curve(tmp_path, "train/reward") == [(1, 0.5)]


@pytest.mark.parametrize("broken", ["log", "close"])
def test_a_failing_tracker_is_named_once_and_dropped(tmp_path: Path, broken: str) -> None:
    bad, good, said = Lines(broken), Lines(), list[str]()
    with Trackers.opened(tmp_path, config("bad", "good"), offering(bad=bad, good=good), said.append) as trackers:
        trackers.log("train", 1, {"reward": 0.5})
        trackers.log("train", 2, {"reward": 0.6})
    both = [("train", 1, {"reward": 0.5}), ("train", 2, {"reward": 0.6})]
    assert good.lines == [*both, "closed"]
    assert bad.lines == ([both[0], "closed"] if broken == "log" else [*both, "closed", "closed"])
    (sentence,) = said
    assert "The tracker 'bad'" in sentence and "test_trackers.py, line" in sentence
    assert "failed, and the run goes on without it" in sentence and "no room" in sentence


def test_each_tracker_gets_its_own_copy_of_the_numbers(tmp_path: Path) -> None:
    class Greedy(Lines):
        def log(self, split: str, step: int, metrics: dict[str, float]) -> None:
            metrics.clear()

    good = Lines()
    metrics = {"a": 1, "b": None, "c": float("inf"), "d": [0.1, 0.2], "e": "text", "f": [1, 2, 3], "g": True}
    with Trackers.opened(tmp_path, config("greedy", "good"), offering(greedy=Greedy(), good=good), print) as trackers:
        trackers.log("val", 3, metrics)
    assert good.lines[0] == ("val", 3, {"a": 1.0, "d_low": 0.1, "d_high": 0.2, "g": 1.0})
    assert finite({}) == {} and len(metrics) == 7


def test_a_tracker_that_cannot_start_closes_the_others(tmp_path: Path) -> None:
    def fails(folder: Path, config: RunConfig) -> Any:
        raise ConnectionError("nobody there")

    first = Lines()
    plugins = offering(first=first, nothing=object())
    plugins.trackers.add("fails", fails, "a test")
    for name, words in (("fails", "cannot be started: ConnectionError: nobody there"), ("nothing", "has no log()")):
        with pytest.raises(PluginError, match="The tracker '" + name) as error:
            Trackers.opened(tmp_path, config("first", name), plugins, print).__enter__()
        assert words in str(error.value)
    assert first.lines == ["closed", "closed"]


def test_a_tracker_without_its_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr("mcp_rl.runs.trackers.builtin.find_spec", nothing)
    plugins = load_plugins()
    for name in ("tensorboard", "wandb"):
        with pytest.raises(ConfigError, match=rf"'{name}' needs .* python -m pip install 'mcp-rl\[tracking\]'"):
            check_trackers([name], plugins)
    with pytest.raises(PluginError, match="no tracker named 'tensorbord'; did you mean 'tensorboard'"):
        check_trackers(["tensorbord"], plugins)


@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb, of the extra `tracking`")
def test_wandb_stays_offline_without_a_login_or_secrets(tmp_path: Path) -> None:
    secret = "sk-a-secret-that-must-stay-here"
    program = f"""
import sys
from pathlib import Path
from mcp_rl.config import RunConfig
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.runs.trackers.trackers import Trackers
config = RunConfig(server="mcp-server --token {secret}", name="mine", trackers="wandb")
for step in (1, 2):
    with Trackers.opened(Path("run"), config, load_plugins(), print) as trackers:
        trackers.log("train", step, {{"reward": step / 4}})
"""
    hidden = {"WANDB_API_KEY", "WANDB_MODE"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "HOME": str(tmp_path), "A_TOKEN": secret}
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    runs = [path for path in files if path.suffix == ".wandb"]
    assert len(runs) == 2 and len({path.name for path in runs}) == 1
    assert b"train/reward" in runs[0].read_bytes() and json.dumps("mcp-rl/tiny").encode() in runs[0].read_bytes()
