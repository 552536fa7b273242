"""Check that the in-process engine agrees with the learner, and measure its speed."""

import time
from typing import Any, cast

import numpy as np
import torch

from benchmarks.gpu_check.measure import forget_peak, peak_memory, wait
from benchmarks.gpu_check.models import random_learner
from benchmarks.gpu_check.setting import Failed, Figures, Setting, Shape, check
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.samples import Sample


@check
def sampler_agrees(setting: Setting) -> Figures:
    """The engine's log-probabilities of its own tokens are the learner's: both with the adapter, in bfloat16."""
    learner = random_learner(setting.half, setting)
    prompt = [int(token) for token in np.random.default_rng(2).integers(3, setting.half.vocabulary, setting.prompt)]
    sampled = _sample(learner, setting, prompt, episodes=min(8, setting.episodes))
    made = []
    for ids, logprobs in sampled["turns"]:
        made.append(
            Sample(
                tokens=[*prompt, *ids[:-1]],
                at=np.arange(len(prompt) - 1, len(prompt) + len(ids) - 1),
                targets=np.asarray(ids, np.int64),
                logprobs=np.asarray(logprobs, np.float32),
                weights=np.ones(len(ids), np.float32),
                advantage=1.0,
                group=0,
            )
        )
    differences = []
    with torch.no_grad():
        for _, packed in learner.parts(made):
            differences.append((learner.logprobs(packed)[0] - packed.sampler).double().cpu())
    difference = torch.cat(differences)
    found = {
        "tokens": len(difference),
        "logprob_difference_mean": float(difference.abs().mean()),
        "logprob_difference_max": float(difference.abs().max()),
        "ratio_mean": float(difference.exp().mean()),
    }
    if not (abs(found["ratio_mean"] - 1) < 0.02 and found["logprob_difference_mean"] < 0.1):
        raise Failed("sampler and learner disagree by more than a run allows", found)
    return found


@check
def engine_half(setting: Setting) -> Figures:
    """Sampled tokens per second of the in-process engine, 0.5B with an adapter."""
    return _engine(setting, setting.half)


@check
def engine_3b(setting: Setting) -> Figures:
    """Sampled tokens per second of the in-process engine, 3B with an adapter."""
    return _engine(setting, setting.three)


def _engine(setting: Setting, shape: Shape) -> Figures:
    learner = random_learner(shape, setting)
    prompt = [int(token) for token in np.random.default_rng(2).integers(3, shape.vocabulary, setting.prompt // 4)]
    _sample(learner, setting, prompt[:8], episodes=2)  # to warm up
    forget_peak(setting.device)
    found = _sample(learner, setting, prompt, episodes=setting.episodes)
    tokens = sum(len(ids) for ids, _ in found.pop("turns"))
    return {
        **found,
        "episodes": setting.episodes,
        "prompt": len(prompt),
        "sampled_tokens": tokens,
        "sampled_tokens_per_second": tokens / found["seconds"],
        "peak_memory_gb": peak_memory(setting.device),
    }


def _sample(learner: Learner, setting: Setting, prompt: list[int], *, episodes: int) -> Figures:
    """Sample a turn of each episode, all at once."""
    import anyio

    from mcp_rl.backends.samplers.weights import sampled_weights
    from mcp_rl.inference.engine import Sampling
    from mcp_rl.inference.local import LocalEngine
    from mcp_rl.inference.policy import fingerprint_of

    turns: dict[int, tuple[list[int], list[float]]] = {}

    async def work() -> Figures:
        base = cast(Any, learner.model).get_base_model()
        async with LocalEngine(base, stop_token_ids=[0]) as engine:
            weights = sampled_weights(learner.model)
            await engine.load_policy(weights, 1)
            if engine.fingerprint != fingerprint_of(weights):
                raise Failed("the engine does not sample from the given weights", {})

            async def one(seed: int) -> None:
                async with engine.episode(seed=seed) as episode:
                    said = await episode.generate(prompt, Sampling(max_tokens=setting.sampled))
                    turns[seed] = said.token_ids, said.logprobs

            wait(setting.device)
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for seed in range(episodes):
                    tasks.start_soon(one, seed)
            wait(setting.device)
            return {"seconds": time.perf_counter() - began, "decode_steps": engine.stats.steps}

    found = anyio.run(work)
    return {**found, "turns": [turns[seed] for seed in range(episodes)]}
