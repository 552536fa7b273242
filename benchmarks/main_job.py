"""Training runs as a user starts them: success before and after, wall time and memory, for several seeds.

    python -m benchmarks.main_job --seeds 0 1 2 --out benchmarks/results/main_job.json

and with two engines, one after the other for each seed:

    python -m benchmarks.main_job --engines local vllm --engine-python VENV/bin/python --steps 40 --out FILE

Each run is a process of its own in an empty folder, so the wall time includes everything: imports, the server's start,
exploring, both evaluations. `--out` is written after each run. Further arguments go to `mcp_rl.train`.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PARTS = ("step_seconds", "rollout_seconds", "swap_seconds")
"""Times of a training step in history.jsonl."""


def run(seed: int, server: str, arguments: list[str]) -> dict[str, Any]:
    """Run a training; return its report, and the wall time measured from outside."""
    command = [sys.executable, "-m", "mcp_rl.train", "--server", server, "--seed", str(seed), "--json", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.perf_counter() - began
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        kept = Path(folder) / report["run_dir"]
        whole = json.loads((kept / "report.json").read_text())
        lines = [json.loads(line) for line in (kept / "history.jsonl").read_text().splitlines()]
    parts = {
        part: round(statistics.median(line[part] for line in lines if line["split"] == "train" and part in line), 3)
        for part in PARTS  # an imitation step plays no rollouts
    }
    return {"seed": seed, "wall_seconds": round(seconds, 1), "step_median": parts, **report, "report": whole}


def seconds_of(*command: str) -> float:
    """Return the seconds of the fastest of five runs of a short Python command."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return round(min(times), 3)


def table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each run: success on val in percent with its 95 % interval."""

    def cell(moment: dict[str, Any] | None) -> str:
        if moment is None or moment["success"] is None:
            return "-"
        low, high = moment["ci95"]
        return f"{100 * moment['success']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"

    rows = ["| engine | seed | greedy before | after | sampled before | after | step | minutes | peak memory |"]
    rows.append("|---" * 9 + "|")
    for r in runs:
        cells = [cell(success(r, kind, moment)) for kind in ("greedy", "sampled") for moment in ("before", "after")]
        step = r["step_median"]["step_seconds"]
        took = [f"{step:.1f} s", f"{r['wall_seconds'] / 60:.1f}", f"{r['peak_rss_mb']:.0f} MB"]
        rows.append("| " + " | ".join([r["engine"], str(r["seed"]), *cells, *took]) + " |")
    return "\n".join(rows)


def success(run: dict[str, Any], kind: str, moment: str) -> dict[str, Any] | None:
    """Return `greedy` or `sampled` success `before` or `after`, as `success` and `ci95`; None if not measured."""
    found: dict[str, Any] | None = run["report"]["details"][moment][kind]
    return found and {name: found[name] for name in ("success", "ci95")}


def side_by_side(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over the seeds of each engine."""
    found: dict[str, Any] = {}
    for engine in dict.fromkeys(run["engine"] for run in runs):
        own = [run for run in runs if run["engine"] == engine]
        figures: dict[str, Any] = {"seeds": [run["seed"] for run in own]}
        for kind in ("greedy", "sampled"):
            for moment in ("before", "after"):
                values = [value["success"] for run in own if (value := success(run, kind, moment))]
                figures[f"{kind}_{moment}"] = round(statistics.fmean(values), 4) if values else None
        figures["step_seconds"] = round(statistics.fmean(run["step_median"]["step_seconds"] for run in own), 2)
        figures["wall_seconds"] = round(statistics.fmean(run["wall_seconds"] for run in own), 1)
        found[engine] = figures
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--server", default="mcp_calculator")
    parser.add_argument("--engines", nargs="+", choices=["local", "vllm"], default=["local"])
    parser.add_argument("--engine-python", type=Path, help="The Python of an environment with vLLM.")
    parser.add_argument("--out", type=Path)
    options, arguments = parser.parse_known_args()
    words = {"local": ["--engine", "local"], "vllm": ["--engine", "vllm"]}
    if options.engine_python:
        words["vllm"].append(f"engine.python={options.engine_python.absolute()}")
    bare = seconds_of("-c", "pass")
    figures: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "mcp")},
        "arguments": arguments,
        "import_seconds": round(seconds_of("-c", "import mcp_rl") - bare, 3),
        "help_seconds": seconds_of("-m", "mcp_rl", "--help"),
    }
    runs: list[dict[str, Any]] = []
    for seed in options.seeds:
        for engine in options.engines:
            runs.append({"engine": engine, **run(seed, options.server, [*words[engine], *arguments])})
            print(table(runs[-1:]), flush=True)
            figures |= {"means": side_by_side(runs), "runs": runs}
            if options.out:
                options.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(table(runs))
    print(
        f"import mcp_rl: {figures['import_seconds']} s beyond a bare Python, mcp-rl --help: {figures['help_seconds']} s"
    )


if __name__ == "__main__":
    main()
