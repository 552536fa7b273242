"""One learner in two processes behind a backend: on from any number of them, and none of them lost in silence."""

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
    """Go on with a run; each step's batch follows from its number."""
    model = make_model(base, run)
    placement = PlacementConfig(learner_processes=learners)
    async with LocalBackend(in_process=True, config=config, placement=placement) as backend:
        await model.register(backend)
        if learners > 1:
            await check_that_what_all_refuse_is_said_once(backend, model)
        return [(await backend.train(model, await play(backend, backend.step))).metrics for _ in range(steps)]


async def check_that_what_all_refuse_is_said_once(backend: LocalBackend, model: TrainableModel[None]) -> None:
    """As one process says it; and nothing is broken, so that learning may go on."""
    groups = await play(backend, backend.step)
    segment = groups[-1].trajectories[-1].segments[0]
    segment.logprobs = [value - 5.0 for value in segment.logprobs]
    with pytest.raises(CanaryError, match="Sampler and learner disagree"):
        await backend.train(model, groups)


def checkpoint(run: Path, step: int) -> Path:
    return run / "demo" / "models" / "calc-001" / "checkpoints" / f"{step:04d}"


def followers() -> list[psutil.Process]:
    """Processes of ours that follow rank 0, without those that watch over them."""
    every = psutil.Process().children(recursive=True)
    return [process for process in every if "mcp_rl.backends.follower" in process.cmdline()[1:4]]


def test_two_processes_go_on_where_one_stopped_and_one_where_two_did(base: str, tmp_path: Path) -> None:
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


def test_every_weight_is_saved_in_one_piece_and_a_lost_learner_is_named(base: str, tmp_path: Path) -> None:
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
