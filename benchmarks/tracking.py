"""Measure what trackers cost a run: every tracker on, a collector that is down, and one that hangs, each beside none.

    make test-trackers
    .venv-trackers/bin/python -m benchmarks.tracking --out benchmarks/results/tracking.json

Runs of the calculator with the same seed do the same work, so each step is compared with the same step without
trackers, and the median of these ratios is told; whole commands are compared too. The kinds of runs take turns. Other
work on the machine changes single ratios; the processor time of a whole command, with its tracker process, it changes
less. Weave and W&B talk to servers on loopback or to files.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.runs.collector import collecting
from tests.runs.weave_server import serving_weave

ROOT = Path(__file__).resolve().parents[1]
EVERY = ("mlflow", "otlp", "tensorboard", "trackio", "wandb", "weave")
SMALL = ("scenarios.count=200", "scenarios.val=8", "evaluation.samples=1")


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
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # accepts, and never answers
            yield ("otlp",), {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        elif kind == "dead collector":
            yield ("otlp",), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
        else:
            yield (), {}


def run(kind: str, steps: int) -> dict[str, Any]:
    """Train once; return the seconds of each step, of the command, and of the processors."""
    with tempfile.TemporaryDirectory() as name, surroundings(kind, Path(name)) as (trackers, variables):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
        words = [word for tracker in trackers for word in ("--tracker", tracker)]
        command = [sys.executable, "-m", "mcp_rl", "train", "--server", "mcp_calculator", "--steps", str(steps)]
        before, began = _processor_seconds(), time.perf_counter()
        done = subprocess.run(
            [*command, "--name", "measured", *words, *SMALL],
            cwd=name,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - began
        history = (Path(name) / ".mcp_rl/default/models/measured/history.jsonl").read_text().splitlines()
        lines = [json.loads(line) for line in history]
        return {
            "kind": kind,
            "steps": [line["step_seconds"] for line in lines if line["split"] == "train"],
            "seconds": seconds,
            "processor_seconds": _processor_seconds() - before,
            "said": [line for line in done.stdout.splitlines() if "tracker" in line],
        }


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compared(runs: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Compare a kind of run with the runs without trackers of the same rounds."""
    pairs = list(zip(*([one for one in runs if one["kind"] == k] for k in ("none", kind)), strict=True))
    ratios = [b / a for none, other in pairs for a, b in zip(none["steps"], other["steps"], strict=True)]
    return {
        "step_ratio_median": statistics.median(ratios),
        "step_ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
        "command_ratio_median": statistics.median(other["seconds"] / none["seconds"] for none, other in pairs),
        "command_seconds_more": statistics.median(other["seconds"] - none["seconds"] for none, other in pairs),
        "processor_ratio_median": statistics.median(
            other["processor_seconds"] / none["processor_seconds"] for none, other in pairs
        ),
        "said": pairs[-1][1]["said"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    kinds = ("none", "every tracker", "dead collector", "hanging collector")
    runs = []
    for number in range(given.rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            runs.append(run(kind, given.steps))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    found = {"steps": given.steps, "rounds": given.rounds, **{kind: compared(runs, kind) for kind in kinds[1:]}}
    text = json.dumps(found | {"runs": runs}, indent=2) + "\n"
    if given.out:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
