"""Measure what trackers cost a run: every tracker on, a collector that is down, and one that hangs.

    make test-trackers
    .venv-trackers/bin/python -m benchmarks.tracking --out benchmarks/results/tracking.json

Each is one run of the calculator. The process of the trackers is stopped during every other step: then it costs
nothing, and in the next step it does the work of two. A step in which it works is compared with the mean of the two
steps beside it in which it does not. The median of these ratios is told, so other work on the machine matters little.
Told too are the processor seconds of that process for its start and for a step, and the seconds that the run waited for
it at the end. Weave talks to a server on loopback, W&B writes files.
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
SMALL = ("scenarios.val=8", "evaluation.samples=1", "evaluation.subset=0", "rollout.groups_per_step=8")
TOGGLE = """
import json, signal
import psutil
from mcp_rl import hookimpl


@hookimpl
def step_finished(step, metrics):
    for one in psutil.Process().children(recursive=True):
        if one.cmdline()[1:2] == ["-P"] and one.cmdline()[-1].endswith("trackers.host"):
            used = one.cpu_times()
            with open("used.jsonl", "a") as file:
                print(json.dumps([step, used.user + used.system]), file=file)
            one.send_signal(signal.SIGSTOP if step % 2 else signal.SIGCONT)  # step 2 is played without it
"""


@contextmanager
def surroundings(kind: str, folder: Path) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Give the trackers and variables of a kind of run."""
    with ExitStack() as stack:
        if kind == "every tracker":
            weave = stack.enter_context(serving_weave())
            otlp = stack.enter_context(collecting())
            variables = {**weave.variables, "WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio")}
            yield EVERY, variables | {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp.url}
        elif kind == "hanging collector":
            listening = stack.enter_context(create_server(("127.0.0.1", 0)))  # takes connections, and never answers
            yield ("otlp",), {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        else:
            yield ("otlp",), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def run(kind: str, steps: int) -> dict[str, Any]:
    """Train once, and compare."""
    with tempfile.TemporaryDirectory() as name, surroundings(kind, Path(name)) as (trackers, variables):
        folder = Path(name)
        (folder / "toggle.py").write_text(TOGGLE)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
        words = [word for tracker in trackers for word in ("--tracker", tracker)]
        command = [sys.executable, "-m", "mcp_rl", "train", "--server", "mcp_calculator", "--steps", str(steps)]
        command += ["--name", "measured", "--plugin", "toggle.py", *words, *SMALL]
        done = subprocess.run(command, cwd=name, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        model = folder / ".mcp_rl/default/models/measured"
        lines = [json.loads(line) for line in (model / "history.jsonl").read_text().splitlines()]
        seconds = {line["step"]: line["step_seconds"] for line in lines if line["split"] == "train"}
        used = [cpu for _, cpu in map(json.loads, (folder / "used.jsonl").read_text().splitlines())]
        working = [step for step in seconds if step % 2 and step - 1 in seconds and step + 1 in seconds]
        ratios = [2 * seconds[step] / (seconds[step - 1] + seconds[step + 1]) for step in working]
        return {
            "steps": len(seconds),
            "rollouts_per_step": statistics.mean(line["rollouts"] for line in lines if line["split"] == "train"),
            "step_seconds_median": statistics.median(seconds.values()),
            "step_ratio_median": statistics.median(ratios),
            "step_ratio_error": statistics.stdev(ratios) * 1.25 / len(ratios) ** 0.5,
            "processor_seconds_at_start": used[0],
            "processor_seconds_per_step": statistics.median(b - a for a, b in pairwise(used[::2])) / 2,
            "closing_seconds": (model / "report.json").stat().st_mtime - (model / "history.jsonl").stat().st_mtime,
            "said": [line for line in done.stdout.splitlines() if "tracker" in line],
            "seconds": list(seconds.values()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {kind: run(kind, given.steps) for kind in ("every tracker", "dead collector", "hanging collector")}
    text = json.dumps(found, indent=2) + "\n"
    if given.out:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
