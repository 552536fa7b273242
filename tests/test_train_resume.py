"""A run that was killed goes on as if it never was: on the CPU, to the last byte of what it leaves behind.

Everything is real: the built-in model, the tool server, the judge's protocol, the engine, the learner, the files and
the signals. `tests/killing` has the two processes that make fifty lives of a run affordable.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.killing.ground import SETTINGS, STEPS, differences, played, record, write_scenarios

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
STDIO = ("--server", "mcp_calculator", "--transport", "stdio")
KILLS = 50
KINDS = {"time": 12, "checkpoint": 12, "files": 8, "tool": 9, "judge": 9}
"""How many of the kills come at a random time, between the files of a save, between any files, and within calls."""


def random_death(kind: str, moments: random.Random) -> dict[str, Any]:
    """The counts reach over one or two steps, from wherever a life begins."""
    match kind:
        case "time":
            return {"kind": "time", "seconds": moments.uniform(0.02, 0.8)}
        case "checkpoint":
            return {"kind": "file", "part": "/checkpoints/", "count": moments.randint(1, 45)}
        case "files":
            return {"kind": "file", "part": "", "count": moments.randint(1, 50)}
        case "tool":
            return {"kind": "tool", "count": moments.randint(1, 9)}
        case _:
            return {"kind": "judge", "count": moments.randint(1, 3)}


class Ground:
    """A folder with scenarios, the processes that runs need, and the runs in it."""

    def __init__(self, folder: Path, world: "subprocess.Popen[str]", lives: "subprocess.Popen[str]") -> None:
        self.folder, self._lives = folder, lives
        assert world.stdout is not None and lives.stdout is not None
        self.url = world.stdout.readline().strip()
        assert lives.stdout.readline() == "ready\n"
        write_scenarios(folder / "scenarios.jsonl")

    def arguments(self, name: str, *more: str) -> list[str]:
        return [
            *("train", "--scenarios", str(self.folder / "scenarios.jsonl"), "--steps", str(STEPS)),
            *("--output-dir", str(self.folder / "out"), "--name", name, "--json", *SETTINGS, *more),
        ]

    @property
    def judged(self) -> tuple[str, ...]:
        """Options of a run with the world's judge."""
        url = ("--judge-base-url", f"{self.url}/v1")
        return ("--judge-model", "openai/judge", *url, "reward.weights={verifier=0.5,ruler=0.5}")

    def live(self, name: str, death: dict[str, Any] | None, *more: str) -> int:
        """One life of a run on the world's server, unless `more` names another; its exit code, or -9."""
        server = () if "--server" in more else ("--server", f"{self.url}/sse", "--isolation", "shared")
        arguments = self.arguments(name, *server, *more)
        asked = {"arguments": arguments, "output": str(self.folder / f"{name}.log"), "death": death}
        assert self._lives.stdin is not None and self._lives.stdout is not None
        self._lives.stdin.write(json.dumps(asked) + "\n")
        self._lives.stdin.flush()
        return int(json.loads(self._lives.stdout.readline())["status"])

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def run(self, name: str) -> Path:
        return self.folder / "out" / "default" / "models" / name


@contextmanager
def helper(module: str, folder: Path) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(folder)],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("ground")
    with helper("tests.killing.world", folder) as world, helper("tests.killing.lives", folder) as lives:
        yield Ground(folder, world, lives)


@pytest.fixture(scope="module")
def whole(ground: Ground) -> Path:
    """A run that nobody stopped."""
    assert ground.live("whole", None, *ground.judged) == 0, ground.said("whole")
    return ground.run("whole")


