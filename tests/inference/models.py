"""Small random models for tests of the engine, and a plain forward pass as the reference."""

from collections.abc import Sequence

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
STOP = 96
VOCABULARY = 97


def tiny_model(kind: str = "qwen2", *, seed: int = 0, window: int = 256) -> PreTrainedModel:
    """A model of three layers with uneven numbers of heads and far from uniform distributions."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "max_position_embeddings": window,
    }
    torch.manual_seed(seed)
    model: PreTrainedModel
    if kind == "qwen2":
        config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
        model = Qwen2ForCausalLM(config)
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=6, num_key_value_heads=2, head_dim=16))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=3, num_key_value_heads=3))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return model.eval()


@torch.no_grad()
def plain_logprobs(model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each id but the first, given the ids before it: [len(ids) - 1]."""
    given = torch.tensor([list(ids)], device=model.device)
    logits = model(given).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, given[0, 1:, None])[:, 0].cpu()


def prompt(*, trunk: int = 0, request: int = 1, length: int = 7) -> list[int]:
    """A prompt like a chat's: a system part that ends in a stop token, and a request."""
    generator = torch.Generator().manual_seed(1000 * trunk + request)
    system = torch.randint(0, STOP, (20 + 9 * trunk,), generator=torch.Generator().manual_seed(trunk)).tolist()
    return [*system, STOP, *torch.randint(0, STOP, (length,), generator=generator).tolist()]
