"""With a real vLLM server, the engine keeps the protocol of `inference/engine.py`, token by token."""

import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from mcp_rl.backends.base.base_model import load_tokenizer
from mcp_rl.config import TINY
from mcp_rl.errors import ContextOverflow, EngineError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.inference.stops import StopRule
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion, VllmEngine
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.tiny import weights_path


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(load_tokenizer(TINY))


@pytest.fixture(scope="module")
def base() -> Any:
    return AutoModelForCausalLM.from_pretrained(weights_path())


@asynccontextmanager
async def engine_on(server: VllmServer, chat: ChatFormat | None, **options: Any) -> AsyncIterator[VllmEngine]:
    client = VllmClient(server)
    stops, decode = (chat.stop_token_ids, chat.decode) if chat is not None else ((), None)
    options = {"max_context": server.max_context} | options
    engine = VllmEngine(client, stop_token_ids=stops, decode=decode, **options)
    engine.switch(PolicyVersion(3, server.served_name))
    try:
        yield engine
    finally:
        await client.aclose()


def prompt_of(chat: ChatFormat, request: str = "Add 12 and 30.") -> list[int]:
    return chat.initial([{"role": "user", "content": request}], [])


async def once(engine: VllmEngine, prompt: list[int], sampling: Sampling, seed: int = 1) -> Completion:
    async with engine.episode(seed=seed) as episode:
        return await episode.generate(prompt, sampling)


@torch.no_grad()
def logprobs(model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0) -> list[float]:
    rows = (model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return [float(row[id]) for row, id in zip(rows, ids, strict=True)]


async def test_the_size_of_a_block_of_the_prefix_cache_is_known(vllm_server: VllmServer) -> None:
    client = VllmClient(vllm_server)
    try:
        assert await client.block_size() == 32
        client.server = SimpleNamespace(url=vllm_server.url, api_key="wrong")
        assert await client.block_size() == 0
    finally:
        await client.aclose()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7, 0.0])
async def test_logprobs_are_those_of_the_drawn_distribution(
    vllm_server: VllmServer, chat: ChatFormat, base: Any, temperature: float
) -> None:
    prompt = prompt_of(chat)
    async with engine_on(vllm_server, chat) as engine:
        for seed in range(4):
            found = await once(engine, prompt, Sampling(temperature=temperature, max_tokens=24), seed)
            expected = logprobs(base, prompt, found.token_ids, temperature or 1.0)
            assert found.logprobs == pytest.approx(expected, abs=1e-4)
            assert found.version == engine.version == 3


