"""A killed run continues as if it had never been killed: on the CPU, to the last byte of its files.

Everything is real: the built-in model, the tool server, the judge's protocol, the engine, the learner, the files and
the signals. `tests/killing` has the two processes that make fifty kills affordable.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from mcp_rl.errors import RunDirectoryError
from mcp_rl.runs.mirror import Mirror
from mcp_rl.system.seals import SEAL, check_sealed
from tests.killing.ground import SETTINGS, STEPS, differences, played, record, write_scenarios

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
STDIO = ("--server", "mcp_calculator", "--transport", "stdio", "tools.max_servers=2")
KILLS = int(os.environ.get("MCP_RL_KILLS", "10"))
"""Number of kills of the run that is compared with an unstopped one; fifty take a minute more."""
KINDS = Counter(islice(cycle(("checkpoint", "time", "tool", "judge", "files")), KILLS))
"""Numbers of kills between the files of a checkpoint, at a random time, within calls, and between any files."""


def random_death(kind: str, moments: random.Random) -> dict[str, Any]:
    """Return a random death; its counts reach over a save with the removal of an old checkpoint, or about a step."""
    match kind:
        case "time":
            return {"kind": "time", "seconds": moments.uniform(0.02, 0.8)}
        case "checkpoint":
            return {"kind": "file", "part": "/checkpoints/", "count": moments.randint(1, 30)}
        case "files":
            return {"kind": "file", "part": "", "count": moments.randint(1, 35)}
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
        """The options of a run with the world's judge."""
        url = ("--judge-base-url", f"{self.url}/v1")
        return ("--judge-model", "openai/judge", *url, "reward.weights={verifier=0.5,ruler=0.5}")

    def live(self, name: str, death: dict[str, Any] | None, *more: str, file_bytes: int | None = None) -> int:
        """Live one life of a run on the world's server, unless `more` names another; return its exit code, or -9."""
        server = () if "--server" in more else ("--server", f"{self.url}/sse", "--isolation", "shared")
        arguments = self.arguments(name, *server, *more)
        output = self.folder / f"{name}.log"
        asked = {"arguments": arguments, "output": str(output), "death": death, "file_bytes": file_bytes}
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
    """A run that was not stopped, and whose every step trained."""
    assert ground.live("whole", None, *ground.judged) == 0, ground.said("whole")
    history = [json.loads(line) for line in (ground.run("whole") / "history.jsonl").read_text().splitlines()]
    assert [row["trajectories_trained"] > 0 for row in history if "trajectories_trained" in row] == [True] * STEPS
    return ground.run("whole")


