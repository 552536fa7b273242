"""Check whole runs, as a user starts them."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu_check.models import base_folder
from benchmarks.gpu_check.setting import ROOT, Failed, Figures, Setting, Skipped, check


@check
def main_job(setting: Setting) -> Figures:
    """`mcp-rl train` with the built-in model, stopped and continued once, on this device."""
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


def as_user() -> dict[str, str]:
    """Return the environment without this package's allocator setting, which vLLM's sleep does not work with."""
    return {name: value for name, value in os.environ.items() if name != "PYTORCH_ALLOC_CONF"}


def job_words(setting: Setting, place: Path, base: str, *, steps: int, name: str) -> list[str]:
    """Return `mcp-rl train` on a random base, with a reward that still differs, so that there is something to learn."""
    words = ["train", "--server", "mcp_calculator", "--base-model", base, "--backend", "local", "--steps", str(steps)]
    words += ["--output-dir", str(place), "--name", name, "--plugin", str(Path(__file__).with_name("odd_tokens.py"))]
    words += ["--json", 'reward.weights={"odd_tokens"=1.0}', "scenarios.count=30", "scenarios.val=6"]
    words += ["evaluation.samples=1", "evaluation.greedy=false", "rollout.max_turn_tokens=24"]
    words += ["train.truncated=learn", "rollout.refills=0", "train.checkpoint_every=1", "scenarios.levels=spelled"]
    groups, size = (2, 4) if setting.dry_run else (8, 8)
    return [*words, f"rollout.groups_per_step={groups}", f"rollout.group_size={size}"]


@check
def random_job(setting: Setting) -> Figures:
    """`mcp-rl train --base-model … --backend local` for two steps on the 0.5B, with this machine's default choices."""
    with tempfile.TemporaryDirectory() as place:
        folder = base_folder(setting.half, setting, Path(place) / "base")
        began = time.perf_counter()
        words = job_words(setting, Path(place), str(folder), steps=2, name="random")
        done = subprocess.run(
            [sys.executable, "-m", "mcp_rl", *words], capture_output=True, text=True, cwd=ROOT, env=as_user()
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            raise Failed(f"it ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", {})
        run = Path(json.loads(done.stdout.splitlines()[-1])["run_dir"])
        history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        about = json.loads((run / "model.json").read_bytes())
    train = [line for line in history if line["split"] == "train"]
    loaded = about.get("loaded") or {}
    names = ("ratio_mean", "logprob_difference_mean", "grad_norm", "step_seconds", "rollout_seconds", "update_seconds")
    found: Figures = {
        "steps": [line["step"] for line in train],
        "seconds": seconds,
        "said": [line for line in done.stderr.splitlines() if "GPU" in line or "sampl" in line][:5],
        "loaded": {key: loaded.get(key) for key in ("loader", "quantisation", "dtype", "parameters")},
        **{name: [line.get(name) for line in train] for name in names},
    }
    if found["steps"] != [1, 2]:
        raise Failed(f"the run has the steps {found['steps']}", found)
    if not all(norm and norm > 0 for norm in found["grad_norm"]):
        raise Failed("nothing was learned: a gradient is zero", found)
    return found


@check
def two_gpus(setting: Setting) -> Figures:
    """`mcp-rl train` with two learners, one GPU each: by --learner-gpus, and by torchrun."""
    count = torch.cuda.device_count()
    if count < 2:
        raise Skipped(f"there {'is one GPU' if count == 1 else 'is no GPU'}, and it takes two")
    found: Figures = {"gpus": count}
    with tempfile.TemporaryDirectory() as place:
        folder = base_folder(setting.half, setting, Path(place) / "base")
        commands = {
            "learner_gpus": ([sys.executable, "-m", "mcp_rl"], ["--learner-gpus", "0,1"]),
            "torchrun": ([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "mcp_rl"], []),
        }
        for name, (command, more) in commands.items():
            words = [*job_words(setting, Path(place), str(folder), steps=2, name=name), *more]
            began = time.perf_counter()
            done = subprocess.run([*command, *words], capture_output=True, text=True, cwd=ROOT, env=as_user())
            if done.returncode:
                raise Failed(f"{name} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", found)
            history = (Path(place) / "default" / "models" / name / "history.jsonl").read_text().splitlines()
            train = [line for line in map(json.loads, history) if line["split"] == "train"]
            found[name] = {
                "seconds": time.perf_counter() - began,
                "steps": [line["step"] for line in train],
                "grad_norm": [line.get("grad_norm") for line in train],
                "update_seconds": [line.get("update_seconds") for line in train],
            }
            if found[name]["steps"] != [1, 2]:
                raise Failed(f"{name} has the steps {found[name]['steps']}", found)
    return found
