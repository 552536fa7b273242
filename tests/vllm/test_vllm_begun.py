"""vLLM's server starts before the learner, and ends with the backend even if no learner comes."""

import os
from pathlib import Path

import anyio
import psutil

from mcp_rl.backends.local import LocalBackend
from mcp_rl.backends.samplers.vllm_sampler import VllmSampler
from mcp_rl.config import TINY, EngineConfig
from mcp_rl.model import TrainableModel


def servers(model: TrainableModel[None]) -> list[int]:
    """Find vLLM's processes of this run."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            words, folder = process.cmdline(), process.cwd()
        except psutil.Error:
            continue
        if words[1:2] == ["-m"] and words[2].startswith("vllm.") and Path(folder).is_relative_to(model.path.resolve()):
            found.append(process.pid)
    return found


async def test_register_goes_on_with_the_server_that_was_begun(vllm_config: EngineConfig, tmp_path: Path) -> None:
    model = TrainableModel[None]("begun", "test", TINY, base_path=tmp_path)
    async with LocalBackend(engine=vllm_config, max_context=1024) as backend:
        with anyio.fail_after(10):  # nothing waits for it
            await backend.begin(model)
            while not servers(model):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        (begun,) = servers(model)
        await model.register(backend)
        sampler = backend._sampler
        assert isinstance(sampler, VllmSampler)
        assert (sampler.server.pid, sampler.server.starts, backend.engine.version) == (begun, 1, 0)
    assert servers(model) == []


async def test_an_unused_server_ends_with_its_backend(vllm_config: EngineConfig, tmp_path: Path) -> None:
    model = TrainableModel[None]("unused", "test", TINY, base_path=tmp_path)
    async with LocalBackend(engine=vllm_config, max_context=1024) as backend:
        await backend.begin(model)
        with anyio.fail_after(10):
            while not servers(model):  # noqa: ASYNC110
                await anyio.sleep(0.05)
    assert servers(model) == []
