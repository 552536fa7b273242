"""Measure what trackers cost a run: every tracker on, a collector that is down, and one that hangs.

    make test-trackers
    .venv-trackers/bin/python -m benchmarks.tracking --out benchmarks/results/tracking.json

Each is one run of the calculator, and so is one without trackers: all play the same episodes. The process of the
trackers is stopped during every other step: then it costs nothing, and in the next step it does the work of two. Each
step is divided by the same step of the run without trackers, then each step in which the trackers worked by the mean
of its two neighbours. Printed is the median less 1, halved: the cost of the trackers, as a share of a step. This is
done for wall time and for the processor time of the run's own process, which grows where the two compete for caches and
which other programs hardly move. One more run with every tracker never stops them: it shows the processor seconds of
their process and its children for a step, and the seconds that the run waits for them at the end. Weave talks to a
server on loopback, W&B writes files.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from socket import create_server
from typing import Any

from tests.runs.collector import collecting
from tests.runs.weave_server import serving_weave

ROOT = Path(__file__).resolve().parents[1]
EVERY = ("mlflow", "otlp", "tensorboard", "trackio", "wandb", "weave")
EVERY_TRACKER, NEVER_STOPPED = "every tracker", "every tracker, never stopped"
KINDS = ("none", EVERY_TRACKER, "dead collector", "hanging collector", NEVER_STOPPED)
SMALL = ("scenarios.val=8", "evaluation.samples=1", "evaluation.subset=0", "rollout.groups_per_step=8")
TOGGLE = """
import json, os, signal
import psutil
from mcp_rl import hookimpl


@hookimpl
def step_finished(step, metrics):
    mine = seconds(psutil.Process())
    host = []
    for one in psutil.Process().children(recursive=True):
        if one.cmdline()[1:2] == ["-P"] and one.cmdline()[-1].endswith("trackers.host"):
            host = [one, *one.children(recursive=True)]
    with open("used.jsonl", "a") as file:
        print(json.dumps([step, sum(map(seconds, host)), mine]), file=file)
    for each in host if os.environ["STOPPED"] == "1" else ():
        each.send_signal(signal.SIGSTOP if step % 2 else signal.SIGCONT)  # step 2 is played without it


def seconds(process):
    used = process.cpu_times()
    return used.user + used.system
"""


@contextmanager
def surroundings(kind: str, folder: Path) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Give the trackers and variables of a kind of run."""
    with ExitStack() as stack:
        if kind in (EVERY_TRACKER, NEVER_STOPPED):
            weave = stack.enter_context(serving_weave())
            otlp = stack.enter_context(collecting())
            variables = {**weave.variables, "WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio")}
            yield EVERY, variables | {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp.url}
        elif kind == "hanging collector":
            listening = stack.enter_context(create_server(("127.0.0.1", 0)))  # takes connections, and never answers
            yield ("otlp",), {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        elif kind == "none":
            yield (), {}
        else:
            yield ("otlp",), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def run(kind: str, steps: int) -> dict[str, Any]:
    """Train once, and compare."""
    with tempfile.TemporaryDirectory() as name, surroundings(kind, Path(name)) as (trackers, variables):
        folder = Path(name)
        (folder / "toggle.py").write_text(TOGGLE)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
        environment["STOPPED"] = str(int(kind != NEVER_STOPPED))
        words = [word for tracker in trackers for word in ("--tracker", tracker)]
        command = [sys.executable, "-m", "mcp_rl", "train", "--server", "mcp_calculator", "--steps", str(steps)]
        command += ["--name", "measured", "--plugin", "toggle.py", *words, *SMALL]
        done = subprocess.run(command, cwd=name, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        model = folder / ".mcp_rl/default/models/measured"
        lines = [json.loads(line) for line in (model / "history.jsonl").read_text().splitlines()]
        seconds = {line["step"]: line["step_seconds"] for line in lines if line["split"] == "train"}
        rows = [json.loads(line) for line in (folder / "used.jsonl").read_text().splitlines()]
        used = [host for _, host, _ in rows]
        own = {rows[i][0]: rows[i][2] - rows[i - 1][2] for i in range(1, len(rows))}
        return {
            "steps": len(seconds),
            "rollouts_per_step": statistics.mean(line["rollouts"] for line in lines if line["split"] == "train"),
            "step_seconds_median": statistics.median(seconds.values()),
            "own_processor_seconds_median": statistics.median(own.values()),
            "processor_seconds_at_start": used[0],
            "processor_seconds_per_step": statistics.mean(b - a for a, b in pairwise(used)),
            "closing_seconds": (model / "report.json").stat().st_mtime - (model / "history.jsonl").stat().st_mtime,
            "said": [line for line in done.stdout.splitlines() if "tracker" in line],
            "seconds": seconds,
            "own_processor_seconds": own,
        }


def cost(values: dict[int, float], without: dict[int, float]) -> dict[str, float]:
    """Return the cost of trackers as a share of a step, with its standard error, from the values of each step."""
    share = {step: values[step] / without[step] for step in values.keys() & without.keys()}
    inner = [step for step in share if step % 2 and step - 1 in share and step + 1 in share]
    found = [(2 * share[step] / (share[step - 1] + share[step + 1]) - 1) / 2 for step in inner]
    low, middle, high = statistics.quantiles(found, n=4)  # for the error, since a busy machine adds outliers
    return {"median": middle, "standard_error": 1.25 * (high - low) / 1.349 / len(found) ** 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kind", choices=KINDS, help="measure this kind alone")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {kind: run(kind, given.steps) for kind in ([given.kind] if given.kind else KINDS)}
    without = found.get("none", {})
    for measured in found.values() if without else ():
        for name, values in (("cost_wall", "seconds"), ("cost_processor", "own_processor_seconds")):
            measured[name] = cost(measured[values], without[values])
    text = json.dumps(found, indent=2) + "\n"
    if given.out:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
