"""Runs the checks, each in a process of its own, and writes what became of them."""

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

import torch

import benchmarks.gpu_check as package
from benchmarks.gpu_check.setting import CHECKS, DRY, REAL, ROOT, Failed, Figures, Setting, Skipped


@dataclass
class Outcome:
    """What became of a check."""

    name: str
    about: str
    status: str = "passed"
    reason: str | None = None
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)

    def line(self) -> str:
        """For a person."""
        shown = {
            key: value for key, value in self.figures.items() if isinstance(value, float | str) and key != "traceback"
        }
        told = ", ".join(f"{key} {v:.4g}" if isinstance(v, float) else f"{key} {v}" for key, v in shown.items())
        return f"{self.name:<20} {self.status:<8} {self.seconds:6.1f} s  {self.reason or told}"


def _child(name: str, setting: Setting, answer: Connection) -> None:
    """Run one check and send what became of it."""
    outcome = Outcome(name, CHECKS[name].__doc__ or "")
    os.environ["HF_HUB_OFFLINE"] = "1"
    if setting.dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        outcome.figures = CHECKS[name](setting)
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
    """One check in a process of its own, which is killed when its time is over."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(name, setting, there), name=name)
    began = time.monotonic()
    child.start()
    there.close()
    outcome = Outcome(name, CHECKS[name].__doc__ or "", "failed")
    try:
        if here.poll(limit):
            outcome = Outcome(**here.recv())
        else:
            outcome.reason = f"it was not done in {limit:.0f} s"
    except EOFError:
        child.join(10)
        outcome.reason = f"its process died with exit code {child.exitcode}"
    finally:
        child.kill()
        child.join()
        here.close()
    outcome.seconds = round(time.monotonic() - began, 2)
    return outcome


def versions() -> dict[str, str | None]:
    """Of what is computed with."""
    packages = {name: version(name) for name in ("torch", "transformers", "peft")}
    return {"python": platform.python_version(), **packages, "cuda": torch.version.cuda}


def driver() -> str | None:
    """Version of the GPU's driver; None where there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")[0]
    return None


def has_cuda() -> bool:
    """Asked in another process: one that has touched CUDA cannot fork."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return bool(pool.apply(torch.cuda.is_available))


def commit() -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.strip()
    return None


def outcomes(setting: Setting, wanted: Sequence[str], limit: float) -> Iterator[Outcome]:
    """One after another; what was not wanted is skipped."""
    for name, function in CHECKS.items():
        if name in wanted:
            yield run_check(name, setting, limit)
        else:
            yield Outcome(name, function.__doc__ or "", "skipped", "it was not asked for")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, write the JSON; 1 where one failed."""
    parser = argparse.ArgumentParser(description=(package.__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, help="the file to write; benchmarks/results/gpu_check.json, or dry runs none"
    )
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS), help="run these checks alone")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each check")
    parser.add_argument("--dry-run", action="store_true", help="small shapes on the CPU, whatever there is")
    given = parser.parse_args(arguments)
    setting = DRY if given.dry_run or not has_cuda() else REAL
    if setting.dry_run:
        print("No CUDA device is used: a dry run, small shapes on the CPU.", file=sys.stderr)
    found = []
    for outcome in outcomes(setting, given.only, given.limit):
        print(outcome.line(), file=sys.stderr, flush=True)
        found.append(outcome)
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
    text = json.dumps(result, indent=2) + "\n"
    out = given.out or (None if setting.dry_run else ROOT / "benchmarks" / "results" / "gpu_check.json")
    if out is None:
        print(text, end="")
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
        print(f"Written to {out}.", file=sys.stderr)
    return 1 if result["failed"] else 0
