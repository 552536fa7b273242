"""Check that memory is given back when the learner's process, vLLM or a whole run is killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import psutil

from benchmarks.gpu_check.device_memory import settled, used_gb
from benchmarks.gpu_check.jobs import as_user, job_words
from benchmarks.gpu_check.models import base_folder
from benchmarks.gpu_check.setting import ROOT, Failed, Figures, Setting, check
from benchmarks.gpu_check.with_vllm import SERVER_SHARE, local_settings, paired, run_async
from mcp_rl.backends.plan.gpus import read_gpus

MOST_LEFT_GB = 0.3
"""Most GB that may be used beyond the value before, by other processes or the driver."""


@check
def learner_killed(setting: Setting) -> Figures:
    """The learner's process killed with SIGKILL: an error that names it, no process left, its memory free."""
    return run_async(_learner_killed, setting)


async def _learner_killed(setting: Setting) -> Figures:
    from mcp_rl.backends.processes.child import ChildLearner
    from mcp_rl.errors import EngineStop

    with tempfile.TemporaryDirectory() as place:
        folder = base_folder(setting.half, setting, Path(place) / "base")
        before = used_gb()
        learner = ChildLearner(local_settings(setting, folder, Path(place) / "run", None), sampling=True)
        began = time.perf_counter()
        await learner.open()
        found: Figures = {"open_seconds": time.perf_counter() - began, "before_gb": before, "open_gb": used_gb()}
        try:
            pid = learner.process.child.pid
            os.kill(pid, signal.SIGKILL)
            try:
                await learner.token_logprobs([[5, 6, 7]])
            except EngineStop as error:
                found["said"] = str(error).partition(". ")[0]
            else:
                raise Failed("the learner was killed, and no error was raised", found)
        finally:
            await learner.close()
    return _given_back(found, [pid])


@check
def vllm_killed(setting: Setting) -> Figures:
    """vLLM killed with SIGKILL and not started again: all its processes are gone, and its memory is free."""
    return run_async(_vllm_killed, setting, needs_vllm=True)


async def _vllm_killed(setting: Setting) -> Figures:
    async with paired(setting, "split") as pair:
        awake = used_gb()
        server = psutil.Process(pair.sampler.server.pid)
        every = [server, *server.children(recursive=True)]
        server.send_signal(signal.SIGKILL)
        found: Figures = {"awake_gb": awake, "processes": len(every)}
        if left := await anyio.to_thread.run_sync(_outlive, [process.pid for process in every], 15.0):
            raise Failed(f"{len(left)} of {len(every)} processes of vLLM outlived it", found)
        if awake is not None:  # before the restarted server takes it again
            expected = SERVER_SHARE * read_gpus()[0].memory / 1e9
            after, seconds = settled(lambda used: used <= awake - 0.8 * expected, seconds=10)
            found |= {"after_gb": after, "free_again_seconds": seconds}
            if after is None or after > awake - 0.8 * expected:
                raise Failed("vLLM was killed, and its memory was not given back", found)
    return found


@check
def run_killed(setting: Setting) -> Figures:
    """A run killed with SIGKILL in the middle, several times: no process and no memory of it remains."""
    times = 1 if setting.dry_run else 5
    with tempfile.TemporaryDirectory() as place:
        folder = base_folder(setting.half, setting, Path(place) / "base")
        found: Figures = {"kills": times, "before_gb": used_gb(), "processes": [], "gone_seconds": []}
        for number in range(times):
            words = job_words(setting, Path(place), str(folder), steps=1000, name=f"run{number}")
            log = Path(place) / f"log{number}"
            with log.open("wb") as out:
                run = subprocess.Popen(
                    [sys.executable, "-m", "mcp_rl", *words], cwd=ROOT, stdout=out, stderr=out, env=as_user()
                )
            history = Path(place) / "default" / "models" / f"run{number}" / "history.jsonl"
            deadline = time.monotonic() + 400
            while not history.exists() and run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            if run.poll() is not None:
                said = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise Failed(f"the run ended by itself, with {run.returncode}: {said}", found)
            if not history.exists():
                run.kill()
                raise Failed("the run took no step in 400 s", found)
            children = psutil.Process(run.pid).children(recursive=True)
            run.kill()
            run.wait()
            began = time.monotonic()
            left = _outlive([child.pid for child in children], 10)
            found["processes"].append(len(children))
            found["gone_seconds"].append(time.monotonic() - began)
            if left:
                raise Failed(f"{len(left)} of {len(children)} processes outlived the run", found)
    return _given_back(found, [])


def _given_back(found: Figures, processes: Sequence[int]) -> Figures:
    """Return the figures with the memory after a kill. Raises Failed if a process lives or memory is not free."""
    if left := _outlive(processes, 15):
        raise Failed(f"{len(left)} processes outlived the kill", found)
    before = found.get("before_gb")
    if before is None:
        return found | {"after_gb": used_gb()}
    after, seconds = settled(lambda used: used <= before + MOST_LEFT_GB)
    found |= {"after_gb": after, "free_again_seconds": seconds}
    if after is not None and after > before + MOST_LEFT_GB:
        raise Failed(f"{after - before:.1f} GB were not given back", found)
    return found


def _outlive(processes: Sequence[int], seconds: float) -> list[int]:
    """Return the processes that are still alive after a number of seconds."""
    deadline = time.monotonic() + seconds
    alive = list(processes)
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = [pid for pid in alive if _alive(pid)]
    return alive


def _alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