def assert_every_scenario_was_used_once_before_any_came_again(run: Path) -> None:
    used = played(run)
    train = len((run / "train.jsonl").read_text().splitlines())
    assert train == 7 and len(used) == 2 * STEPS
    for epoch in range(len(used) // train):
        assert len(set(used[epoch * train : (epoch + 1) * train])) == train


def test_killed_runs_end_like_an_unstopped_one(ground: Ground, whole: Path) -> None:
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    kinds = list(KINDS.elements())
    moments.shuffle(kinds)
    killed: Counter[str] = Counter()
    runs, died = 0, 0
    expected = record(whole)

    def compare(name: str) -> None:
        assert differences(expected, record(ground.run(name))) == [], f"{name}, moments of seed {seed}"
        assert_every_scenario_was_used_once_before_any_came_again(ground.run(name))
        assert "Traceback" not in ground.said(name) and "damaged" not in ground.said(name)
        assert check_sealed(ground.run(name)) is not None

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
    assert killed == KINDS and killed.total() == KILLS
    print(f"{KILLS} kills in {runs + bool(died)} runs of {STEPS} steps, seed {seed}: {dict(killed)}")


def test_a_killed_stale_run_uses_each_scenario_once(ground: Ground) -> None:
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


# -- damaged, old and changed run directories


def copied(ground: Ground, whole: Path, name: str) -> Path:
    """Make a run of that name that is halfway: `whole` without the checkpoints after step 4, and without digests."""
    run = ground.run(name)
    shutil.copytree(whole, run)
    (run / SEAL).unlink()
    (run / "report.json").unlink()
    shutil.rmtree(run / "checkpoints" / "0006")
    shutil.rmtree(run / "checkpoints" / "0008")
    return run


def goes_on(ground: Ground, name: str, whole: Path) -> str:
    """Live that run to its end, compare it with `whole`, and return its output."""
    assert ground.live(name, None, *ground.judged) == 0, ground.said(name)
    assert differences(record(whole), record(ground.run(name))) == []
    return ground.said(name)


def refused(ground: Ground, name: str, *more: str, file_bytes: int | None = None) -> str:
    """Live that run, which must end at once; return its output."""
    before = len(ground.said(name)) if (ground.folder / f"{name}.log").exists() else 0
    assert ground.live(name, None, *ground.judged, *more, file_bytes=file_bytes) == 2, ground.said(name)
    said = ground.said(name)[before:]
    assert "Traceback" not in said
    return " ".join(said.split())


def reseal(checkpoint: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file of a checkpoint, and its hash in the manifest."""
    content = json.loads((checkpoint / name).read_bytes())
    change(content)
    (checkpoint / name).write_text(json.dumps(content))
    if name != "manifest.json":
        digest = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        reseal(checkpoint, "manifest.json", lambda manifest: manifest["files"][name].update(sha256=digest))


def test_a_damaged_checkpoint_is_named_and_passed_over(ground: Ground, whole: Path) -> None:
    run = ground.run("damaged")
    shutil.copytree(whole, run)
    (run / "report.json").unlink()
    for step in ("0006", "0008"):
        with (run / "checkpoints" / step / "optimizer.safetensors").open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"XXXX")
    said = goes_on(ground, "damaged", whole)
    assert "0008 is damaged (optimizer.safetensors has changed), so the one before it is used" in " ".join(said.split())


def test_a_checkpoint_of_other_packages_is_continued_and_named(ground: Ground, whole: Path) -> None:
    run = copied(ground, whole, "older")

    def age(state: dict[str, Any]) -> None:
        state["versions"]["torch"] = "1.0"

    reseal(run / "checkpoints" / "0004", "trainer_state.json", age)
    assert ground.live("older", None, *ground.judged) == 0, ground.said("older")
    assert "0004 was written with torch 1.0 (now " in " ".join(ground.said("older").split())


def test_what_cannot_be_continued_is_one_sentence(ground: Ground, whole: Path) -> None:
    run = copied(ground, whole, "spoilt")
    checkpoint = run / "checkpoints" / "0004"
    reseal(checkpoint, "manifest.json", lambda manifest: manifest.update(format=2))
    assert "0004 has format 2, and this version reads format 1" in refused(ground, "spoilt")
    (checkpoint / "adapter_model.safetensors").write_bytes(b"")
    assert "None of the 1 checkpoints in" in refused(ground, "spoilt")
    shutil.rmtree(checkpoint)
    assert "is at step 8, but its checkpoints are gone" in refused(ground, "spoilt")

    run = copied(ground, whole, "illegible")
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join([lines[0], lines[1][:40] + "\n", *lines[2:]]))
    assert "history.jsonl, line 2 is not JSON: mend or remove that line" in refused(ground, "illegible")
    (run / "history.jsonl").write_text("".join(lines))
    model = json.loads((run / "model.json").read_text())
    model["identity"]["schema_hash"] = "0" * 8
    (run / "model.json").write_text(json.dumps(model))
    assert "cannot be continued, because it was made with another schema_hash (was '00000000'" in refused(
        ground, "illegible"
    )


def test_a_run_is_not_continued_with_other_inputs(ground: Ground, whole: Path) -> None:
    copied(ground, whole, "changed")
    other = ground.folder / "other.jsonl"
    other.write_text((ground.folder / "scenarios.jsonl").read_text() + "\n")
    assert "made with another scenarios_hash (was " in refused(ground, "changed", "--scenarios", str(other))
    begun = refused(ground, "changed", "--init", str(whole))
    assert "made with another init (was None, is " in begun
    assert "there is no such folder" in refused(ground, "changed", "--init", str(ground.folder / "none"))
    goes_on(ground, "changed", whole)


def test_a_disk_that_is_full_costs_the_step_and_nothing_else(ground: Ground, whole: Path) -> None:
    run = copied(ground, whole, "full")
    said = refused(ground, "full", file_bytes=400_000)  # fewer than the adapter's
    assert "Cannot write" in said and "File too large" in said and "checkpoints/0006" in said
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["0004"]
    full = run / "trajectories" / "train" / "0005.jsonl.tmp"
    full.symlink_to("/dev/full")
    assert "the disk is full" in refused(ground, "full")
    full.unlink(missing_ok=True)
    goes_on(ground, "full", whole)


def test_the_weights_of_a_run_are_where_another_begins(ground: Ground, whole: Path) -> None:
    checkpoint = ground.folder / "elsewhere"
    shutil.copytree(whole / "checkpoints" / "0004", checkpoint)
    adapter = (checkpoint / "adapter_model.safetensors").read_bytes()
    for name, init in (("begun", checkpoint), ("again", checkpoint)):
        assert ground.live(name, None, "--init", str(init), "--steps", "0") == 0, ground.said(name)
        assert (ground.run(name) / "checkpoints" / "0000" / "adapter_model.safetensors").read_bytes() == adapter
    assert ground.live("begun", None, "--init", str(whole / "checkpoints" / "0004"), "--steps", "1") == 0
    assert ground.live("begun", None, "--init", str(whole)) == 2
    assert "made with another init (was '" in " ".join(ground.said("begun").split())


# -- whole processes, each with a server of its own


@contextmanager
def started(ground: Ground, name: str) -> "Iterator[subprocess.Popen[str]]":
    """Start the command as typed, with its tool server on stdio and without a judge."""
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
    """A run without a judge that was not stopped."""
    assert ground.live("unstopped", None) == 0, ground.said("unstopped")
    return ground.run("unstopped")


def test_a_killed_and_interrupted_command_leaves_no_server(ground: Ground, uninterrupted: Path) -> None:
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
    if process.returncode != 0:  # it had not reached its end
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
    """A progress bar that could not be written once kept its lock, and the process hung at exit."""
    with started(ground, "unread") as process:
        assert process.stdout is not None and process.stderr is not None
        while not process.stderr.readline().startswith("Scenarios:"):
            """The next thing is to load the base model."""
        process.stderr.close()
        process.stdout.close()
        assert process.wait(timeout=400) == 1


# -- a copy of the run elsewhere


def mirror(ground: Ground, name: str) -> tuple[str, Path]:
    """Return the setting that keeps a copy, and the copy's folder."""
    return f"mirror={(ground.folder / 'copies').as_uri()}", ground.folder / "copies" / "default" / name


def await_(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_whose_folder_is_lost_at_every_kill_goes_on_from_its_copy(ground: Ground, whole: Path) -> None:
    name, seed = "moved", random.randrange(2**32)
    setting, copy = mirror(ground, name)
    moments, taken = random.Random(seed), 0
    for _ in range(6):
        taken += (copy / "snapshot.json").exists()
        status = ground.live(name, {"kind": "time", "seconds": moments.uniform(0.3, 1.5)}, *ground.judged, setting)
        if status == 0:
            break
        assert status == -signal.SIGKILL, f"{ground.said(name)[-2000:]}\nmoments of seed {seed}"
        shutil.rmtree(ground.run(name), ignore_errors=True)
    else:
        taken += (copy / "snapshot.json").exists()
        assert ground.live(name, None, *ground.judged, setting) == 0, ground.said(name)
    assert ground.said(name).count("The run is taken from") == taken
    assert differences(record(whole), record(ground.run(name))) == [], f"moments of seed {seed}"
    shutil.rmtree(ground.run(name))
    assert ground.live(name, None, *ground.judged, setting) == 0  # the end was copied too
    assert differences(record(whole), record(ground.run(name))) == []
    assert check_sealed(ground.run(name)) is not None
    kept = json.loads((copy / "snapshot.json").read_bytes())["files"]
    there = {path.relative_to(copy / "files").as_posix() for path in (copy / "files").rglob("*") if path.is_file()}
    assert {f"{path}.{digest[:16]}" for path, digest in kept.items()} == there
    assert not list(ground.run(name).parent.glob(f".{name}.*mirror*"))


def test_a_copy_that_cannot_be_used_is_one_sentence(ground: Ground, whole: Path) -> None:
    assert "Protocol not known: nowhere" in refused(ground, "unmirrored", "mirror=nowhere://there")
    (ground.folder / "file").write_text("")
    assert "cannot be kept at mirror=" in refused(ground, "unmirrored", f"mirror={ground.folder / 'file' / 'below'}")
    assert "mirror=s3://bucket" in refused(ground, "unmirrored", "--output-dir", "s3://bucket/runs")
    setting, copy = mirror(ground, "apart")
    shutil.copytree(whole, ground.run("apart"))
    assert ground.live("apart", None, *ground.judged, setting) == 0, ground.said("apart")
    snapshot = json.loads((copy / "snapshot.json").read_bytes())
    (copy / "snapshot.json").write_text(json.dumps(snapshot | {"begun": "0" * 64}))
    owner = (copy / "owner.json").read_bytes()
    assert "were begun apart" in refused(ground, "apart", setting)
    assert (copy / "owner.json").read_bytes() == owner  # a command that is refused takes nothing over
    (copy / "snapshot.json").write_text(json.dumps(snapshot | {"files": {"../../evil": "0" * 64}}))
    assert "was not written by this version" in refused(ground, "apart", setting)
    (copy / "snapshot.json").write_text(json.dumps(snapshot))
    place = copy / "files" / f"val.jsonl.{snapshot['files']['val.jsonl'][:16]}"
    place.write_text("other")
    shutil.rmtree(ground.run("apart"))
    assert "is damaged: its content is not that of its digest" in refused(ground, "apart", setting)


def test_a_copy_that_another_command_took_over_ends_the_first(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()
    first = Mirror((tmp_path / "copy").as_uri(), run, said.append)
    first.begin(fresh=False)
    run.mkdir()
    (run / "model.json").write_text("{}")
    first.keep()
    await_(lambda: (tmp_path / "copy" / "snapshot.json").exists())
    second = Mirror((tmp_path / "copy").as_uri(), tmp_path / "elsewhere", said.append)
    second.begin(fresh=False)
    (run / "state.json").write_text('{"step": 3}')
    with pytest.raises(RunDirectoryError, match=r"Another command \(host .*\) has taken over the run"):
        await_(first.keep)
    first.close(60)
    second.close(60)
    assert json.loads((tmp_path / "copy" / "snapshot.json").read_bytes())["step"] == 0


def test_a_copy_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    run, copy, said = tmp_path / "run", tmp_path / "copy", list[str]()
    kept = Mirror(str(copy), run, said.append)
    kept.begin(fresh=False)
    run.mkdir()
    (run / "model.json").write_text("{}")
    (copy / "files").write_text("")  # in the way
    kept.keep()
    await_(lambda: said)
    assert "cannot be written" in said[0] and "the run goes on" in said[0]
    (copy / "files").unlink()
    kept.close(60)
    assert "is whole again" in said[1] and len(said) == 2
    assert json.loads((copy / "snapshot.json").read_bytes())["files"].keys() == {"model.json"}
