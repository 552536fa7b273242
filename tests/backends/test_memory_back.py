"""A closed backend in the caller's process frees its memory, even if the caller keeps the backend."""

import weakref
from pathlib import Path

import pytest
import torch

from mcp_rl.backends.local import LocalBackend
from mcp_rl.backends.processes.in_process import in_thread
from mcp_rl.config import TINY, TrainConfig
from mcp_rl.errors import EngineStop
from mcp_rl.inference.engine import Sampling
from mcp_rl.model import TrainableModel


@pytest.mark.parametrize("method", ["lora", "full"])
async def test_the_weights_are_gone_when_the_backend_is_closed(tmp_path: Path, method: str) -> None:
    model = TrainableModel[None]("m", "p", TINY, base_path=tmp_path)
    backend = LocalBackend(in_process=True, config=TrainConfig(method=method))  # type: ignore[arg-type]
    await model.register(backend)
    async with backend.engine.episode(seed=1) as episode:
        await episode.generate([5, 6, 7], Sampling(max_tokens=4))
    del episode  # it is a part of the engine
    weights = [weakref.ref(weight) for weight in backend.learner.model.parameters()]
    moments = [weakref.ref(weight) for weight in backend.learner.parameters.values()]
    assert sum(weight().numel() for weight in weights) > 1_000_000  # type: ignore[union-attr]
    await backend.close()
    assert not [weight for weight in [*weights, *moments] if weight() is not None]


async def test_memory_that_runs_out_says_which_settings_take_less() -> None:
    with pytest.raises(EngineStop, match=r"^The learner ran out of memory: .*Lower train\.microbatch_tokens"):
        await in_thread(torch.empty, 10**15)
    with pytest.raises(RuntimeError, match="shape"):
        await in_thread(torch.empty(2).reshape, 3)
