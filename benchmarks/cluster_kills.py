"""Kill parts of runs on a Ray cluster at random moments, and compare how the runs end with an undisturbed one.

    python -m benchmarks.cluster_kills [--kills 50] [--seed N] [--engines 1]

A head and three nodes on this machine, real raylets. Each kill is a SIGKILL to an engine, a tool node, a learner, a
whole node or the driver; a killed node is replaced by a new one, and a driver that ended is started again with the same
command, as a job's retry does. With one engine and one learner the files of every run must be those of a run on one
machine, byte for byte without its measured times. One JSON object, with a line for each kill.
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
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.ray_nodes import RayNodes, killed, left_of, ray_nodes
from tests.killing.ground import SETTINGS, STEPS, differences, played, record, write_scenarios

ROOT = Path(__file__).parents[1]
KINDS = ("engine", "tool node", "learner", "node", "driver")
LIFE_SECONDS = 240.0
"""Most seconds without a kill until a run must have ended."""


class Ground:
    """A folder with scenarios, and the runs in it."""

    def __init__(self, folder: Path, nodes: RayNodes, engines: int) -> None:
        self.folder, self.nodes, self._engines = folder, nodes, engines
        write_scenarios(folder / "scenarios.jsonl")

    def start(self, name: str, *, on_cluster: bool = True) -> "subprocess.Popen[bytes]":
        given = ("--server", "mcp_calculator", "--transport", "stdio", "--steps", str(STEPS), "tools.max_servers=2")
        scenarios = ("--scenarios", str(self.folder / "scenarios.jsonl"))
        run = ("--output-dir", str(self.folder / "out"), "--name", name)
        cluster: tuple[str, ...] = ()
        if on_cluster:
            cluster = ("--backend", "ray", "--ray-address", self.nodes.address, "ray.tool_nodes=2", "ray.patience=60")
            cluster += (f"ray.engines={self._engines}",)
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "mcp_rl", "train", *given, *scenarios, *run, *SETTINGS, *cluster],
                cwd=ROOT,
                env=self.nodes.environment | {name: os.environ[name] for name in os.environ if "RAY" in name},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run(self, name: str) -> Path:
        return self.folder / "out" / "default" / "models" / name

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def learned(self, name: str) -> int:
        """Return the number of training steps in the history, saved or not."""
        with suppress(OSError):
            return (self.run(name) / "history.jsonl").read_text().count('"split": "train"')
        return 0

    def whole(self) -> dict[str, Any]:
        """Play the undisturbed run on this machine alone; return its record."""
        process = self.start("whole", on_cluster=False)
        assert process.wait(LIFE_SECONDS) == 0, self.said("whole")
        return record(self.run("whole"))

    def kill(self, kind: str, driver: "subprocess.Popen[bytes]", moments: random.Random) -> bool:
        """Kill one part of this kind; return False if there is none now."""
        if kind == "driver":
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            return True
        if kind == "node":
            node = moments.choice(self.nodes.nodes)
            self.nodes.kill(node)
            self.nodes.add()
            return True
        processes = self.nodes.actors(kind)
        if processes:
            killed(moments.choice(processes))
        return bool(processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--in-run", type=int, default=6, help="most kills in one run")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further run after this time")
    asked = parser.parse_args()
    moments = random.Random(asked.seed)
    began = time.monotonic()
    log: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ray_nodes(tools=3) as nodes:
        ground = Ground(Path(folder), nodes, asked.engines)
        expected = ground.whole()
        while len(log) < asked.kills and time.monotonic() - began < asked.seconds:
            runs.append(one_run(ground, f"run-{len(runs)}", asked, moments, log, expected, began))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    report = {
        "kills": len(log),
        "by_kind": Counter(entry["kind"] for entry in log),
        "seed": asked.seed,
        "engines": asked.engines,
        "steps": STEPS,
        "runs": len(runs),
        "ended": sum(run["ended"] for run in runs),
        "same_bytes": sum(not run["differences"] for run in runs),
        "scenarios_in_order": sum(run["in_order"] for run in runs),
        "left": sum(len(run["left"]) for run in runs),
        "machine": f"{os.cpu_count()} CPUs, {sys.platform}",
        "each_run": runs,
        "each_kill": log,
    }
    print(json.dumps(report, indent=2))


def one_run(
    ground: Ground,
    name: str,
    asked: argparse.Namespace,
    moments: random.Random,
    log: list[dict[str, Any]],
    expected: dict[str, Any],
    began: float,
) -> dict[str, Any]:
    """Play a run to its end while parts of it are killed."""
    driver, starts, kills = ground.start(name), 1, 0
    ends: list[int] = []
    since, quiet = time.monotonic(), moments.uniform(0.1, 3.0)
    run_began, seen, anytime = since, 0, True
    while time.monotonic() - since < LIFE_SECONDS:
        status = driver.poll()
        if status == 0:
            break
        if status is not None:
            ends.append(status)
            if starts > 12:
                break
            driver, starts = ground.start(name), starts + 1
        if time.monotonic() - began > asked.seconds:
            kills = asked.in_run  # no more, so that it ends in time
        if kills < asked.in_run and len(log) < asked.kills and time.monotonic() - since > quiet:
            kind, step = moments.choice(KINDS), ground.learned(name)
            due = (step > seen or anytime) and driver.poll() is None and ground.nodes.actors("learner")
            if due and ground.kill(kind, driver, moments):
                kills += 1
                seen, anytime = step, moments.random() < 0.3
                since, quiet = time.monotonic(), moments.uniform(0.1, 3.0)
                entry = {"run": name, "kind": kind, "learned": step, "at": round(time.monotonic() - began, 1)}
                log.append(entry | {"in_run_at": round(time.monotonic() - run_began, 1)})
                print(json.dumps(log[-1]), file=sys.stderr, flush=True)
        time.sleep(0.1)
    ended = driver.poll() == 0
    if driver.poll() is None:
        driver.kill()
        driver.wait()
    found = differences(expected, record(ground.run(name))) if ended else ["it did not end"]
    faults = ground.run(name) / "logs" / "cluster.jsonl"
    used = played(ground.run(name))
    train = len((ground.run(name) / "train.jsonl").read_text().splitlines()) if ended else 1
    in_order = all(len(set(used[e * train : (e + 1) * train])) == train for e in range(len(used) // train))
    if not ended or found:
        print(ground.said(name)[-6000:], file=sys.stderr)
    return {
        "run": name,
        "ended": ended,
        "seconds": round(time.monotonic() - run_began, 1),
        "kills": kills,
        "starts": starts,
        "statuses": ends,
        "differences": found,
        "in_order": in_order and (not ended or len(used) == 2 * STEPS),
        "traceback": "Traceback" in ground.said(name),
        "left": left_of(ground.nodes),
        "faults": [json.loads(line) for line in faults.read_text().splitlines()] if faults.is_file() else [],
        "said": [line for line in ground.said(name).splitlines() if "lost" in line or "gone" in line],
    }


if __name__ == "__main__":
    main()
