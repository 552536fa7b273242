"""Run the checks, each in its own process, and write their outcomes."""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import torch

import benchmarks.gpu_check as package
from benchmarks.gpu_check.setting import CHECKS, DRY, REAL, ROOT, Check, Failed, Figures, Setting, Skipped
from mcp_rl.system.durable import write_atomically

LONGER = {"two_gpus": 2, "run_killed": 4}
"""Checks that start several runs with vLLM, and the factors on their time limit."""


@dataclass
class Outcome:
    """The outcome of a check."""

    name: str
    about: str
    status: str = "passed"
    reason: str | None = None
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)

    def line(self) -> str:
        """Return the outcome as a line for the user."""
        shown = {
            key: value for key, value in self.figures.items() if isinstance(value, float | str) and key != "traceback"
        }
        told = ", ".join(f"{key} {v:.4g}" if isinstance(v, float) else f"{key} {v}" for key, v in shown.items())
        return f"{self.name:<20} {self.status:<8} {self.seconds:6.1f} s  {self.reason or told}"


def _child(function: Check, outcome: Outcome, setting: Setting, answer: Connection) -> None:
    """Run a check and send its outcome."""
    try:
        outcome.figures = function(setting)
    except Skipped as skipped:
        outcome.status, outcome.reason = "skipped", str(skipped)
    except Failed as failed:
        outcome.status, outcome.reason = "failed", str(failed.args[0])
        outcome.figures = failed.args[1] if len(failed.args) > 1 else {}
    except Exception as error:
        outcome.status, outcome.reason = "failed", f"{type(error).__name__}: {error}"[:2000]
        outcome.figures = {"traceback": traceback.format_exc()[-4000:]}
    answer.send(asdict(outcome))
    answer.close()


def run_check(name: str, setting: Setting, limit: float) -> Outcome:
    """Run a check in its own process, which is killed with everything that it started when its time is over."""
    # A process that has used CUDA cannot fork, and bitsandbytes uses it when PEFT imports it.
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    here, there = context.Pipe(duplex=False)
    outcome = Outcome(name, CHECKS[name].__doc__ or "")
    child = context.Process(target=_child, args=(CHECKS[name], outcome, setting, there), name=name)
    began = time.monotonic()
    with _environment(setting):
        child.start()
    there.close()
    try:
        if here.poll(limit):
            outcome = Outcome(**here.recv())
        else:
            outcome.status, outcome.reason = "failed", f"it was not done in {limit:.0f} s"
    except EOFError:
        child.join(10)
        outcome.status, outcome.reason = "failed", f"its process died with exit code {child.exitcode}"
    finally:
        _end(child.pid)
        child.join()
        here.close()
    outcome.seconds = round(time.monotonic() - began, 2)
    return outcome


@contextlib.contextmanager
def _environment(setting: Setting) -> Iterator[None]:
    """Set the environment that a check's process sees from its first import on."""
    given = {"HF_HUB_OFFLINE": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if setting.dry_run else {})
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end(pid: int | None) -> None:
    """Kill a check and the runs and servers that it has started, which would disturb the next check."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def versions() -> dict[str, str | None]:
    """Return the versions of Python, the packages and CUDA."""
    packages = {name: version(name) for name in ("torch", "transformers", "peft")}
    return {"python": platform.python_version(), **packages, "cuda": torch.version.cuda}


def driver() -> str | None:
    """Return the version of the GPU's driver; None without one."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")[0]
    return None


def commit() -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.strip()
    return None


def outcomes(setting: Setting, wanted: Sequence[str], limit: float) -> Iterator[Outcome]:
    """Yield the outcomes of all checks, one after another; those not in `wanted` are skipped."""
    for name, function in CHECKS.items():
        if name in wanted:
            yield run_check(name, setting, limit * LONGER.get(name, 1))
        else:
            yield Outcome(name, function.__doc__ or "", "skipped", "it was not asked for")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks and write the JSON; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=(package.__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, help="file to write; by default benchmarks/results/gpu_check.json, and none in a dry run"
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(CHECKS), default=list(CHECKS), help="checks to run; all by default"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each check")
    parser.add_argument("--dry-run", action="store_true", help="use small shapes on the CPU, even with a GPU")
    given = parser.parse_args(arguments)
    setting = DRY if given.dry_run or not torch.cuda.is_available() else REAL
    if setting.dry_run:
        print("No CUDA device is used: a dry run, small shapes on the CPU.", file=sys.stderr)
    out = given.out or (None if setting.dry_run else ROOT / "benchmarks" / "results" / "gpu_check.json")
    found: list[Outcome] = []
    try:
        for outcome in outcomes(setting, given.only, given.limit):
            print(outcome.line(), file=sys.stderr, flush=True)
            found.append(outcome)
            if out is not None:  # the figures so far stay, whatever happens next
                write_atomically(out, _text(setting, found).encode())
    except KeyboardInterrupt:
        print("Interrupted: the remaining checks are not in the result.", file=sys.stderr)
        return 130
    if out is None:
        print(_text(setting, found), end="")
    else:
        print(f"Written to {out}.", file=sys.stderr)
    return 1 if any(outcome.status == "failed" for outcome in found) else 0


def _text(setting: Setting, found: Sequence[Outcome]) -> str:
    """Return the result as JSON."""
    told = next((outcome.figures for outcome in found if outcome.name == "device"), {})
    result = {
        "dry_run": setting.dry_run,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "device": "cpu" if setting.dry_run else told.get("name", "cuda"),
        "driver": None if setting.dry_run else driver(),
        "versions": versions(),
        "failed": [outcome.name for outcome in found if outcome.status == "failed"],
        "checks": {outcome.name: asdict(outcome) for outcome in found},
    }
    return json.dumps(result, indent=2, default=str) + "\n"
