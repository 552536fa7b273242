"""Measure what the digests of a run cost: the share of its steps, and the time to compare all of them.

    python -m benchmarks.sealing --steps 20

A real run on the bundled calculator is timed in one process: the seconds of its steps, and those of everything that
`run_directory.py` does for `seal.json` and the chain in the whole run.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

import mcp_rl.run_directory as disk
from mcp_rl.config.load import load_config
from mcp_rl.run_directory import RunDirectory, read_history
from mcp_rl.runs.train import run_training

TIMED = ("digest_of", "linked", "file_digest", "read_seal", "relinked", "follow_chain")


class Stopwatch:
    """Adds up the seconds of functions, the outermost of nested ones only."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            if self._inside:
                return function(*args, **options)
            began, self._inside = time.perf_counter(), True
            try:
                return function(*args, **options)
            finally:
                self.seconds, self._inside = self.seconds + time.perf_counter() - began, False

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("settings", nargs="*", help="KEY=VALUE of the run")
    asked = parser.parse_args()
    watch = Stopwatch()
    for name in TIMED:
        setattr(disk, name, watch.around(getattr(disk, name)))
    disk.Seal.write = watch.around(disk.Seal.write)  # type: ignore[method-assign]
    disk.Seal.settled = watch.around(disk.Seal.settled)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        options = {"server": ("mcp_calculator",), "transport": "stdio", "steps": asked.steps, "name": "sealed"}
        options |= {"output_dir": Path(folder), "evaluation.subset": 0, "evaluation.samples": 1}
        config = load_config(overrides=tuple(asked.settings), options=options)
        anyio.run(run_training, config)
        lines = [line for line in read_history(config.run_dir) if line["split"] == "train"]
        began = time.perf_counter()
        assert RunDirectory(config.run_dir).check_whole() == []
        checked = time.perf_counter() - began
        size = sum(path.stat().st_size for path in config.run_dir.rglob("*") if path.is_file())
    steps = sum(line["step_seconds"] for line in lines)
    found = {
        "steps": len(lines),
        "step_seconds": round(steps / len(lines), 3),
        "sealing_seconds_of_the_run": round(watch.seconds, 4),
        "sealing_share_of_steps": round(watch.seconds / steps, 5),
        "checking_seconds": round(checked, 4),
        "megabytes": round(size / 1e6, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
