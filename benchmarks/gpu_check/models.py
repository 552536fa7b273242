"""Models with random weights in the shapes of real ones, and learners and samples for them."""

import json
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.gpu_check.setting import Setting, Shape
from mcp_rl.config import TrainConfig
from mcp_rl.learning.adapter import add_adapter
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.samples import Sample
from mcp_rl.tiny import weights_path


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Make a model with random weights, directly on its device."""
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
    """Make a learner whose adapter is not zero, so that both its factors have a gradient."""
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
    """Make groups of `size` sequences that share `prompt` tokens and have `answer` own ones, all of these learned."""
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


def base_folder(shape: Shape, setting: Setting, folder: Path) -> Path:
    """Write a model with random weights into a folder for `from_pretrained` and vLLM, with a tokenizer of its size.

    The tokenizer is the built-in model's, with made-up words for all ids above its own.
    """
    tokenizer = json.loads((weights_path() / "tokenizer.json").read_bytes())
    words, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    known = len(words)
    later = [token for token in added if token["id"] >= known]  # the others are words, too
    shape = replace(shape, vocabulary=max(shape.vocabulary, known + len(later)))
    more = shape.vocabulary - known - len(later)
    words |= {f"word{number}": number for number in range(known, known + more)}
    for token in later:  # transformers puts them after all words
        token["id"] += more
    dtype = torch.float32 if setting.dry_run else torch.bfloat16
    disable_progress_bar()  # type: ignore[no-untyped-call]
    random_model(shape, setting.device, dtype).save_pretrained(folder)
    if not setting.dry_run:  # another process may need the memory next
        torch.cuda.empty_cache()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(weights_path() / name, folder / name)
    ids = {token["content"]: token["id"] for token in added}
    for name in ("config.json", "generation_config.json"):
        about = json.loads((folder / name).read_bytes())
        about |= {"bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
        (folder / name).write_text(json.dumps(about))
    return folder


def move_adapter(parameters: Mapping[str, torch.nn.Parameter], *, size: float = 0.01, seed: int = 0) -> None:
    """Set an adapter's values by its parameters' names, so that two loaders' adapters are the same."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            drawn = torch.randn(parameter.shape, generator=generator)
            scale = size if "lora_B" in name else parameter.shape[-1] ** -0.5
            parameter.copy_(drawn.mul_(scale).to(parameter.device, parameter.dtype))
