"""Trackers work in a process of their own, get every step once, and cannot hold a run up."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mcp_rl.config import RunConfig
from mcp_rl.errors import ConfigError, PluginError
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.runs.trackers.trackers import Trackers, check_trackers, finite

KINDS = '''
import json, os, time
from pathlib import Path
from mcp_rl import hookimpl
from mcp_rl.errors import NotDelivered


class Lines:
    """Writes its calls to a file."""

    def __init__(self, folder, config):
        self.name = type(self).__name__.lower()
        self.path = folder / f"{self.name}.jsonl"
        self.write("open")

    def log(self, split, step, metrics):
        self.write([split, step, metrics])

    def close(self):
        self.write("closed")

    def write(self, line):
        with self.path.open("a") as file:
            print(json.dumps(line), file=file)


class Bad(Lines):
    def log(self, split, step, metrics):
        super().log(split, step, metrics)
        raise OSError("no room")


class Ends_Badly(Lines):
    def close(self):
        raise SystemExit("no room")


class Greedy(Lines):
    def log(self, split, step, metrics):
        metrics.clear()


class Hangs(Lines):
    def log(self, split, step, metrics):
        if step == 2:
            time.sleep(3600)


class Down(Lines):
    """A service that is down until a file appears."""

    def log(self, split, step, metrics):
        if not self.path.with_name("up").exists():
            raise NotDelivered("nobody is at home.")
        super().log(split, step, metrics)


class Leaves(Lines):
    def log(self, split, step, metrics):
        os._exit(3)


def fails(folder, config):
    raise ConnectionError("nobody there")


def nothing(folder, config):
    return object()


@hookimpl
def register_trackers(register):
    for kind in (Lines, Bad, Ends_Badly, Greedy, Hangs, Down, Leaves):
        register(kind.__name__.lower(), kind)
    register("fails", fails)
    register("nothing", nothing)
'''


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for trackers' process than a run does: other tests may use all processors."""
    for name in ("_START_SECONDS", "_SILENCE_SECONDS", "_CLOSE_SECONDS", "_TELL_SECONDS"):
        monkeypatch.setattr(f"mcp_rl.runs.trackers.trackers.{name}", 60.0)


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A plugin with trackers of all kinds."""
    path = tmp_path / "kinds.py"
    path.write_text(KINDS)
    return path


def written(folder: Path, name: str = "lines") -> list[Any]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


async def session(
    folder: Path, kinds: Path, *names: str, log: Callable[[Trackers], Any], said: list[str] | None = None
) -> list[str]:
    """Open these trackers, log, and close them; return `said`, the sentences that the run was told."""
    said = [] if said is None else said
    files = [str(kinds)]
    config = RunConfig(server="mcp_calculator", trackers=names, plugins=files)
    async with Trackers.opened(folder, config, load_plugins(files), said.append) as trackers:
        await trackers.started()
        waiting = log(trackers)
        if waiting is not None:
            await waiting
    return said


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():  # noqa: ASYNC110
            await anyio.sleep(0.05)


def steps(*numbers: int) -> Callable[[Trackers], None]:
    def log(trackers: Trackers) -> None:
        for step in numbers:
            trackers.log("train", step, {"reward": step / 10})

    return log


async def test_trackers_get_copies_of_all_finite_numbers(tmp_path: Path, kinds: Path) -> None:
    metrics = {"a": 1, "b": None, "c": float("inf"), "d": [0.1, 0.2], "e": "text", "f": [1, 2, 3], "g": True}
    said = await session(tmp_path, kinds, "greedy", "lines", log=lambda trackers: trackers.log("val", 3, metrics))
    assert written(tmp_path) == ["open", ["val", 3, {"a": 1.0, "d_low": 0.1, "d_high": 0.2, "g": 1.0}], "closed"]
    assert finite({}) == {} and len(metrics) == 7 and said == []


async def test_failing_and_hanging_trackers_cost_the_run_nothing(
    tmp_path: Path, kinds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_rl.runs.trackers.trackers._SILENCE_SECONDS", 3.0)
    monkeypatch.setattr("mcp_rl.runs.trackers.trackers._TELL_SECONDS", 0.0)
    took: list[float] = []

    def log(trackers: Trackers) -> None:
        began = time.monotonic()
        steps(1, 2, 3)(trackers)
        took.append(time.monotonic() - began)

    began = time.monotonic()
    said = await session(tmp_path, kinds, "bad", "ends_badly", "hangs", "lines", log=log)
    assert took[0] < 0.1 and time.monotonic() - began < 60
    assert [line[1] for line in written(tmp_path)[1:-1]] == [1, 2, 3] and written(tmp_path)[-1] == "closed"
    assert [line for line in written(tmp_path, "bad") if line != "open"] == [["train", 1, {"reward": 0.1}], "closed"]
    assert [sentence for sentence in said if "still sending" in sentence and "'hangs'" in sentence]
    failed = sorted(sentence for sentence in said if "failed, and the run goes on without it" in sentence)
    assert len(failed) == 2 and all("kinds.py, line" in sentence and "no room" in sentence for sentence in failed)
    assert said[-1] == (
        "Not everything reached the trackers: 'bad' is missing 3 of 3 steps and evaluations; 'hangs' is missing 2 of 3 "
        "steps and evaluations. history.jsonl and trajectories/ have it all."
    )


async def test_an_interrupted_run_does_not_wait_for_a_tracker(tmp_path: Path, kinds: Path) -> None:
    def log(trackers: Trackers) -> None:
        nonlocal began
        steps(1, 2)(trackers)
        began = time.monotonic()
        raise KeyboardInterrupt

    began = 0.0
    with pytest.raises(KeyboardInterrupt):
        await session(tmp_path, kinds, "hangs", log=log)
    assert 0 < time.monotonic() - began < 20
    assert not [one for one in psutil.Process().children(recursive=True) if "trackers.host" in " ".join(one.cmdline())]


async def test_entries_wait_for_a_service_that_is_down(tmp_path: Path, kinds: Path) -> None:
    async def log(trackers: Trackers) -> None:
        steps(1, 2)(trackers)
        await until(lambda: bool(said))
        (tmp_path / "up").touch()
        await until(lambda: trackers._standing["down"].taken == 2)  # till then the run's end waits for nothing

    said: list[str] = []
    await session(tmp_path, kinds, "down", log=log, said=said)
    assert [line[1] for line in written(tmp_path, "down")[1:-1]] == [1, 2]
    assert said == ["The tracker 'down' waits: nobody is at home. It is tried again until the run ends."]


async def test_a_trackers_process_that_dies_is_named(tmp_path: Path, kinds: Path) -> None:
    async def log(trackers: Trackers) -> None:
        steps(1, 2)(trackers)
        await until(lambda: trackers._gone)

    said = await session(tmp_path, kinds, "leaves", log=log)
    assert said[0].startswith("The trackers' process exited with status 3, and the run goes on without it")
    assert "'leaves' is missing 2 of 2" in said[1]


async def test_a_tracker_that_cannot_start_closes_the_others(tmp_path: Path, kinds: Path) -> None:
    for name, words in (("fails", "cannot be started: ConnectionError: nobody there"), ("nothing", "has no log()")):
        with pytest.raises(PluginError, match="The tracker '" + name) as error:
            await session(tmp_path, kinds, "lines", name, log=steps(1))
        assert words in str(error.value)
    assert written(tmp_path) == ["open", "closed"] * 2


async def test_no_step_is_missing_or_shown_twice_after_kills(tmp_path: Path, kinds: Path) -> None:
    """The first session is killed before its trackers got step 3; the second plays step 3 again, and goes on."""

    async def killed(trackers: Trackers) -> None:
        steps(1, 2)(trackers)
        await until(lambda: len(written(tmp_path)) == 3)
        (host,) = [one for one in psutil.Process().children(recursive=True) if one.cmdline()[1] == "-P"]
        os.kill(host.pid, signal.SIGKILL)
        steps(3)(trackers)

    await session(tmp_path, kinds, "lines", "tensorboard", log=killed)
    lines = [{"split": "train", "step": step, "reward": step / 10} for step in (1, 2, 3)]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def again(trackers: Trackers) -> None:
        for step in (3, 4):
            trackers.log("train", step, {"reward": step})

    await session(tmp_path, kinds, "lines", "tensorboard", log=again)
    assert [line[1:] for line in written(tmp_path) if isinstance(line, list)] == [
        [1, {"reward": 0.1}], [2, {"reward": 0.2}], [3, {"reward": 0.3}], [4, {"reward": 4.0}]
    ]  # fmt: skip
    assert curve(tmp_path, "train/reward") == [(1, 0.1), (2, 0.2), (3, 3.0), (4, 4.0)], "TensorBoard can forget"


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Read the values that TensorBoard shows."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 6)) for event in events.Scalars(tag)]


def test_a_tracker_without_its_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.runs.trackers.builtin.find_spec", lambda name: None)
    plugins: Plugins = load_plugins()
    for name in ("mlflow", "otlp", "tensorboard", "trackio", "wandb", "weave"):
        with pytest.raises(ConfigError, match=rf"'{name}' needs .* python -m pip install 'mcp-rl\[{name}\]'"):
            check_trackers([name], plugins)
    with pytest.raises(PluginError, match="no tracker named 'tensorbord'; did you mean 'tensorboard'"):
        check_trackers(["tensorbord"], plugins)
