"""Random weights with the built-in vocabulary."""

import shutil
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from mcp_rl.tiny import weights_path


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
