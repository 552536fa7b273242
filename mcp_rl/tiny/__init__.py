"""The built-in model `mcp-rl/tiny`: a Qwen2-architecture causal LM of 1.4 million parameters.

It exists so that every part of the system runs for real on any machine. `python -m mcp_rl.tiny.pretrain` trains it from
nothing on a synthetic corpus of random tool sets; the weights are shipped with the package.
"""

from pathlib import Path

NAME = "mcp-rl/tiny"


def weights_path() -> Path:
    """Return the folder of the shipped weights, with config.json, tokenizer files and chat_template.jinja."""
    return Path(__file__).parent / "weights"
