"""A learner distributed over two processes: runs continue with any number of them, and a lost one is named."""

import os
import signal
import threading
import time
from pathlib import Path

import anyio
import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mcp_rl.backends.local import LocalBackend
from mcp_rl.config import PlacementConfig, TrainConfig
from mcp_rl.errors import CanaryError, EngineStop
from mcp_rl.model import TrainableModel
from tests.backends.test_local import CONFIG, make_model, play


async def train(
    run: Path, base: str, learners: int, steps: int, config: TrainConfig = CONFIG
) -> list[dict[str, float]]:
    """Continue a run for some steps; each step's batch follows from its number."""
    model = make_model(base, run)
    placement = PlacementConfig(learner_processes=learners)
    async with LocalBackend(in_process=True, config=config, placement=placement) as backend:
        await model.register(backend)
        if learners > 1:
            await check_that_what_all_refuse_is_said_once(backend, model)
        return [(await backend.train(model, await play(backend, backend.step))).metrics for _ in range(steps)]


async def check_that_what_all_refuse_is_said_once(backend: LocalBackend, model: TrainableModel[None]) -> None:
    """Check that an error which all ranks raise is raised once, and that learning can go on."""
    groups = await play(backend, backend.step)
    segment = groups[-1].trajectories[-1].segments[0]
    segment.logprobs = [value - 5.0 for value in segment.logprobs]
    with pytest.raises(CanaryError, match="Sampler and learner disagree"):
        await backend.train(model, groups)


def checkpoint(run: Path, step: int) -> Path:
    return run / "demo" / "models" / "calc-001" / "checkpoints" / f"{step:04d}"


def followers() -> list[psutil.Process]:
    """Return the processes that follow rank 0, without their watchdogs."""
    every = psutil.Process().children(recursive=True)
    return [process for process in every if "mcp_rl.backends.processes.follower" in process.cmdline()[1:4]]


def test_two_processes_continue_a_run_of_one_and_vice_versa(base: str, tmp_path: Path) -> None:
    known = anyio.run(train, tmp_path / "one", base, 1, 3)
    found = [anyio.run(train, tmp_path / "many", base, learners, 1)[0] for learners in (1, 2, 1)]
    assert followers() == []
    for own, other in zip(found, known, strict=True):
        assert own["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert own["trained_tokens"] == other["trained_tokens"]
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        ours, theirs = (load_file(checkpoint(tmp_path / run, 3) / name) for run in ("many", "one"))
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, atol=2e-4, rtol=1e-3)
    files = [{path.name for path in checkpoint(tmp_path / run, 3).iterdir()} for run in ("many", "one")]
    assert files[0] == files[1]


def test_full_weights_are_saved_whole_and_a_lost_rank_is_named(base: str, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"method": "full", "learning_rate": 1e-3, "kl": 0.01})

    async def run() -> None:
        model = make_model(base, tmp_path / "two")
        placement = PlacementConfig(learner_processes=2)
        async with LocalBackend(in_process=True, config=config, placement=placement) as backend:
            await model.register(backend)
            await backend.train(model, await play(backend, 0))
            groups = await play(backend, 1)
            (follower,) = followers()
            os.kill(follower.pid, signal.SIGSTOP)  # so that rank 0 is in the middle of an update when it dies
            threading.Timer(0.5, os.kill, (follower.pid, signal.SIGKILL)).start()
            began = time.monotonic()
            with pytest.raises(EngineStop, match=r"Learner 1 \(of 0 to 1\) was killed in an update") as caught:
                await backend.train(model, groups)
            assert "learner-1.log" in str(caught.value)
            assert time.monotonic() - began < 30
            with pytest.raises(EngineStop, match="cannot go on together"):
                await backend.train(model, groups)
        assert followers() == []

    anyio.run(run)
    anyio.run(train, tmp_path / "one", base, 1, 1, config)
    saved, known = (checkpoint(tmp_path / run, 1) for run in ("two", "one"))
    assert {path.name for path in saved.iterdir()} == {path.name for path in known.iterdir()}
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(saved / name), load_file(known / name)
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, atol=2e-5, rtol=1e-3)
    for name in ("config.json", "generation_config.json"):
        assert (saved / name).read_bytes() == (known / name).read_bytes()
    model, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in (saved, known))
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(model(ids).logits, other(ids).logits, atol=1e-4, rtol=1e-3)