async def test_greedy_turns_take_the_likeliest_token(vllm_server: VllmServer, chat: ChatFormat, base: Any) -> None:
    prompt = prompt_of(chat)
    found: dict[int, Completion] = {}

    async def play(seed: int) -> None:
        found[seed] = await once(engine, prompt, Sampling(temperature=0.0 if seed < 4 else 1.0, max_tokens=16), seed)

    async with engine_on(vllm_server, chat) as engine, anyio.create_task_group() as tasks:
        for seed in range(16):
            tasks.start_soon(play, seed)
    ids = list(prompt)
    for token, logprob in zip(found[0].token_ids, found[0].logprobs, strict=True):
        with torch.no_grad():
            row = base(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        assert token == int(row.argmax())
        assert logprob == pytest.approx(float(row.max()), abs=1e-4)
        ids.append(token)
    assert all(found[seed].token_ids == found[0].token_ids for seed in range(4))
    assert len({tuple(found[seed].token_ids) for seed in range(4, 16)}) > 1


async def test_tokens_are_drawn_as_often_as_they_are_likely(
    vllm_server: VllmServer, chat: ChatFormat, base: Any
) -> None:
    prompt, draws, temperature = [5 + i * 37 % 2000 for i in range(40)], 1500, 1.3
    counts: Counter[int] = Counter()

    async def play(first: int) -> None:
        for seed in range(first, draws, 30):
            sampled = await once(engine, prompt, Sampling(temperature=temperature, max_tokens=1), seed)
            counts.update(sampled.token_ids)

    async with engine_on(vllm_server, chat) as engine, anyio.create_task_group() as tasks:
        for first in range(30):
            tasks.start_soon(play, first)
    with torch.no_grad():
        likely = (base(input_ids=torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
    common = [int(id) for id in (likely * draws > 8).nonzero()]
    assert len(common) >= 3
    expected = [float(likely[id]) * draws for id in common]
    seen = [counts[id] for id in common]
    expected, seen = [*expected, draws - sum(expected)], [*seen, draws - sum(seen)]
    squares = sum((a - b) ** 2 / max(b, 1.0) for a, b in zip(seen, expected, strict=True))
    freedom = len(expected) - 1
    assert squares < freedom + 6 * math.sqrt(2 * freedom)  # six deviations of chi-squared


async def test_a_turn_ends_with_its_stop_token_or_at_its_limit(vllm_server: VllmServer, chat: ChatFormat) -> None:
    prompt = prompt_of(chat)
    async with engine_on(vllm_server, chat) as engine, engine_on(vllm_server, None) as endless:
        whole = await once(engine, prompt, Sampling(temperature=0.0))
        assert whole.finish == "stop"
        assert whole.token_ids[-1] in chat.stop_token_ids
        assert not set(whole.token_ids[:-1]) & set(chat.stop_token_ids)

        cut = await once(engine, prompt, Sampling(temperature=0.0, max_tokens=len(whole.token_ids) - 1))
        assert (cut.token_ids, cut.finish) == (whole.token_ids[:-1], "length")

        third = whole.token_ids[2]
        early = await once(engine, prompt, Sampling(temperature=0.0, stop_token_ids=(third,)))
        assert early.token_ids == whole.token_ids[: whole.token_ids.index(third) + 1]
        assert early.finish == "stop"

        # The model's own end-of-text token ends a turn only if it is among the stop tokens.
        on = await once(endless, prompt, Sampling(temperature=0.0, max_tokens=len(whole.token_ids) + 5))
        assert len(on.token_ids) == len(whole.token_ids) + 5
        assert (on.token_ids[: len(whole.token_ids)], on.finish) == (whole.token_ids, "length")


@pytest.mark.parametrize("stop", ['"na', "me", '": {"', "</tool_call>", "<tool_call>\n{", "2"])
async def test_the_token_that_completes_a_stop_text_ends_the_turn(
    vllm_server: VllmServer, chat: ChatFormat, stop: str
) -> None:
    prompt = prompt_of(chat)
    async with engine_on(vllm_server, chat) as engine:
        for seed in range(6):
            free = await once(engine, prompt, Sampling(max_tokens=48), seed)
            sampling = Sampling(max_tokens=48, stop=(stop, "never said"))
            rule = StopRule(sampling, chat.stop_token_ids, chat.decode)
            kept, stops = rule.kept([], free.token_ids)
            found = await once(engine, prompt, sampling, seed)
            assert found.token_ids == free.token_ids[:kept]
            assert found.finish == ("stop" if stops else "length")
            assert len(found.logprobs) == len(found.token_ids)


async def test_turns_are_refused_or_cut_at_the_end_of_the_context(vllm_server: VllmServer, chat: ChatFormat) -> None:
    prompt = prompt_of(chat)
    async with (
        engine_on(vllm_server, None, max_context=len(prompt) + 5) as engine,
        engine.episode(seed=1) as episode,
    ):
        with pytest.raises(ContextOverflow, match="has no room for"):
            await episode.generate([*prompt, 1, 2, 3, 4, 5], Sampling())
        assert engine.stats.turns == 0
        cut = await episode.generate(prompt, Sampling(max_tokens=50))
        assert (len(cut.token_ids), cut.finish) == (5, "length")
        with pytest.raises(ContextOverflow):
            await episode.generate([1], Sampling())
    assert vllm_server.max_context is not None
    async with engine_on(vllm_server, None) as engine:  # up to the server's own last position
        long = [7 + i % 900 for i in range(vllm_server.max_context - 3)]
        assert len((await once(engine, long, Sampling(max_tokens=50))).token_ids) == 3


async def test_seeds_decide_the_tokens_in_any_batch(vllm_server: VllmServer, chat: ChatFormat) -> None:
    prompt, result = prompt_of(chat), chat.continuation([{"role": "tool", "content": "42"}])

    async def play(seed: int) -> list[Completion]:
        async with engine.episode(seed=seed) as episode:
            first = await episode.generate(prompt, Sampling(max_tokens=32))
            second = await episode.generate(result, Sampling(max_tokens=32, seed=99))
            return [first, second, await episode.generate(result, Sampling(max_tokens=32))]

    found: dict[int, list[Completion]] = {}

    async def keep(seed: int) -> None:
        found[seed] = await play(seed)

    async with engine_on(vllm_server, chat) as engine:
        alone = [await play(seed) for seed in range(3)]
        async with anyio.create_task_group() as tasks:
            for seed in range(24):
                tasks.start_soon(keep, seed)
        for seed in range(3):
            assert [turn.token_ids for turn in found[seed]] == [turn.token_ids for turn in alone[seed]]
        assert len({tuple(turns[0].token_ids) for turns in found.values()}) > 8
        own = [await once(engine, prompt, Sampling(max_tokens=32, seed=5), seed) for seed in (1, 2)]
        assert own[0].token_ids == own[1].token_ids


async def test_many_long_prompts_with_seeds_do_not_break_the_server(vllm_server: VllmServer) -> None:
    """vLLM 0.32 dies on a CPU if a prompt with a seed is computed in chunks."""
    starts, sampled = vllm_server.starts, []

    async def play(seed: int) -> None:
        prompt = [5 + (seed * 131 + i * 17) % 2000 for i in range(1500)]
        sampled.append(await once(engine, prompt, Sampling(max_tokens=3), seed))

    async with engine_on(vllm_server, None) as engine, anyio.create_task_group() as tasks:
        for seed in range(12):
            tasks.start_soon(play, seed)
    assert len(sampled) == 12
    assert vllm_server.starts == starts


async def test_a_conversation_continues_from_the_prefix_cache(
    vllm_server: VllmServer, chat: ChatFormat, base: Any
) -> None:
    prompt = [9 + i * 7 % 1500 for i in range(400)]
    async with engine_on(vllm_server, chat) as engine:
        async with engine.episode(seed=4) as episode:
            first = await episode.generate(prompt, Sampling(max_tokens=6))
            second = await episode.generate([11, 12], Sampling(max_tokens=6))
            third = await episode.generate([], Sampling(max_tokens=4))
        before = [*prompt, *first.token_ids, 11, 12]
        assert second.logprobs == pytest.approx(logprobs(base, before, second.token_ids), abs=1e-4)
        before += second.token_ids
        assert third.logprobs == pytest.approx(logprobs(base, before, third.token_ids), abs=1e-4)
        reused, begun = engine.stats.reused_tokens, engine.stats.cached_tokens
        assert reused >= 2 * 256  # blocks of 128 tokens
        again = await once(engine, prompt, Sampling(max_tokens=1))
        assert again.cached_tokens == engine.stats.cached_tokens - begun >= 256


async def test_a_cancelled_turn_ends_in_vllm_too(vllm_server: VllmServer, chat: ChatFormat) -> None:
    async with (
        httpx.AsyncClient(
            base_url=vllm_server.url, headers={"authorization": f"Bearer {vllm_server.api_key}"}
        ) as metrics,
        engine_on(vllm_server, None) as engine,
    ):

        async def running() -> float:
            lines = (await metrics.get("/metrics")).text.splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))

        async with engine.episode(seed=1) as episode:
            with anyio.move_on_after(0.7) as scope:
                await episode.generate(prompt_of(chat), Sampling(max_tokens=1900))
            assert scope.cancelled_caught
            with anyio.fail_after(10):
                while await running():  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            assert engine.stats.decoded_tokens == 0
            after = await episode.generate(prompt_of(chat), Sampling(max_tokens=2))
        assert len(after.token_ids) == 2


async def test_requests_that_vllm_would_change_are_refused(vllm_server: VllmServer, chat: ChatFormat) -> None:
    async with engine_on(vllm_server, chat) as engine:
        for temperature in (0.001, 2.5):
            with pytest.raises(EngineError, match=r"use 0, or 0\.01 to 2, since"):
                await once(engine, prompt_of(chat), Sampling(temperature=temperature))
        with pytest.raises(EngineError, match="vLLM refused /v1/completions"):
            await once(engine, [10**9], Sampling())
        with pytest.raises(ValueError, match="something to continue"):
            await once(engine, [], Sampling())
