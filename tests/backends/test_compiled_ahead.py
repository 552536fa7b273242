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
compile_pass("sampling")
compile_pass("update")
import sys
assert "torch" not in sys.modules
from mcp_rl.inference import drafts, sampler
from mcp_rl.inference.native import model as sampling
from mcp_rl.learning.native import model as learning
rooms = sampling, sampler, drafts, learning
compiled = {name: each for room in rooms for name, each in vars(room).items() if hasattr(each, "overloads")}
before = {name: len(each.overloads) for name, each in compiled.items()}

import numpy as np
from mcp_rl.backends.base.base_model import make_learner, open_base
from mcp_rl.backends.base.options import plan_loading
from mcp_rl.config import TINY, TrainConfig, UnslothConfig
from mcp_rl.inference.native.guesses import CONTEXT
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.probe import decodes_as_it_prefills, is_batch_invariant
from mcp_rl.learning.measure import forward_and_back
from mcp_rl.learning.samples import Sample
config = TrainConfig()
base = open_base(plan_loading(TINY, UnslothConfig(use=False), config))
assert decodes_as_it_prefills(Policy(base.model)) and is_batch_invariant(Policy(base.model))
drafts.Drafts().take_in(np.zeros((1, CONTEXT), np.int64), np.zeros(1, np.int64))
learner, samples = make_learner(base.model, TINY, config, plan=base.plan), []
for own in (3, 4):
    tokens, at, numbers = [*range(40), *[own] * 5], np.arange(39, 44), np.ones(5, np.float32)
    more = dict(targets=np.full(5, own, np.int64), logprobs=-numbers, weights=numbers, advantage=1.0, group=0)
    samples.append(Sample(tokens=tokens, at=at, **more))
forward_and_back(learner, samples)()
print(json.dumps({name: [before[name], len(each.overloads)] for name, each in compiled.items()}))
"""


def test_every_function_that_a_run_calls_is_compiled_once_and_ahead() -> None:
    done = subprocess.run([sys.executable, "-c", CALLED], capture_output=True, check=True, text=True)
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert {"into", "out_of", "logits_of", "decode", "draw_rows", "learn_all"} <= set(compiled)
    assert {"attend", "attend_back", "outward_back"} <= set(compiled)
    others = {"logprobs_of", "learn", "guess"}  # only where a client asks, or torch computes
    assert {name for name, kinds in compiled.items() if kinds != [1, 1]} <= others


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