def assert_every_scenario_was_used_once_before_any_came_again(run: Path) -> None:
    used = played(run)
    train = len((run / "train.jsonl").read_text().splitlines())
    assert train == 7 and len(used) == 2 * STEPS
    for epoch in range(len(used) // train):
        assert len(set(used[epoch * train : (epoch + 1) * train])) == train


def test_killed_at_fifty_random_moments_every_run_ends_as_one_that_was_never_stopped(
    ground: Ground, whole: Path
) -> None:
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
    moments.shuffle(kinds)
    killed: Counter[str] = Counter()
    runs, died = 0, 0
    expected = record(whole)

    def compare(name: str) -> None:
        assert differences(expected, record(ground.run(name))) == [], f"{name}, moments of seed {seed}"
        assert_every_scenario_was_used_once_before_any_came_again(ground.run(name))
        assert "Traceback" not in ground.said(name) and "damaged" not in ground.said(name)

    while kinds:
        name = f"killed-{runs}"
        status = ground.live(name, random_death(kinds[-1], moments), *ground.judged)
        if status == -signal.SIGKILL:
            killed[kinds.pop()] += 1
            died += 1
        else:
            assert status == 0, f"{ground.said(name)[-2000:]}\nmoments of seed {seed}"
            compare(name)
            runs, died = runs + 1, 0
    if died:
        assert ground.live(f"killed-{runs}", None, *ground.judged) == 0, ground.said(f"killed-{runs}")
        compare(f"killed-{runs}")
    assert dict(killed) == KINDS and killed.total() == KILLS
    print(f"{KILLS} kills in {runs + bool(died)} runs of {STEPS} steps, seed {seed}: {dict(killed)}")


def test_a_killed_run_with_rollouts_in_flight_skips_no_prompt_and_plays_none_twice(ground: Ground) -> None:
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    options = (*ground.judged, "--max-staleness", "1")
    for kind in ("time", "checkpoint", "files", "tool", "judge", "checkpoint", "time"):
        status = ground.live("stale", random_death(kind, moments), *options)
        assert status in (0, -signal.SIGKILL), f"{ground.said('stale')[-2000:]}\nmoments of seed {seed}"
        if status == 0:
            break
    else:
        assert ground.live("stale", None, *options) == 0, ground.said("stale")
    assert_every_scenario_was_used_once_before_any_came_again(ground.run("stale"))
    history = [json.loads(line) for line in (ground.run("stale") / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in history if line["split"] == "train"] == list(range(1, STEPS + 1))


def test_a_finished_run_says_so_and_how_to_go_on(ground: Ground, whole: Path) -> None:
    before = record(whole)
    assert ground.live("whole", None, *ground.judged) == 0
    said = ground.said("whole")
    assert f"All {STEPS} steps of this run are done" in said and "--steps" in said and "--fresh" in said
    assert record(whole) == before


# -- whole processes, with a server of their own each


@contextmanager
def started(ground: Ground, name: str) -> "Iterator[subprocess.Popen[str]]":
    """The command as it is typed, its tool server behind stdio, no judge."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mcp_rl", *ground.arguments(name, *STDIO)],
        cwd=ground.folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 400
    while not condition.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def descendants(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return list(psutil.Process(process.pid).children(recursive=True))


def gone(processes: list[psutil.Process], seconds: float = 10) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


@pytest.fixture(scope="module")
def uninterrupted(ground: Ground) -> Path:
    """A run without a judge that nobody stopped."""
    assert ground.live("unstopped", None) == 0, ground.said("unstopped")
    return ground.run("unstopped")


def test_a_command_killed_and_interrupted_leaves_no_server_and_ends_the_same(
    ground: Ground, uninterrupted: Path
) -> None:
    run = ground.run("stopped")
    with started(ground, "stopped") as process:
        wait_for(run / "trajectories/train/0001.jsonl", process)
        servers = descendants(process)
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        process.communicate()
    assert servers and gone(servers), "a tool server outlived a killed run"
    reached = max(int(path.stem) for path in (run / "trajectories/train").glob("*.jsonl"))
    assert reached < STEPS
    with started(ground, "stopped") as process:
        wait_for(run / f"trajectories/train/{reached + 1:04d}.jsonl", process)
        servers = descendants(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=400)
    if process.returncode != 0:  # it was not at its end yet
        assert process.returncode == 130, err
        assert "Traceback" not in err and "continues" in err
        assert servers and gone(servers), "a tool server outlived an interrupted run"
        kept = json.loads((run / "state.json").read_text())["step"]
        assert kept >= reached and (run / "checkpoints" / f"{kept:04d}").is_dir()
    assert ground.live("stopped", None, *STDIO) == 0, ground.said("stopped")
    expected, found = record(uninterrupted), record(run)
    for odd in ("0001", "0003", "0005", "0007"):  # Ctrl-C keeps the step that it comes in
        found = {name: content for name, content in found.items() if not name.startswith(f"checkpoints/{odd}")}
    assert differences(expected, found) == []


def test_a_run_whose_reader_has_gone_ends(ground: Ground) -> None:
    """A progress bar that could not be written kept its lock, and the process hung at its exit."""
    with started(ground, "unread") as process:
        assert process.stdout is not None and process.stderr is not None
        while not process.stderr.readline().startswith("Scenarios:"):
            """The next thing is to load the base model."""
        process.stderr.close()
        process.stdout.close()
        assert process.wait(timeout=400) == 1
