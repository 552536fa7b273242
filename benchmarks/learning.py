"""Measure the cost of learning against the alternatives, in one run on one machine.

    OMP_NUM_THREADS=1 python -m benchmarks.learning --trl-python VENV/bin/python --out benchmarks/results/learning.json

Parts, each in processes of its own, every contender on one thread:

- `update`: an update over the prefix tree against the same code without sharing, and against padded rows (CPU seconds).
- `memory`: the update's peak memory over batch sizes, as a curve in JSON and in a picture beside the JSON.
- `profile`: the most expensive operations of an update.
- `step`: whole steps of 64 episodes, 8 groups of 8, on the calculator: our run with its tool server in another process,
  checkpoints and checks; TRL's `GRPOTrainer` and a loop by hand with the calculator's functions in their own process.
  All of them start from the built-in model, update once with each batch, and play the same scenarios.
- `success`: seconds until the greedy policy solves a share of the held-out scenarios, evaluations not counted.
- `sampling`: the engine's figures, copied from the JSON of `benchmarks.sampling`.

TRL is in the `bench` extra; `--trl-python` is the Python of an environment that has it (`pip install -e '.[bench]'`),
and without one its contender is skipped with a sentence. `python -m benchmarks.learning --tables FILE` prints a JSON as
Markdown.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
PARTS = ("update", "memory", "profile", "step", "success", "sampling")
TARGETS = (0.7, 0.8)
"""Shares of the held-out scenarios. At the last one a contender stops."""
PATIENCE = 3.5
"""A contender is stopped after this many times our own time to the last target that we reached."""
STEP = {"rollout": {"probes": 0}, "train": {"epochs": 1}}
"""Settings with which our run plays 64 episodes and updates once, as the others do."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """The settings with which contenders are started."""

    folder: Path
    """Folder of the runs, while the benchmark lasts."""
    trl: str | None
    """Path of a Python that has TRL."""
    steps: int
    small: bool

    def run(self, module: str, *arguments: object, python: str = sys.executable) -> Any:
        """Run a module on one thread and return the JSON that it prints. Raises CalledProcessError; the module's errors
        go to stderr."""
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = [python, "-m", f"benchmarks.{module}", *map(str, arguments)]
        print(time.strftime("%H:%M:%S"), *command[2:], file=sys.stderr, flush=True)
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    def update(self, what: str, *arguments: object) -> Any:
        return self.run("learning_update", what, *arguments, *(["--small"] if self.small else []))

    def others(self) -> dict[str, Callable[..., Any]]:
        """Return the other contenders, as functions of their arguments."""
        found: dict[str, Callable[..., Any]] = {"naive": lambda *given: self.run("naive_contender", *given)}
        if trl := self.trl:
            found["trl"] = lambda *given: self.run("trl_contender", *given, python=trl)
        return found


def step_part(bench: Bench) -> Json:
    """Return medians over the steps after the first, which is a warm-up for all."""
    ours = bench.run(
        "our_contender",
        "--folder",
        bench.folder / "step",
        "--steps",
        bench.steps,
        "--val",
        10,
        "--set",
        json.dumps(STEP),
    )
    runs = {"ours": ours}
    for name, contender in bench.others().items():
        runs[name] = contender("--tasks", ours["folder"], "--steps", bench.steps)
    result = {name: _medians(run["steps"][1:]) for name, run in runs.items()}
    for name in runs.keys() - {"ours"}:
        for kind in ("seconds", "cpu_seconds"):
            result[f"{name}_over_ours_{kind}"] = round(result[name][kind] / result["ours"][kind], 2)
    return result


def _medians(steps: Sequence[Json]) -> Json:
    """Return the median of each figure, and the share of overhead in the whole time."""
    found = {name: round(median(step[name] for step in steps), 4) for name in steps[0]}
    if "overhead" in found:
        total = sum(step["seconds"] for step in steps)
        found["overhead_time_share"] = round(sum(step["overhead"] for step in steps) / total, 4)
    return found


def success_part(bench: Bench, learning_rate: float, seeds: Sequence[int]) -> Json:
    """Return success over seconds for each seed, and the time at which each contender first reached each target."""
    found: dict[str, Json] = {}
    for seed in seeds:
        given = ("--folder", bench.folder / "success", "--steps", 20, "--evaluate-every", 2, "--seed", seed)
        ours = bench.run("our_contender", *given)
        runs = {"ours": ours}
        slowest = max((s for s in _reached(ours["curve"]).values() if s), default=ours["seconds"])
        for name, contender in bench.others().items():
            rate = ["--learning-rate", learning_rate] if name == "trl" else []
            most = ("--target", TARGETS[-1], "--seconds", max(PATIENCE * slowest, 1.0))
            given = ("--tasks", ours["folder"], "--steps", 100, "--evaluate-every", 2, "--seed", seed, *most)
            runs[name] = contender(*given, *rate)
        found[str(seed)] = {
            name: {"curve": run["curve"], "seconds": round(run["seconds"], 2), "reached": _reached(run["curve"])}
            for name, run in runs.items()
        }
    return {"targets": TARGETS, "trl_learning_rate": learning_rate, "seeds": found, "summary": summary(found)}


def _reached(curve: Sequence[Json]) -> dict[str, float | None]:
    """Return seconds of training until the first evaluation that reached each target; None if none did."""
    return {
        str(target): next((round(point["seconds"], 2) for point in curve if point["success"] >= target), None)
        for target in TARGETS
    }


def summary(seeds: Mapping[str, Json]) -> Json:
    """Return by target the median seconds of each contender over the seeds, and their ratio to ours.

    A contender that was stopped earlier counts as having reached the target then, which favours it; `stopped` counts
    these runs.
    """
    result: Json = {}
    for target in map(str, TARGETS):
        row: Json = {"seconds": {}, "stopped": {}}
        for name in next(iter(seeds.values())):
            runs = [found[name] for found in seeds.values() if name in found]
            row["seconds"][name] = round(median(run["reached"][target] or run["seconds"] for run in runs), 2)
            row["stopped"][name] = sum(run["reached"][target] is None for run in runs)
        ours = row["seconds"]["ours"]
        row["over_ours"] = {name: round(s / ours, 2) for name, s in row["seconds"].items() if name != "ours"}
        result[target] = row
    return result


def sampling_part(path: Path) -> Json:
    if not path.is_file():
        return {"skipped": f"{path} is not there: python -m benchmarks.sampling > {path}"}
    return {"from": path.name, **json.loads(path.read_text())}


def targets(report: Json) -> list[Json]:
    """Return the targets, and whether each was reached."""
    found: list[Json] = []

    def add(what: str, measured: float, wanted: float) -> None:
        found.append({"what": what, "measured": measured, "wanted": wanted, "reached": measured >= wanted})

    for shape, row in report.get("update", {}).items():
        add(f"share of the allowed factor, {shape}", row["share_of_the_allowed_factor"], 0.6)
    step = report.get("step", {})
    if "trl_over_ours_seconds" in step:
        add("TRL's step over ours", step["trl_over_ours_seconds"], 3.0)
    if "ours" in step:
        share = step["ours"]["overhead_time_share"]
        found.append({"what": "overhead of a step", "measured": share, "wanted": "under 0.05", "reached": share < 0.05})
    for target, row in report.get("success", {}).get("summary", {}).items():
        if "trl" in row["over_ours"] and not row["stopped"]["ours"]:
            add(f"TRL's seconds over ours to {target}", row["over_ours"]["trl"], 3.0)
    return found


def tables(report: Json) -> str:
    """Return the report as Markdown."""
    parts = [f"{report['date']}, {report['machine']}"]
    if update := report.get("update"):
        rows = [
            f"| {shape} | {row['tree_tokens']} | {row['factor_allowed_by_tokens']} "
            f"| {row['trained_tokens_per_second']['tree']} | {row['trained_tokens_per_second']['unshared']} "
            f"| {row['trained_tokens_per_second']['padded']} | {row['times_faster_than_unshared']} "
            f"| {row['share_of_the_allowed_factor']:.0%} |"
            for shape, row in update.items()
        ]
        head = "| episodes | tree tokens | factor allowed | tree, tokens/s | unshared | padded | times faster | share |"
        parts.append("\n".join([head, "|---|---:|---:|---:|---:|---:|---:|---:|", *rows]))
    if memory := report.get("memory"):
        rows = [
            f"| {row['episodes']} | {row['tree_tokens']} | {row['tree_mb']:.0f} | {row['unshared_tokens']} "
            f"| {row['unshared_mb']:.0f} |"
            for row in memory["curve"]
        ]
        head = "| episodes | tree tokens | MB | unshared tokens | MB |"
        parts.append("\n".join([head, "|---:|---:|---:|---:|---:|", *rows]))
    if step := report.get("step"):
        rows = [
            f"| {name} | {row['seconds']:.2f} | {row.get('cpu_seconds', 0):.2f} | {row['sampling']:.2f} "
            f"| {row.get('update', row.get('updating')):.2f} |"
            for name, row in step.items()
            if isinstance(row, dict)
        ]
        head = "| 64 episodes | seconds | CPU seconds | sampling | update |"
        parts.append("\n".join([head, "|---|---:|---:|---:|---:|", *rows]))
    if success := report.get("success"):
        rows = [
            f"| {name} | " + " | ".join(_median_cell(row, name) for row in success["summary"].values()) + " |"
            for name in next(iter(success["summary"].values()))["seconds"]
        ]
        heads = " | ".join(f"seconds to {float(target):.0%}" for target in success["summary"])
        parts.append("\n".join([f"| medians | {heads} |", "|---|" + "---:|" * len(success["summary"]), *rows]))
    rows = [
        f"| {t['what']} | {t['measured']:.3g} | {t['wanted']} | {'yes' if t['reached'] else 'NO'} |"
        for t in targets(report)
    ]
    if rows:
        parts.append("\n".join(["| what | measured | wanted | reached |", "|---|---:|---:|---|", *rows]))
    return "\n\n".join(parts)


def _median_cell(row: Json, name: str) -> str:
    stopped = row["stopped"][name]
    return f"{row['seconds'][name]:.1f}" + (f" ({stopped} stopped before)" if stopped else "")


def has_trl(python: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec("trl") is not None
    return subprocess.run([python, "-c", "import trl"], capture_output=True).returncode == 0


def measure(options: argparse.Namespace, bench: Bench, picture: Path) -> Json:
    report: Json = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "mcp")},
        "threads": 1,
    }
    if bench.trl:
        asked = [bench.trl, "-c", "import importlib.metadata as m; print(m.version('trl'))"]
        report["versions"]["trl"] = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    else:
        report["skipped"] = "TRL is not installed: pip install -e '.[bench]', and name its Python with --trl-python"
    work: dict[str, Callable[[], Any]] = {
        "update": lambda: bench.update("speed"),
        "memory": lambda: {"curve": bench.update("memory", "--picture", picture), "picture": picture.name},
        "profile": lambda: bench.update("profile"),
        "step": lambda: step_part(bench),
        "success": lambda: success_part(bench, options.trl_learning_rate, options.seeds),
        "sampling": lambda: sampling_part(options.sampling),
    }
    for part in options.parts:
        began = time.perf_counter()
        report[part] = work[part]()
        print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(_with_earlier(report, options), indent=2) + "\n")
    return _with_earlier(report, options)


def _with_earlier(report: Json, options: argparse.Namespace) -> Json:
    """Return the report with targets and, with --keep, with the file's parts that this run leaves out."""
    if not (options.keep and options.out and options.out.is_file()):
        return report | {"targets": targets(report)}
    whole = {**json.loads(options.out.read_text()), **report}
    return whole | {"targets": targets(whole)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", dest="parts", action="append", choices=PARTS, help="part to run, repeatable; all by default"
    )
    parser.add_argument("--trl-python", default=sys.executable, help="Python that has TRL")
    parser.add_argument("--trl-learning-rate", type=float, default=8e-4, help="default: the best of those tried")
    parser.add_argument("--steps", type=int, default=8, help="steps of each contender in the part `step`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sampling", type=Path, default=ROOT / "benchmarks/results/sampling.json")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the other parts that --out already holds")
    parser.add_argument("--small", action="store_true", help="run the update's parts small, as a test of them")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="only print this JSON as Markdown")
    options = parser.parse_args(arguments)
    if options.tables:
        print(tables(json.loads(options.tables.read_text())))
        return
    options.parts = options.parts or list(PARTS)
    with tempfile.TemporaryDirectory() as folder:
        python = options.trl_python if has_trl(options.trl_python) else None
        bench = Bench(Path(folder), python, options.steps, options.small)
        picture = (options.out.parent if options.out else Path(folder)) / "learning_memory.png"
        report = measure(options, bench, picture)
    print(tables(report))


if __name__ == "__main__":
    main()
