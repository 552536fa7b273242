"""A whole model with an output layer of its own, for vLLM on a CPU.

vLLM's CPU kernels keep a packed copy of each matrix. When new weights are loaded in place, they repack every layer
except an output layer that is tied to the input embedding (seen in 0.32): the old output weights would be used with
new inner ones. An output layer with a tensor of its own is repacked like the others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from mcp_rl.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

_WEIGHTS = "model.safetensors"
_OUTPUT = "lm_head.weight"


def untie(folder: Path) -> None:
    """Give the model in a folder an output layer of its own, unless it has one.

    Raises EngineError if the tied embedding cannot be identified.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings"):
        return
    if not (folder / _WEIGHTS).is_file():
        raise EngineError("vLLM on a CPU takes new weights of a model with tied embeddings from a single file only.")
    weights = load_file(folder / _WEIGHTS)
    embeddings = [name for name in weights if name.endswith("embed_tokens.weight")]
    if len(embeddings) != 1:
        raise EngineError(
            f"vLLM on a CPU cannot take new weights of this model: its tied embedding could be any of {embeddings}."
        )
    weights[_OUTPUT] = weights[embeddings[0]].clone()
    save_file(weights, folder / _WEIGHTS, {"format": "pt"})
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
