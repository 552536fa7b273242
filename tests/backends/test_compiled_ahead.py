"""The built-in model's passes are compiled in processes, while tasks are made."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mcp_rl.backends.processes import compiled_ahead
from mcp_rl.backends.processes.compiled_ahead import Compiling
from mcp_rl.system.measured import remember

CALLED = """
import json
from mcp_rl.backends.processes.compiled_ahead import compile_pass
from mcp_rl.inference import drafts, sampler
from mcp_rl.inference.native import model as sampling
from mcp_rl.learning.native import model as learning
compile_pass("sampling")
compile_pass("update")
rooms = sampling, sampler, drafts, learning
found = {name: len(each.overloads) for room in rooms for name, each in vars(room).items() if hasattr(each, "overloads")}
print(json.dumps(found))
"""


def test_every_function_that_a_run_calls_is_compiled() -> None:
    done = subprocess.run([sys.executable, "-c", CALLED], capture_output=True, check=True, text=True)
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert {"into", "through", "finish", "decode", "draw_rows", "learn_all"} <= set(compiled)
    assert {"attend", "attend_back", "outward_back"} <= set(compiled)
    others = {"logprobs_of", "learn", "guess"}  # only where a client asks, or torch computes
    assert {name for name, kinds in compiled.items() if kinds != 1} <= others


async def test_its_process_ends_with_the_run_and_says_that_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiling = Compiling("update")
    await compiling.begin(tmp_path)
    started = compiling._child.pid
    assert psutil.pid_exists(started)
    await compiling.close()
    assert not psutil.pid_exists(started)

    again = Compiling("update")
    await again.begin(tmp_path)
    await again.finished()
    assert again._child.returncode == 0, again._child.tail()
    third = Compiling("update")
    await third.begin(tmp_path)
    assert third._child is None  # it is known


async def test_other_code_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remember("compiled", compiled_ahead._key("update") | {"code": "another"}, {})
    compiling = Compiling("update")
    await compiling.begin(tmp_path)
    assert compiling._child is not None
    await compiling.close()
