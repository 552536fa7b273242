"""The check of a swap: its order, its errors, its lengths. `tests/vllm` has the real server."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mcp_rl.backends.base.base_model import load_tokenizer
from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.processes.in_process import InProcessLearner
from mcp_rl.backends.samplers.swap_probe import BEYOND, CACHED, SwapProbe, probe_ids
from mcp_rl.backends.samplers.vllm_sampler import VllmSampler, memory_folder
from mcp_rl.config import TINY, TrainConfig
from mcp_rl.errors import CanaryError, EngineStop
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.vllm.engine import PolicyVersion


def logprob(shift: float, prompt: Sequence[int], token: int) -> float:
    """Return the log-probabilities of a policy that is a mere number."""
    return -1.0 - ((sum(prompt) * 31 + token * 7) % 97) / 50 - shift * ((token + len(prompt)) % 5)


def logprobs(shift: float, ids: Sequence[int]) -> list[float]:
    return [logprob(shift, ids[:place], ids[place]) for place in range(1, len(ids))]


class Pair:
    """A learner and the client of its sampler, each with a policy of its own."""

    def __init__(self) -> None:
        self.learned = self.sampled = self.cached = 0.0
        self.prompts: list[list[int]] = []
        self.asked: list[str] = []
        self.go = anyio.Event()
        self.go.set()

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        await self.go.wait()
        return [logprobs(self.learned, ids) for ids in sequences]

    async def logprobs(self, model: str, ids: Sequence[int]) -> list[float]:
        self.asked.append(model)
        return logprobs(self.sampled if model != "base" else -9.0, ids)

    async def next_logprobs(self, model: str, prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[float]:
        self.prompts = [list(prompt) for prompt in prompts]
        return [logprob(self.cached, prompt, token) for prompt, token in zip(prompts, tokens, strict=True)]

    def move(self, to: float) -> None:
        self.learned = self.sampled = self.cached = to


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(load_tokenizer(TINY))


def probe_of(pair: Any, ids: Sequence[int], **options: Any) -> SwapProbe:
    return SwapProbe(pair, ids, **options)


async def check(probe: SwapProbe, pair: Any, step: int, load: Any = None) -> None:
    await probe.check(pair, PolicyVersion(step, f"run@{step}"), load)


async def test_the_learner_computes_while_the_server_loads(chat: ChatFormat) -> None:
    pair, computing = Pair(), anyio.Event()

    class Telling(Pair):
        async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            computing.set()
            return await super().token_logprobs(sequences)

    pair = Telling()

    async def load() -> None:
        with anyio.fail_after(5):
            await computing.wait()
        assert pair.asked == []

    await check(probe_of(pair, probe_ids(chat, 4000)), pair, 0, load)
    assert pair.asked == ["run@0"]


async def test_an_error_of_loading_is_raised_at_once(chat: ChatFormat) -> None:
    pair = Pair()
    pair.go = anyio.Event()

    async def load() -> None:
        raise EngineStop("gone")

    with anyio.fail_after(5), pytest.raises(EngineStop, match="gone"):
        await check(probe_of(pair, probe_ids(chat, 4000)), pair, 0, load)


@pytest.mark.parametrize(("block", "cached"), [(0, CACHED), (16, CACHED), (CACHED, CACHED), (784, 784)])
async def test_prompts_through_the_cache_begin_with_whole_blocks(block: int, cached: int, chat: ChatFormat) -> None:
    pair, ids = Pair(), probe_ids(chat, 4000, block=block)
    assert len(ids) == cached + BEYOND
    probe = probe_of(pair, ids, block=block)
    await check(probe, pair, 0)
    assert len(pair.prompts) == 8 and probe.reads_cache
    assert {tuple(prompt[:cached]) for prompt in pair.prompts} == {tuple(ids[:cached])}
    assert all(cached < len(prompt) < len(ids) for prompt in pair.prompts)


def test_blocks_that_are_longer_than_the_context_are_told(chat: ChatFormat) -> None:
    assert not SwapProbe(Pair(), probe_ids(chat, 500, block=784), block=784).reads_cache  # type: ignore[arg-type]
    assert SwapProbe(Pair(), probe_ids(chat, 500, block=240), block=240).reads_cache  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [3, 4, 10, 100, CACHED + BEYOND - 1])
async def test_a_short_context_has_a_shorter_probe(chat: ChatFormat, most: int) -> None:
    pair, ids = Pair(), probe_ids(chat, most)
    assert len(ids) == most
    await check(probe_of(pair, ids), pair, 0)
    assert pair.prompts
    assert all(0 < len(prompt) < most for prompt in pair.prompts)


async def test_old_policies_the_base_and_stale_caches_are_noticed(chat: ChatFormat) -> None:
    ids = probe_ids(chat, 4000)
    pair = Pair()
    probe = probe_of(pair, ids)
    await check(probe, pair, 0)
    pair.move(0.01)
    await check(probe, pair, 1)
    pair.cached = 0.0
    with pytest.raises(CanaryError, match="prefix cache is not of the policy of step 2"):
        await check(probe, pair, 2)
    pair.move(0.02)
    pair.sampled = pair.cached = 0.01
    with pytest.raises(CanaryError, match="policy of step 3 did not arrive"):
        await check(probe, pair, 3)
    pair = Pair()
    pair.sampled = pair.cached = -9.0
    with pytest.raises(CanaryError, match="have the base model's"):
        await check(probe_of(pair, ids, base="base"), pair, 1)


async def test_a_cancelled_caller_still_ends_the_server(tmp_path: Path) -> None:
    class Lasting:
        closed = False

        async def close(self) -> None:
            await anyio.sleep(0.01)
            self.closed = True

    server = Lasting()
    sampler = VllmSampler(LocalSettings(base_model=TINY, run=tmp_path, title="a/b"), server=server)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await sampler.close()
    assert server.closed


async def closed() -> None: ...


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no folder in memory here")
async def test_whole_models_are_handed_over_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LocalSettings(base_model=TINY, run=tmp_path, title="a/b", train=TrainConfig(method="full"))
    learner, sampler = (
        InProcessLearner(settings),
        VllmSampler(settings, server=SimpleNamespace(close=closed, served_name="tiny")),
    )
    await learner.open()
    first, second = [(await sampler._write(learner, step)).folder for step in range(2)]
    assert first is not None and first.parent == tmp_path / "adapters"
    assert second is not None and second.parent.parent == Path("/dev/shm")
    assert second.parent.stat().st_mode & 0o777 == 0o700
    for name in ("config.json", "model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1 << 20))
    assert memory_folder(first) is None, "it needs room for two"
    await sampler.close()
    assert not second.parent.exists()
    await learner.close()
