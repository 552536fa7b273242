"""What several tests of backends need."""

import shutil

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from mcp_rl.tiny import weights_path


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random Qwen2 of the built-in vocabulary."""
    folder = tmp_path_factory.mktemp("base")
    for path in weights_path().iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    config = Qwen2Config.from_pretrained(folder)
    config.update({"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "layer_types": None})
    config = Qwen2Config(**{k: v for k, v in config.to_dict().items() if k != "layer_types"})
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return str(folder)
