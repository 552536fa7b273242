"""Whole runs with the learner in a child: their ends, their messages, and the processes that they leave."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.child_kills import deaths, kill, learners, of_run, run_of, start, step_of
from mcp_rl.learning.disk.checkpoint import find_damage
from tests.killing.ground import SETTINGS, write_scenarios

SECONDS = 180.0
"""Time for anything to happen on a busy machine."""


def arguments(folder: Path, *more: str) -> list[str]:
    write_scenarios(folder / "scenarios.jsonl")
    given = ("--server", "mcp_calculator", "--transport", "stdio", "--scenarios", str(folder / "scenarios.jsonl"))
    small = (*SETTINGS, "tools.max_servers=2", "train.checkpoint_every=1", "placement.in_process=false")
    return [*given, "--steps", "500", *small, *more]


@contextmanager
def life(folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    (folder / "output").unlink(missing_ok=True)
    process = start(folder, arguments(folder))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_(what: Callable[[], object], process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert process.poll() is None and time.monotonic() < deadline, (folder / "output").read_text()
        time.sleep(0.02)


def maps(process: "subprocess.Popen[bytes]") -> str:
    """Return the files that a process has mapped; empty if the system does not tell."""
    with suppress(OSError):
        return Path(f"/proc/{process.pid}/maps").read_text()
    return ""


def test_a_run_survives_a_lost_learner_and_an_interrupt(
    tmp_path: Path,
) -> None:
    output = tmp_path / "output"
    with life(tmp_path) as process:
        await_(lambda: step_of(tmp_path) >= 1, process, tmp_path)
        assert "libtorch" not in maps(process)
        [learner] = learners(tmp_path)
        learner.kill()
        assert process.wait(SECONDS) == 1
    said = output.read_text()
    assert "The learner's process was killed" in said and "the same command continues from the last whole step" in said
    assert "Traceback" not in said and not of_run(tmp_path)
    step = step_of(tmp_path)
    with life(tmp_path) as process:
        await_(lambda: step_of(tmp_path) > step, process, tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert f"Continuing from step {step}" in output.read_text() and "Traceback" not in output.read_text()
    assert not of_run(tmp_path)
    step = step_of(tmp_path)
    assert find_damage(run_of(tmp_path) / "checkpoints" / f"{step:04d}") is None


def test_no_kill_at_any_moment_leaves_a_process(tmp_path: Path) -> None:
    """`python -m benchmarks.child_kills` kills twenty times, over all of a run."""
    seed = random.randrange(2**32)
    for death in deaths(tmp_path, 1, seed, longest=4.0, arguments=arguments(tmp_path), stepping=False):
        assert not death.left, (seed, death)
    with life(tmp_path) as process:
        await_(lambda: step_of(tmp_path) >= 1, process, tmp_path)
        in_step = kill(process, tmp_path, 0.0, frozen=True)
    assert in_step is not None and not in_step.left and in_step.processes >= 4
    assert "damaged" not in (tmp_path / "output").read_text()


def test_leftovers_are_named_at_the_next_start(tmp_path: Path) -> None:
    """The marker has another name, so that no other start on this machine finds the process first."""
    program = """
import os, subprocess, sys
import mcp_rl.system.processes.marker as marker
marker.OWNER = "MCP_RL_TEST_OWNER"
left = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, stdout=subprocess.DEVNULL,
    env={**os.environ, **marker.marking("learner", None), "MCP_RL_TEST_OWNER": "1:5.0"},
)
print(left.pid, flush=True)
from mcp_rl.cli import main
sys.exit(main(sys.argv[1:]))
"""
    given = [*("train", "--output-dir", str(tmp_path), "--name", "run"), *arguments(tmp_path)]
    command = [sys.executable, "-c", program, *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            said = next(line for line in process.stdout if "left behind" in line)
        finally:
            process.kill()
    assert said.startswith(f"Ended what an earlier run left behind: learner (process {pid}), ")
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
