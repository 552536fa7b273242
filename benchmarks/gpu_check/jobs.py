"""Whole runs, as a user starts them."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_check.setting import ROOT, Failed, Figures, Setting, check


@check
def main_job(setting: Setting) -> Figures:
    """`mcp-rl train` with the built-in model, stopped and continued once, where the device is."""
    steps = 1 if setting.dry_run else 4
    small = ["scenarios.count=60", "scenarios.val=20", "evaluation.samples=1", "evaluation.greedy=false"]
    small += ["rollout.groups_per_step=4", "rollout.group_size=8", "train.checkpoint_every=1"]
    large = ["scenarios.val=60", "evaluation.samples=1"]
    with tempfile.TemporaryDirectory() as place:
        runs = []
        for wanted in (steps, 2 * steps):
            words = ["train", "--server", "mcp_calculator", "--output-dir", place, "--steps", str(wanted), "--json"]
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "mcp_rl", *words, *(small if setting.dry_run else large)],
                capture_output=True,
                text=True,
                cwd=ROOT,
            )
            if done.returncode:
                raise Failed(f"it ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", {})
            runs.append(json.loads(done.stdout.splitlines()[-1]) | {"session_seconds": time.perf_counter() - began})
        folder = Path(runs[-1]["run_dir"])
        history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    train = [line for line in history if line["split"] == "train"]
    names = ("ratio_mean", "logprob_difference_mean", "logprob_difference_max", "entropy", "grad_norm", "step_seconds")
    found = {
        "steps": [line["step"] for line in train],
        "success_before": runs[-1]["val"]["before"]["success"],
        "success_after": runs[-1]["val"]["after"]["success"],
        "session_seconds": [run["session_seconds"] for run in runs],
        **{name: [line.get(name) for line in train] for name in names},
    }
    if found["steps"] != list(range(1, 2 * steps + 1)):
        raise Failed(f"the run that was continued has the steps {found['steps']}", found)
    return found
