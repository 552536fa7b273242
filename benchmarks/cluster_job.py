"""Compare the main job on one machine and on a cluster of three nodes, with an engine and a tool node on each.

    python -m benchmarks.cluster_job [--seeds 0,1,2] [--steps 80] [--engines 3]

Each seed is trained once with `--backend local` and once with `--backend ray`. One JSON object: held-out success before
and after, the times, and the files that differ.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.ray_nodes import left_of, ray_nodes
from tests.killing.ground import differences, record

ROOT = Path(__file__).parents[1]


def train(folder: Path, name: str, *more: str) -> tuple[Path, float]:
    """Train a run; return its folder and the seconds that it took."""
    command = [sys.executable, "-m", "mcp_rl", "train", "--server", "mcp_calculator", "--transport", "stdio"]
    began = time.monotonic()
    given = ("--output-dir", str(folder), "--name", name, "tools.max_servers=2", *more)
    done = subprocess.run([*command, *given], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "default" / "models" / name, round(time.monotonic() - began, 1)


def success(run: Path) -> dict[str, Any]:
    """Return the greedy success on held-out scenarios before and after, and the totals of the run."""
    report = json.loads((run / "report.json").read_bytes())
    val, totals = report["val"], report["train"]
    greedy = {when: val[when].get("greedy_success", val[when].get("success")) for when in ("before", "after")}
    return {**greedy, "rollouts": totals["rollouts"], "faults": totals["faults"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--engines", type=int, default=3)
    asked = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ray_nodes(tools=3) as nodes:
        for seed in asked.seeds.split(","):
            shared = ("--seed", seed, "--steps", str(asked.steps))
            one, alone = train(Path(folder), f"local-{seed}", *shared)
            parts = (f"ray.engines={asked.engines}", "ray.tool_nodes=3", "ray.patience=90")
            address = ("--backend", "ray", "--ray-address", nodes.address)
            other, together = train(Path(folder), f"ray-{seed}", *shared, *address, *parts)
            differing = differences(record(one), record(other))
            found.append(
                {
                    "seed": int(seed),
                    "local": {**success(one), "seconds": alone},
                    "ray": {**success(other), "seconds": together},
                    "files": len(record(one)),
                    "differing": [line[:200] for line in differing],
                    "left": left_of(nodes),
                }
            )
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    about = {"steps": asked.steps, "engines": asked.engines, "tool_nodes": 3}
    print(json.dumps({**about, "seeds": found, "machine": f"{os.cpu_count()} CPUs, {sys.platform}"}, indent=2))


if __name__ == "__main__":
    main()
