"""Measure what checking costs: digests, redaction and both watchdogs, as shares of a run.

    python -m benchmarks.checking --steps 20 --out benchmarks/results/checking.json

A real run on the bundled calculator is timed in one process, in processor time of each thread: what `run_directory.py`
does for `seal.json` and the chain, what `redaction.py` does with all that the server sends, what the thread computes
that watches the event loop, and what the watchdog of the server's process computes and keeps in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import mcp_rl.run_directory as disk
import mcp_rl.system.held_loop as loops
from mcp_rl.config.load import load_config
from mcp_rl.run_directory import RunDirectory, read_history
from mcp_rl.runs.train import run_training
from mcp_rl.system.redaction import Redaction

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
            began, self._inside = time.thread_time(), True
            try:
                return function(*args, **options)
            finally:
                self.seconds, self._inside = self.seconds + time.thread_time() - began, False

        return timed


class Watchdogs:
    """The processes that watch over servers: their processor time and memory, looked at while they run."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.megabytes: list[float] = []

    def look(self) -> None:
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if "watchdog.py" in " ".join(process.cmdline()):
                    times, memory = process.cpu_times(), process.memory_full_info()
                    self.seconds[process.pid] = times.user + times.system
                    self.megabytes.append(getattr(memory, "uss", memory.rss) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    parser.add_argument("settings", nargs="*", help="KEY=VALUE of the run")
    asked = parser.parse_args()
    sealing, redacting, watching, dogs = Stopwatch(), Stopwatch(), Stopwatch(), Watchdogs()
    for name in TIMED:
        setattr(disk, name, sealing.around(getattr(disk, name)))
    for kind, method, watch in (
        (disk.Seal, "write", sealing),
        (disk.Seal, "settled", sealing),
        (Redaction, "text", redacting),
        (Redaction, "value", redacting),
        (loops._Watcher, "watch", watching),
    ):
        setattr(kind, method, watch.around(getattr(kind, method)))
    append = disk.RunDirectory.append_history
    disk.RunDirectory.append_history = lambda *a, **o: (dogs.look(), append(*a, **o))[1]  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        options = {"server": ("mcp_calculator",), "transport": "stdio", "steps": asked.steps, "name": "checked"}
        options |= {"output_dir": Path(folder), "evaluation.subset": 0, "evaluation.samples": 1}
        config = load_config(overrides=tuple(asked.settings), options=options)
        used = time.process_time()
        loops.run_watched(run_training, config)
        used = time.process_time() - used
        lines = [line for line in read_history(config.run_dir) if line["split"] == "train"]
        began = time.perf_counter()
        assert RunDirectory(config.run_dir).check_whole() == []
        checked = time.perf_counter() - began
        size = sum(path.stat().st_size for path in config.run_dir.rglob("*") if path.is_file())
    steps = sum(line["step_seconds"] for line in lines)
    found = {
        "steps": len(lines),
        "step_seconds": round(steps / len(lines), 3),
        "processor_seconds_of_the_run": round(used, 2),
        "shares_of_processor_time": {
            "digests": round(sealing.seconds / used, 5),
            "redaction": round(redacting.seconds / used, 5),
            "watcher of the event loop": round(watching.seconds / used, 5),
            "watchdog of the server": round(sum(dogs.seconds.values()) / used, 5),
        },
        "watchdog_megabytes": round(max(dogs.megabytes, default=0), 1),
        "seconds_to_compare_all_digests": round(checked, 4),
        "megabytes_of_the_run": round(size / 1e6, 1),
    }
    print(json.dumps(found, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
