"""Kill runs whose learner is in a child process with -9 at random moments, and look for what is left of them.

    python -m benchmarks.child_kills [--kills 20] [--seed N]

Every start continues where the last one was killed. In half of them the child is frozen first, so that it cannot end
itself, like a process that hangs in a driver. After each kill all processes of the run must be gone, with those that
the child started and with their memory. One JSON object, with the times.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from mcp_rl.system.processes.inherited import RUN

ROOT = Path(__file__).parents[1]
SETTINGS = (
    *("rollout.groups_per_step=2", "rollout.group_size=4", "train.checkpoint_every=1", "placement.in_process=false"),
    *("evaluation.samples=1", "evaluation.greedy=false", "scenarios.val=4"),
)
GONE_SECONDS = 20.0


@dataclass(frozen=True)
class Death:
    """The end of a run that was killed."""

    after: float
    """Seconds from its start to the kill."""
    frozen: bool
    """True if the child was stopped (SIGSTOP) before the kill."""
    processes: int
    """Number of processes that it had started, itself excluded."""
    memory_mb: float
    """Resident memory of all of them at the kill."""
    gone_after: float
    """Seconds from the kill to the end of the last of them."""
    left: tuple[str, ...]
    """Command lines of processes that were not gone after `GONE_SECONDS`."""
    step: int
    """The step that the run was at."""


def start(folder: Path, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a run of the train command, its output in `<folder>/output`."""
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "mcp_rl", "train", "--output-dir", str(folder / "out"), "--name", "run", *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def run_of(folder: Path) -> Path:
    """Return the run directory of `start`."""
    return folder / "out" / "default" / "models" / "run"


def step_of(folder: Path) -> int:
    """Return the step of the run by its state; 0 before it has a state."""
    with suppress(OSError, ValueError):
        return int(json.loads((run_of(folder) / "state.json").read_bytes())["step"])
    return 0


def of_run(folder: Path) -> list[psutil.Process]:
    """Return the living processes that carry the marker of this run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(RUN) == str(run_of(folder).resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def learners(folder: Path) -> list[psutil.Process]:
    """Return the processes of the run that have a learner, without their watchdogs."""
    return [process for process in of_run(folder) if "watchdog.py" not in " ".join(process.cmdline())]


def kill(
    process: "subprocess.Popen[bytes]", folder: Path, after: float, *, frozen: bool, past: int = -1
) -> Death | None:
    """Send SIGKILL to a run `after` seconds once it is `past` a step; return its end, or None if it ended before."""
    family: set[psutil.Process] = set()
    began = time.monotonic()
    passed = began if past < 0 else None
    while passed is None or time.monotonic() < passed + after:
        if passed is None and step_of(folder) > past:
            passed = time.monotonic()
        if process.poll() is not None:
            return None
        with suppress(psutil.Error):
            family.update(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.02)
    step = step_of(folder)
    with suppress(psutil.Error):
        family.update(psutil.Process(process.pid).children(recursive=True))
    if frozen:
        for learner in learners(folder):
            learner.suspend()
    memory = sum(map(_memory, family))
    process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    process.wait()
    _, alive = psutil.wait_procs(list(family), timeout=GONE_SECONDS)
    while (marked := of_run(folder)) and time.monotonic() < killed + GONE_SECONDS:
        time.sleep(0.02)
    gone = time.monotonic() - killed
    left = tuple(" ".join(one.cmdline()) for one in {*alive, *marked} if one.is_running())
    return Death(round(killed - began, 2), frozen, len(family), round(memory, 1), round(gone, 2), left, step)


def _memory(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.memory_info().rss) / 2**20
    return 0.0


def deaths(
    folder: Path, count: int, seed: int, *, longest: float, arguments: Sequence[str], stepping: bool
) -> list[Death]:
    """Start and kill a run `count` times: within `longest` seconds or, if `stepping`, every second time up to two
    seconds after a step."""
    moments, found = random.Random(seed), []
    for number in range(count):
        in_step = stepping and number % 2 == 1
        while True:
            process = start(folder, arguments)
            after, past = moments.uniform(0.0, 2.0 if in_step else longest), step_of(folder) if in_step else -1
            try:
                death = kill(process, folder, after, frozen=number % 4 > 1, past=past)
            finally:
                process.kill()
                process.wait()
            if death is not None:
                found.append(death)
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--longest", type=float, default=10.0, help="most seconds from a start to its kill")
    parser.add_argument("--learners", type=int, default=1, help="processes that learn together")
    asked = parser.parse_args()
    arguments = ["--server", "mcp_calculator", "--transport", "stdio", "--steps", "1000", *SETTINGS]
    if asked.learners > 1:
        arguments.append(f"placement.learner_processes={asked.learners}")
    with tempfile.TemporaryDirectory() as folder:
        found = deaths(Path(folder), asked.kills, asked.seed, longest=asked.longest, arguments=arguments, stepping=True)
    report = {
        "kills": len(found),
        "seed": asked.seed,
        "learners": asked.learners,
        "killed_with_learner": sum(death.memory_mb > 100 for death in found),
        "left": sum(len(death.left) for death in found),
        "gone_after_most_seconds": max(death.gone_after for death in found),
        "steps_reached": found[-1].step,
        "machine": f"{os.cpu_count()} CPUs, {sys.platform}",
        "deaths": [asdict(death) for death in found],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
