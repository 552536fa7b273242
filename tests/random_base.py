"""Random weights with the built-in vocabulary."""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from mcp_rl.tiny import weights_path
from mcp_rl.tiny.architecture import tiny_config


def write_random_base(folder: Path, *, hidden: int, intermediate: int) -> str:
    """A random Qwen2 of two layers with the built-in tokenizer in an empty folder, always the same; its path."""
    for path in weights_path().iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    sizes = {"hidden_size": hidden, "num_hidden_layers": 2, "intermediate_size": intermediate, "layer_types": None}
    config = Qwen2Config.from_pretrained(folder).to_dict() | sizes
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**config)).save_pretrained(folder)
    return str(folder)


def write_smallest_base(folder: Path) -> None:
    """A random Qwen2 of one narrow layer with the built-in tokenizer, always the same."""
    tokenizer: Any = AutoTokenizer.from_pretrained(weights_path())
    config: Any = tiny_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 32, 64, 1
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 16
    config.layer_types = config.layer_types[:1]
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
