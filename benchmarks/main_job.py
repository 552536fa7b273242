"""The main job as a user starts it: success before and after, wall time and memory, for several seeds.

    python -m benchmarks.main_job --seeds 0 1 2 --out benchmarks/results/main_job.json

Each run is a process of its own in an empty folder, so the wall time holds everything: imports, the server's start,
exploring, both evaluations. Further arguments go to `mcp_rl.train`.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def run(seed: int, server: str, arguments: list[str]) -> dict[str, Any]:
    """One training run; its report and the wall time seen from outside."""
    command = [sys.executable, "-m", "mcp_rl.train", "--server", server, "--seed", str(seed), "--json", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.perf_counter() - began
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        whole = json.loads((Path(folder) / report["run_dir"] / "report.json").read_text())
    return {"seed": seed, "wall_seconds": round(seconds, 1), **report, "report": whole}


def seconds_of(*command: str) -> float:
    """The fastest of five runs of a short command."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return round(min(times), 3)


def table(runs: list[dict[str, Any]]) -> str:
    """A Markdown table, one row for each run."""

    def cell(moment: dict[str, Any]) -> str:
        low, high = moment["ci95"]
        return f"{100 * moment['success']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"

    rows = ["| seed | before | after | minutes | peak memory |", "|---|---|---|---|---|"]
    for r in runs:
        before, after = cell(r["val"]["before"]), cell(r["val"]["after"])
        rows.append(f"| {r['seed']} | {before} | {after} | {r['wall_seconds'] / 60:.1f} | {r['peak_rss_mb']:.0f} MB |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--server", default="mcp_calculator")
    parser.add_argument("--out", type=Path)
    options, arguments = parser.parse_known_args()
    runs = [run(seed, options.server, arguments) for seed in options.seeds]
    bare = seconds_of("-c", "pass")
    figures = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "mcp")},
        "arguments": arguments,
        "import_seconds": round(seconds_of("-c", "import mcp_rl") - bare, 3),
        "help_seconds": seconds_of("-m", "mcp_rl", "--help"),
        "runs": runs,
    }
    print(table(runs))
    print(
        f"import mcp_rl: {figures['import_seconds']} s beyond a bare Python, mcp-rl --help: {figures['help_seconds']} s"
    )
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
