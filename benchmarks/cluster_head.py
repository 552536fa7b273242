"""Kill the head node of a Ray cluster within a run, and let the same command end the run on another cluster.

    python -m benchmarks.cluster_head

One JSON object: what the command said and how long it took to end, what was left, and the files that differ from those
of a run on one machine. The second cluster is started by a process of its own, as Ray keeps the first one's state.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster_kills import LIFE_SECONDS, Ground
from benchmarks.ray_nodes import left_of, ray_nodes
from tests.killing.ground import differences, record

ROOT = Path(__file__).parents[1]
KILLED_AFTER = 3
"""Steps that the run has learned when its head node is killed."""


def first(folder: Path) -> dict[str, Any]:
    """Begin the run, kill the head node, and wait for the command's end."""
    with ray_nodes(tools=2) as nodes:
        ground = Ground(folder, nodes, 1)
        driver = ground.start("run")
        deadline = time.monotonic() + LIFE_SECONDS
        while ground.learned("run") < KILLED_AFTER:
            assert driver.poll() is None and time.monotonic() < deadline, ground.said("run")
            time.sleep(0.05)
        began = time.monotonic()
        nodes.kill_head()
        status = driver.wait(LIFE_SECONDS)
        seconds = round(time.monotonic() - began, 1)
        said = [line for line in ground.said("run").splitlines() if "head node" in line]
        return {"exit_code": status, "seconds": seconds, "said": said, "left": left_of(nodes)}


def second(folder: Path) -> dict[str, Any]:
    """End the run on a new cluster, and compare it with one on this machine alone."""
    with ray_nodes(tools=2) as nodes:
        ground = Ground(folder, nodes, 1)
        status = ground.start("run").wait(LIFE_SECONDS)
        return {
            "exit_code": status,
            "differences": differences(ground.whole(), record(ground.run("run"))),
            "left": left_of(nodes),
        }


def main() -> None:
    if sys.argv[1:]:
        print(json.dumps({"first": first, "second": second}[sys.argv[1]](Path(sys.argv[2]))))
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        found = {
            part: json.loads(
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.cluster_head", part, folder],
                    cwd=ROOT,
                    check=True,
                    stdout=subprocess.PIPE,
                ).stdout
            )
            for part in ("first", "second")
        }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
