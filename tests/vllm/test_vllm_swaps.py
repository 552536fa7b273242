"""Policies are swapped in a real vLLM server while it samples; every token is of the policy that it names."""

import os
import signal
from pathlib import Path

import anyio
import httpx
import pytest

from mcp_rl.backends.base.base_model import load_tokenizer
from mcp_rl.backends.samplers.vllm_sampler import VllmSampler
from mcp_rl.config import TINY, EngineConfig
from mcp_rl.errors import EngineStop
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.vllm.engine import VllmEngine
from mcp_rl.inference.vllm.server import VllmServer
from tests.vllm.policies import MovingLearner, largest_difference, sampling

Played = tuple[list[int], list[int], list[float], int]
"""Prompt, sampled ids, their logprobs, version."""


async def play(engine: VllmEngine, seed: int, turns: int, found: list[Played], tokens: int = 24) -> None:
    """Play an episode with new ids between the turns."""
    prompt = [5 + (seed % 5 + 1) * i * 7 % 1500 for i in range(150)]
    async with engine.episode(seed=seed) as episode:
        for turn in range(turns):
            new = prompt if turn == 0 else [11 + turn, 12, 13]
            completion = await episode.generate(new, Sampling(max_tokens=tokens))
            prompt = prompt if turn == 0 else [*prompt, *new]
            found.append((list(prompt), completion.token_ids, completion.logprobs, completion.version))
            prompt += completion.token_ids


async def names(server: VllmServer) -> set[str]:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {server.api_key}"}) as client:
        return {model["id"] for model in (await client.get(f"{server.url}/v1/models")).json()["data"]}


async def test_turns_in_flight_end_under_their_version(vllm_server: VllmServer, tmp_path: Path) -> None:
    learner = MovingLearner(tmp_path / "swapped")
    found: list[Played] = []
    async with sampling(learner, vllm_server) as sampler:
        async with anyio.create_task_group() as tasks:
            for seed in range(12):
                tasks.start_soon(play, sampler.engine, seed, 8, found)
            for _ in range(10):
                learner.move()
                learner.remember()
                await sampler.take(learner, learner.step)
                await anyio.sleep(0.05)
        assert len(found) == 96
        assert len({version for *_, version in found}) > 3
        assert await largest_difference(learner, found) < 2e-3
        async with learner.as_of(0):  # a difference would have been seen
            wrong = await learner.token_logprobs([prompt + ids for prompt, ids, _, version in found if version > 3])
        right = [logprobs for *_, logprobs, version in found if version > 3]
        assert max(abs(a[-1] - b[-1]) for a, b in zip(wrong, right, strict=True)) > 0.05

        learner.move()
        await sampler.take(learner, learner.step)
        assert await names(vllm_server) == {TINY, f"swapped@{learner.step}"}
        (folder,) = (tmp_path / "swapped" / "adapters").iterdir()
        assert folder.name.startswith(f"{learner.step:04d}-")
    assert await names(vllm_server) == {TINY}
    assert not (tmp_path / "swapped" / "adapters").exists()


async def test_a_version_stays_as_long_as_a_turn_is_sampled_with_it(vllm_server: VllmServer, tmp_path: Path) -> None:
    learner = MovingLearner(tmp_path / "kept")
    found: list[Played] = []
    async with sampling(learner, vllm_server) as sampler:
        sampler.engine._stops = ()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(play, sampler.engine, 1, 1, found, 1800)
            while not sampler.engine.policy.turns:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            for _ in range(2):
                learner.move()
                await sampler.take(learner, learner.step)
            assert not found
            assert await names(vllm_server) == {TINY, "kept@0", "kept@2"}
        assert [version for *_, version in found] == [0]
        learner.move()
        await sampler.take(learner, learner.step)
        assert await names(vllm_server) == {TINY, "kept@3"}


async def test_weights_and_prefix_cache_are_replaced_between_turns(vllm_config: EngineConfig, tmp_path: Path) -> None:
    learner = MovingLearner(tmp_path / "whole", "full")
    learner.settings = learner.settings.model_copy(update={"engine": vllm_config, "max_context": 1024})
    found: list[Played] = []
    async with sampling(learner) as sampler:
        async with anyio.create_task_group() as tasks:
            for seed in range(6):
                tasks.start_soon(play, sampler.engine, seed, 6, found)
            for _ in range(4):
                learner.move(0.003)
                learner.remember()
                await sampler.take(learner, learner.step)
        assert len({version for *_, version in found}) > 1
        await play(sampler.engine, 3, 2, found)
        assert found[-1][3] == 4
        assert sampler._memory is not None
        newest = [*(tmp_path / "whole" / "adapters").iterdir(), *sampler._memory.path.iterdir()]
        assert sorted(folder.name[:4] for folder in newest) == ["0004", "serv"]  # the first is the server's own
        ends = [turn for turn in found if turn[3] in (0, 4)]
        assert await largest_difference(learner, ends) < 2e-3


async def test_every_turn_survives_a_killed_server(vllm_config: EngineConfig, tmp_path: Path) -> None:
    learner = MovingLearner(tmp_path / "killed")
    await learner.open()
    settings = learner.settings.model_copy(update={"engine": vllm_config, "max_context": 1024})
    sampler = VllmSampler(settings)
    found: list[Played] = []
    await sampler.open(learner, ChatFormat(load_tokenizer(TINY)))
    try:
        learner.move()
        learner.remember()
        await sampler.take(learner, 1)
        async with anyio.create_task_group() as tasks:
            for seed in range(8):
                tasks.start_soon(play, sampler.engine, seed, 3, found, 40)
            while len(found) < 6:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            os.kill(sampler.server.pid, signal.SIGKILL)
            learner.move()
            learner.remember()
            await sampler.take(learner, 2)  # a swap while it is away
        assert sampler.server.starts == 2
        assert len(found) == 24
        assert {version for *_, version in found} == {1, 2}
        assert sampler.engine.stats.asked_again > 0
        assert await largest_difference(learner, found) < 2e-3
        os.kill(sampler.server.pid, signal.SIGKILL)
        with pytest.raises(EngineStop, match="vLLM's server died twice"):
            await play(sampler.engine, 1, 1, found)
    finally:
        await sampler.close()
