"""Our training run on the calculator, as `benchmarks/learning.py` times it.

    python -m benchmarks.our_contender --folder FOLDER --steps 8

The whole command is timed, with its checkpoints, its tool server in another process and all checks; only evaluations
are not counted. JSON on stdout; the run, with its scenarios, stays in FOLDER.
"""

import argparse
import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import anyio
import psutil
from rich.console import Console

from mcp_rl.config import RunConfig
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.runs.train import run_training

EVENTS: list[tuple[str, int, float, float]] = []
"""Event that ended, its step, wall-clock seconds, and processor seconds of this process and its tool server."""


def note(kind: str, step: int) -> None:
    this = psutil.Process()
    spent = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    EVENTS.append((kind, step, time.perf_counter(), sum(times.user + times.system for times in spent)))


PLUGIN = '''"""Tells the benchmark when a step or a checkpoint is done."""

from benchmarks.our_contender import checkpoint_saved, step_finished

__all__ = ["checkpoint_saved", "step_finished"]
'''


@hookimpl
def step_finished(step: int, metrics: dict[str, float]) -> None:
    note("step", step)


@hookimpl
def checkpoint_saved(step: int, path: Path) -> None:
    note("checkpoint", step)


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def times_of(lines: list[dict[str, Any]], every: int) -> list[dict[str, float]]:
    """Return for each step its time from end to end, including a save before an evaluation, and the parts of it."""
    when = {(kind, step): (wall, cpu) for kind, step, wall, cpu in EVENTS}
    steps = []
    for line in lines:
        if line["split"] != "train":
            continue
        step, seconds = line["step"], line["step_seconds"]
        if every and step % every == 0 and ("checkpoint", step) in when:
            seconds += when["checkpoint", step][0] - when["step", step][0]
        found = {"seconds": seconds}
        if not every and ("step", step - 1) in when:
            found["cpu_seconds"] = when["step", step][1] - when["step", step - 1][1]
        names = ("sampling", "tools", "updating", "saving", "overhead")
        found |= {name: line[f"{name}_seconds"] for name in names}
        counts = ("sampled_tokens", "forward_tokens", "unshared_tokens", "groups_useful")
        steps.append(found | {name: line[name] for name in counts})
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--val", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", type=json.loads, default={}, help="further settings of a run, as a tree in JSON")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    plugin = options.folder / "benchmark_clock.py"
    plugin.write_text(PLUGIN)
    tree = {
        "server": "mcp_calculator",
        "name": f"seed{options.seed}",
        "output_dir": options.folder,
        "plugins": (str(plugin),),
        "seed": options.seed,
        "steps": options.steps,
        "scenarios": {"count": 600 + options.val, "val": options.val},
        "rollout": {"groups_per_step": options.groups, "group_size": options.size},
        "evaluation": {"every": options.evaluate_every, "samples": 1},
    }
    for section, values in options.set.items():
        tree[section] = {**tree.get(section, {}), **values}
    config = RunConfig.model_validate(tree)
    with redirect_stdout(sys.stderr):
        anyio.run(lambda: run_training(config, fresh=True, console=Console(stderr=True)))
    lines = history(config.run_dir)
    steps = times_of(lines, options.evaluate_every)
    seconds = [0.0]
    for step in steps:
        seconds.append(seconds[-1] + step["seconds"])
    curve = [
        {"step": line["step"], "seconds": seconds[line["step"]], "success": line["greedy_success"]}
        for line in lines
        if line["split"] == "val"
    ]
    json.dump({"folder": str(config.run_dir), "steps": steps, "curve": curve, "seconds": seconds[-1]}, sys.stdout)


if __name__ == "__main__":
    sys.modules["benchmarks.our_contender"] = sys.modules["__main__"]  # so that the plugin shares EVENTS
    main()
