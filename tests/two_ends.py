"""A base whose generation_config.json lists two ends of a turn, and that ends its turns at the one which its template
does not write."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from mcp_rl.tiny import weights_path

OWN, OTHER = 4324, 4325
"""<|im_end|>, which the template writes, and <|endoftext|>."""


def write_base(folder: Path) -> Path:
    """The built-in model, with <|endoftext|> more likely than <|im_end|> wherever it ends a turn."""
    shutil.copytree(weights_path(), folder)
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    embedding[OTHER] = 1.1 * embedding[OWN]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    generation = folder / "generation_config.json"
    generation.write_text(json.dumps({**json.loads(generation.read_bytes()), "eos_token_id": [OWN, OTHER]}))
    return folder
