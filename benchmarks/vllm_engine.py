"""Measure vLLM as the engine of a run: the cost of a swap of policies, and whether any token is of another policy.

    python -m benchmarks.vllm_engine --python VENV/bin/python --out benchmarks/results/vllm_engine.json

Parts, each with its own server on loopback (`--parts`; a part that is left out keeps its figures in `--out`):

- `swaps`: policies are swapped one after another, first on an idle server, then 200 times while 6 episodes are being
  sampled. Each is written, loaded under a new name, and proven by probes. Afterwards every sampled token's
  log-probability is compared with that of the learner of the recorded version: a token of another policy, or one that
  was sampled from another policy's cache, is off by the distance between two policies.
- `clients`: processor time that our side takes for a request, against the openai package's client.

For the learning with vLLM, see `python -m benchmarks.main_job --engines local vllm`.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI

from mcp_rl.backends.base.base_model import load_tokenizer
from mcp_rl.backends.samplers.vllm_sampler import VllmSampler
from mcp_rl.config import TINY, EngineConfig
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.vllm.client import VllmClient
from tests.vllm.policies import MovingLearner

SWAPS = 200
IDLE_SWAPS = 15
EPISODES = 6
STALE = 0.01
"""Nats. In float32, kernels differ by less than a thousandth of it, and successive policies by more than it."""
Played = tuple[list[int], list[int], list[float], int]


@asynccontextmanager
async def sampler_of(python: Path, folder: Path) -> AsyncIterator[tuple[MovingLearner, VllmSampler]]:
    learner = MovingLearner(folder / "run")
    engine = EngineConfig(kind="vllm", python=python, max_rows=64)
    learner.settings = learner.settings.model_copy(update={"engine": engine, "max_context": 1024})
    await learner.open()
    learner.remember()
    sampler = VllmSampler(learner.settings)
    try:
        await sampler.open(learner, ChatFormat(load_tokenizer(TINY)))
        await sampler.take(learner, 0)
        yield learner, sampler
    finally:
        await sampler.close()


def prompt_of(seed: int, tokens: int = 180) -> list[int]:
    return [5 + (seed % 8 + 1) * i * 7 % 1500 for i in range(tokens)]


async def swap(learner: MovingLearner, sampler: VllmSampler) -> dict[str, float]:
    """Swap policies once; return the milliseconds of each part."""
    learner.move()
    learner.remember()
    began = time.perf_counter()
    await sampler.take(learner, learner.step)
    taken = sampler.swap
    assert taken is not None
    parts = {"write": taken.write, "load": taken.load, "probe": taken.probe, "whole": time.perf_counter() - began}
    return {name: 1000 * seconds for name, seconds in parts.items()}


async def sample_on(sampler: VllmSampler, seed: int, over: anyio.Event, found: list[Played]) -> None:
    """Sample episodes of four turns, one after another."""
    while not over.is_set():
        async with sampler.engine.episode(seed=seed) as episode:
            ids = prompt_of(seed)
            for turn in range(4):
                new = ids if turn == 0 else [11 + turn, 12, 13]
                completion = await episode.generate(new, Sampling(max_tokens=16))
                ids = ids if turn == 0 else [*ids, *new]
                found.append((list(ids), completion.token_ids, completion.logprobs, completion.version))
                ids += completion.token_ids
        seed += EPISODES


async def differences(learner: MovingLearner, found: Sequence[Played], back: int = 0) -> list[float]:
    """Return for each turn the largest difference in nats between its logprobs and those of the learner of its version,
    or of the version `back` before it."""
    worst = []
    for step in sorted({turn[3] for turn in found if turn[3] >= back}):
        mine = [turn for turn in found if turn[3] == step]
        async with learner.as_of(step - back):
            learned = await learner.token_logprobs([prompt + ids for prompt, ids, _, _ in mine])
        for (prompt, _, logprobs, _), own in zip(mine, learned, strict=True):
            worst.append(max(abs(a - b) for a, b in zip(own[len(prompt) - 1 :], logprobs, strict=True)))
    return worst


async def swaps(python: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with sampler_of(python, Path(folder)) as (learner, sampler):
            idle = [await swap(learner, sampler) for _ in range(IDLE_SWAPS)]
            found: list[Played] = []
            over = anyio.Event()
            busy = []
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for seed in range(EPISODES):
                    tasks.start_soon(sample_on, sampler, seed, over, found)
                for _ in range(SWAPS):
                    busy.append(await swap(learner, sampler))
                over.set()
            seconds = time.perf_counter() - began
            off = await differences(learner, found)
            apart = await differences(learner, found[::10], back=1)
    return {
        "idle_ms": percentiles(idle),
        "under_load_ms": percentiles(busy),
        "swaps_under_load": SWAPS,
        "seconds_under_load": round(seconds, 1),
        "turns": len(found),
        "versions_sampled": len({turn[3] for turn in found}),
        "tokens": sum(len(turn[1]) for turn in found),
        "stale_turns": sum(value > STALE for value in off),
        "largest_difference_nats": max(off),
        # of every tenth turn
        "would_be_noticed_share": statistics.fmean(value > STALE for value in apart),
        "median_difference_to_the_version_before_nats": statistics.median(apart),
    }


def percentiles(taken: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    found = {}
    for name in taken[0]:
        values = sorted(swap[name] for swap in taken)
        found[name] = {"median": round(statistics.median(values), 1), "p95": round(values[int(0.95 * len(values))], 1)}
    return found


async def clients(python: Path, requests: int = 384, at_once: int = 64) -> dict[str, Any]:
    """Return the processor milliseconds of this process for each request; rounds alternate, the first is not
    counted."""
    with tempfile.TemporaryDirectory() as folder:
        async with sampler_of(python, Path(folder)) as (_, sampler):
            ours = VllmClient(sampler.server)
            url, key = sampler.server.url, sampler.server.api_key
            theirs = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
            model = sampler.engine.policy.model

            async def with_ours(seed: int) -> None:
                await ours.sample(
                    model, prompt_of(seed), max_tokens=24, temperature=1.0, stop_token_ids=[2116], seed=seed
                )

            async def with_theirs(seed: int) -> None:
                extra = {"return_token_ids": True, "top_k": 0, "ignore_eos": True, "stop_token_ids": [2116]}
                await theirs.completions.create(
                    model=model, prompt=prompt_of(seed), max_tokens=24, seed=seed, logprobs=0, extra_body=extra
                )

            taken: dict[str, list[tuple[float, float]]] = {"ours": [], "openai": []}
            for _ in range(4):
                for name, ask in (("ours", with_ours), ("openai", with_theirs)):
                    processor, began = time.process_time(), time.perf_counter()
                    limiter = anyio.CapacityLimiter(at_once)

                    async def one(seed: int, ask: Any = ask, limiter: Any = limiter) -> None:
                        async with limiter:
                            await ask(seed)

                    async with anyio.create_task_group() as tasks:
                        for seed in range(requests):
                            tasks.start_soon(one, seed)
                    taken[name].append((time.process_time() - processor, time.perf_counter() - began))
            await ours.aclose()
            await theirs.close()
    figures: dict[str, Any] = {"requests": requests, "at_once": at_once}
    for name, rounds in taken.items():
        figures[f"{name}_processor_ms"] = round(1000 * statistics.median(r[0] for r in rounds[1:]) / requests, 2)
        figures[f"{name}_requests_per_second"] = round(requests / statistics.median(r[1] for r in rounds[1:]), 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="The Python of an environment with vLLM.")
    parser.add_argument("--parts", nargs="+", choices=["swaps", "clients"], default=["swaps", "clients"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out and options.out.is_file() else {}
    known |= {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, shared cores",
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "httpx", "openai")},
    }
    for part, measure in (("swaps", swaps), ("clients", clients)):
        if part in options.parts:
            known[part] = anyio.run(measure, options.python)
            print(part, json.dumps(known[part], indent=2), flush=True)
    if options.out:
        options.out.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
