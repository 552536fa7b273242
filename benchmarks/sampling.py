"""Tokens per second of the in-process engine against `transformers.generate`, on the same prompts in the same run.

    python benchmarks/sampling.py [--threads 1] [--rounds 5] > result.json

The model has the built-in model's shape and random weights, so that hardly a turn ends early. Everyone samples at
temperature 1 from LoRA weights: the engine from merged ones, `generate` with the adapter in its forward pass, as a
trainer would call it, and once more from merged ones. The engine also returns logprobs, `generate` does not. Rounds
alternate; the figures are medians over wall time, and their ratio is what counts on a shared machine.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from functools import partial
from typing import Any, cast

import anyio
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, Qwen2ForCausalLM

from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.learning.adapter import merged_weights
from mcp_rl.tiny.architecture import tiny_config
from mcp_rl.tiny.tokenizer import build_tokenizer

Prompts = list[list[int]]


def prompts(episodes: int, group: int, system: int, request: int, stop: int) -> Prompts:
    """Random ids in the shape of our episodes: one system part for all, one request for each group."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return [int(i) for i in torch.randint(3, 900, (count,), generator=generator)]

    shared = [*ids(system - 1), stop]
    requests = [ids(request - 3 + i % 7) for i in range(-(-episodes // group))]
    return [shared + requests[i // group] for i in range(episodes)]


async def with_engine(engine: LocalEngine, given: Prompts, tokens: int, turns: int, result: list[int]) -> int:
    """All episodes side by side; `result` is what a tool answers between their turns. Returns the sampled tokens."""
    before = engine.stats.decoded_tokens

    async def one(seed: int) -> None:
        async with engine.episode(seed=seed) as episode:
            new = given[seed]
            for _ in range(turns):
                await episode.generate(new, Sampling(max_tokens=tokens))
                new = result

    async with anyio.create_task_group() as tasks:
        for seed in range(len(given)):
            tasks.start_soon(one, seed)
    return engine.stats.decoded_tokens - before


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


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--system", type=int, default=150, help="tokens that all prompts share")
    parser.add_argument("--request", type=int, default=30, help="tokens that a group shares")
    parser.add_argument("--tokens", type=int, default=25, help="sampled tokens of a turn")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    config, stop = tiny_config(tokenizer), int(tokenizer.eos_token_id)
    base, merged = Qwen2ForCausalLM(config), Qwen2ForCausalLM(config)
    merged.load_state_dict(base.state_dict())
    engine = LocalEngine(base, stop_token_ids=[stop])
    adapted = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    weights = merged_weights(adapted)
    merged.load_state_dict(weights, strict=False)
    given = prompts(options.episodes, options.group, options.system, options.request, stop)
    speeds: dict[str, list[float]] = {}
    async with engine:
        await engine.load_policy(weights, 1)
        for _ in range(options.rounds + 1):
            for name, run in {
                "engine": partial(with_engine, engine, given, options.tokens, 1, []),
                "generate_lora": partial(anyio.to_thread.run_sync, with_generate, adapted, given, options.tokens),
                "generate_merged": partial(anyio.to_thread.run_sync, with_generate, merged, given, options.tokens),
                "two_turns": partial(with_engine, engine, given * 2, options.tokens // 2, 2, given[0][-20:]),
            }.items():
                began = time.perf_counter()
                sampled = await run()
                speeds.setdefault(name, []).append(sampled / (time.perf_counter() - began))
    speed = {name: statistics.median(values[1:]) for name, values in speeds.items()}
    json.dump(
        {
            "date": time.strftime("%Y-%m-%d"),
            "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "settings": vars(options),
            "tokens_per_second": {name: round(value) for name, value in speed.items()},
            "engine_over_generate_lora": round(speed["engine"] / speed["generate_lora"], 2),
            "engine_over_generate_merged": round(speed["engine"] / speed["generate_merged"], 2),
            "seconds_for_two_turns_of_twice_the_episodes": round(
                4 * options.episodes * (options.tokens // 2) / speed["two_turns"], 3
            ),
            "batch_invariant": not engine.gang,
        },
        sys.stdout,
        indent=2,
    )
    print()


if __name__ == "__main__":
    anyio.run(main)
