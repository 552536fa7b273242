"""Runs the training command many times, each in a fork of one process that has imported everything.

`python -m tests.killing.lives FOLDER` reads a JSON object a line, {"arguments", "output", "death", "file_bytes"},
forks, runs `mcp-rl` with these arguments in the child, and answers {"status", "seconds"}: the exit code, or -9. `death`
says how the child is killed: null (not at all), {"kind": "time", "seconds"}, {"kind": "tool" or "judge", "count"} (by
the world, in the middle of that call), or {"kind": "file", "part", "count"}: right before the count-th change to a file
of the run whose path contains `part`, such as opening it for writing, renaming or removing it. `file_bytes` is the
largest size that a file may reach (null: no limit), which looks like a full disk to code that writes a large file.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
WRITES = os.O_WRONLY | os.O_RDWR


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork needs a process without threads
    folder = Path(sys.argv[1])
    _import_everything()
    gc.freeze()
    print("ready", flush=True)
    known = folder / "imported.json"
    for line in sys.stdin:
        asked = json.loads(line)
        _import(json.loads(known.read_bytes()) if known.exists() else [])  # modules that earlier lives imported
        assert len(list(Path("/proc/self/task").iterdir())) == 1
        began = time.perf_counter()
        if (child := os.fork()) == 0:
            _live(asked, folder, known)
        if (death := asked["death"]) and death["kind"] == "time":
            time.sleep(death["seconds"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        answer = {"status": os.waitstatus_to_exitcode(status), "seconds": time.perf_counter() - began}
        print(json.dumps(answer), flush=True)


def _import_everything() -> None:
    """Import all that a life needs, and draw no page, which takes longer than all the rest of a life."""
    from mcp_rl.backends.base.base_model import load_learner
    from mcp_rl.config import TINY, TrainConfig
    from mcp_rl.inference.apis.chat_client import import_litellm

    import_litellm()
    _import(["mcp_rl.runs.train", "mcp_rl.runs.steps.trainer"])
    load_learner(TINY, TrainConfig())  # PEFT and transformers import when they are used
    importlib.import_module("mcp_rl.cli.train").__dict__["write_page"] = lambda *about, **more: None


def _import(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _live(asked: dict[str, Any], folder: Path, known: Path) -> None:
    """Run the command in the child. Global random generators are seeded anew, so a dependence on them would show."""
    import numpy
    import torch

    from mcp_rl.cli import main as command

    output = os.open(asked["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    random.seed()
    numpy.random.seed(random.randrange(2**32))
    torch.manual_seed(random.randrange(2**32))
    before, status = set(sys.modules), 1
    if (most := asked["file_bytes"]) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    _arm(asked["death"], folder)
    try:
        status = command(asked["arguments"])
        new = {name for name in set(sys.modules) - before if not name.startswith("mcp_rl_plugin")}
        aside = known.with_suffix(".tmp")
        aside.write_text(json.dumps(sorted(new)))
        aside.rename(known)  # a kill leaves no half of it
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _arm(death: dict[str, Any] | None, folder: Path) -> None:
    armed = folder / "armed.json"
    armed.unlink(missing_ok=True)
    match death:
        case {"kind": "tool" | "judge"}:
            aside = folder / "armed.tmp"
            aside.write_text(json.dumps({**death, "pid": os.getpid()}))
            aside.rename(armed)
        case {"kind": "file", "part": part, "count": count}:
            left = [int(count)]

            def watch(event: str, about: tuple[Any, ...]) -> None:
                writes = event == "open" and isinstance(about[2], int) and about[2] & WRITES
                if not (writes or event in CHANGES) or isinstance(about[0], int):
                    return
                path = os.fsdecode(about[0])
                if "/models/" in path and part in path:
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(watch)


if __name__ == "__main__":
    main()
