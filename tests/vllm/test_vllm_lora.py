"""On a CPU, this package's kernels compute adapters in vLLM's worker: the same numbers, each adapter once."""

from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.server import VllmServer
from tests.vllm.policies import MovingLearner

IDS = [9 + i * 7 % 1500 for i in range(90)]


async def moved(learner: MovingLearner, folder: Path, size: float) -> list[float]:
    """Move the learner and write its policy to a folder; return its log-probabilities of IDS."""
    learner.move(size)
    await anyio.Path(folder).mkdir()
    await learner.write_policy(folder)
    return (await learner.token_logprobs([IDS]))[0]


async def test_base_and_two_adapters_in_one_batch_are_exact(vllm_server: VllmServer, tmp_path: Path) -> None:
    """The kernels of vLLM 0.32 apply the last adapter to tokens of the base in the same batch."""
    learner = MovingLearner(tmp_path / "run")
    await learner.open()
    expected = {vllm_server.served_name: (await learner.token_logprobs([IDS]))[0]}
    client = VllmClient(vllm_server)
    names = [f"mixed-{number}" for number in range(4)]  # as many as the server has slots for
    for name in names:
        expected[name] = await moved(learner, tmp_path / name, 0.05)
        await client.load_adapter(name, tmp_path / name)
    assert max(abs(a - b) for a, b in zip(expected["mixed-0"], expected["mixed-1"], strict=True)) > 0.05
    found: dict[str, list[list[float]]] = {name: [] for name in expected}

    async def ask(model: str) -> None:
        found[model].append(await client.logprobs(model, IDS))

    try:
        for name in names:  # every slot is taken
            await ask(name)
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                for model in expected:
                    tasks.start_soon(ask, model)
    finally:
        for name in names:
            await client.unload_adapter(name)
        await client.aclose()
    for model, answers in found.items():
        assert len(answers) >= 6
        for logprobs in answers:
            assert logprobs == pytest.approx(expected[model], abs=1e-4)


async def test_the_base_beside_an_adapter_has_its_own_logprobs(vllm_server: VllmServer, tmp_path: Path) -> None:
    learner = MovingLearner(tmp_path / "run")
    await learner.open()
    client, sampled = VllmClient(vllm_server), []
    await moved(learner, tmp_path / "one", 0.05)
    await client.load_adapter("beside", tmp_path / "one")

    async def sample(model: str, seed: int) -> None:
        found = await client.sample(model, IDS, max_tokens=24, temperature=1.0, stop_token_ids=[], seed=seed)
        sampled.append((model, found))

    try:
        async with anyio.create_task_group() as tasks:
            for seed in range(8):
                for model in (vllm_server.served_name, "beside"):
                    tasks.start_soon(sample, model, seed)
    finally:
        await client.unload_adapter("beside")
        await client.aclose()
    for model, found in sampled:
        logprobs = await _learned(learner, found.token_ids, adapted=model == "beside")
        assert found.logprobs == pytest.approx(logprobs, abs=1e-4)


async def _learned(learner: MovingLearner, ids: list[int], *, adapted: bool) -> list[float]:
    if adapted:
        return (await learner.token_logprobs([IDS + ids]))[0][len(IDS) - 1 :]
    model: Any = learner.learner.model
    with torch.no_grad(), model.disable_adapter():
        return (await learner.token_logprobs([IDS + ids]))[0][len(IDS) - 1 :]


def test_the_packages_lora_kernels_are_used(vllm_server: VllmServer) -> None:
    said = vllm_server.log.read_text()
    assert "Using ByAdapter" in said
    assert "Using PunicaWrapperCPU" not in said
