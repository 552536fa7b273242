"""A whole model whose output layer is a tensor of its own, for vLLM on a CPU.

vLLM's CPU kernels keep a packed copy of each matrix. Where new weights are loaded in place, they repack every layer but
an output layer that is the input embedding (seen in 0.32): old output weights would go on with new inner ones. With a
tensor of its own it is repacked like the others.
"""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from mcp_rl.errors import EngineError

_WEIGHTS = "model.safetensors"
_OUTPUT = "lm_head.weight"


def untie(folder: Path) -> None:
    """Give a model in a folder an output layer of its own; one that has it stays. Raises EngineError where it cannot be
    told which tensor that is."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings"):
        return
    if not (folder / _WEIGHTS).is_file():
        raise EngineError("vLLM on a CPU takes new weights of a model with tied embeddings from one file only.")
    weights = load_file(folder / _WEIGHTS)
    embeddings = [name for name in weights if name.endswith("embed_tokens.weight")]
    if len(embeddings) != 1:
        raise EngineError(
            f"vLLM on a CPU cannot take new weights of this model: its tied embedding is one of {embeddings}."
        )
    weights[_OUTPUT] = weights[embeddings[0]].clone()
    save_file(weights, folder / _WEIGHTS, {"format": "pt"})
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
