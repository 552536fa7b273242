"""Models with random weights in the shapes of real ones, learners around them, and something to learn."""

from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2ForCausalLM

from benchmarks.gpu_check.setting import Setting, Shape
from mcp_rl.config import TrainConfig
from mcp_rl.learning.adapter import add_adapter
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.step import Learner
from mcp_rl.learning.tree_attention import use_tree_attention


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Random weights, made where they will be used."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = Qwen2ForCausalLM(shape.config())
    finally:
        torch.set_default_dtype(before)
    return cast(PreTrainedModel, model.to(device).eval().requires_grad_(False))  # type: ignore[arg-type]


def random_learner(shape: Shape, setting: Setting, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> Learner:
    """A learner whose adapter is not zero, so that both its factors have a gradient."""
    config = TrainConfig.model_validate({"activation_checkpointing": not setting.dry_run, "epochs": 1, **settings})
    base = random_model(shape, setting.device, dtype)
    use_tree_attention(base)
    lora = config.lora
    model = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="random", seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator).mul_(0.01).to(parameter.device))
    return Learner(model, config, seed=0)


def samples(vocabulary: int, *, groups: int, size: int, prompt: int, answer: int) -> list[Sample]:
    """Groups of `size` sequences with `prompt` tokens in common and `answer` own ones, all of those to be learned."""
    draw = np.random.default_rng(0)
    made = []
    for group in range(groups):
        shared = draw.integers(0, vocabulary, prompt)
        for _ in range(size):
            own = draw.integers(0, vocabulary, answer)
            made.append(
                Sample(
                    tokens=[int(token) for token in (*shared, *own[:-1])],
                    at=np.arange(prompt - 1, prompt + answer - 1),
                    targets=own.astype(np.int64),
                    logprobs=np.full(answer, -np.log(vocabulary), np.float32),
                    weights=np.ones(answer, np.float32),
                    advantage=float(draw.normal()),
                    group=group,
                )
            )
    return made
