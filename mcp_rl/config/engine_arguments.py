"""Arguments and variables of vLLM's server that users cannot set, because a setting or this package decides them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SETTINGS = {
    "model": "base_model",
    "tokenizer": "base_model",
    "gpu-memory-utilization": "engine.memory_share",
    "max-model-len": "engine.max_context",
    "max-num-seqs": "engine.max_rows",
    "enable-sleep-mode": "engine.sharing",
    "max-lora-rank": "train.lora.rank",
    "dtype": "unsloth.dtype",
    "revision": "unsloth.revision",
    "trust-remote-code": "unsloth.trust_remote_code",
    "hf-token": "unsloth.token",
    "device": "placement.engine_gpus",
}
"""Arguments that a setting of a run decides, with that setting."""
_DECIDED = {
    "served-model-name": "the run names its policies",
    "port": "a free one is chosen",
    "host": "the server listens on loopback only",
    "uds": "the server listens on loopback only",
    "ssl-keyfile": "the server listens on loopback only",
    "ssl-certfile": "the server listens on loopback only",
    "root-path": "the server listens on loopback only",
    "api-key": "a random one is made for each start",
    "enable-lora": "it follows from what is trained",
    "lora-modules": "every policy is loaded under its own name",
    "max-loras": "it follows from how many policies are sampled at once",
    "max-cpu-loras": "it follows from how many policies are sampled at once",
    "enable-auto-tool-choice": "answers are token ids, and their tool calls are read here",
    "tool-call-parser": "answers are token ids, and their tool calls are read here",
    "tool-parser-plugin": "answers are token ids, and their tool calls are read here",
    "logprobs-mode": "the learner needs the logprobs with which tokens were sampled",
    "generation-config": "a model's own top_p or penalties would bias the importance ratio",
    "override-generation-config": "a top_p or penalty would bias the importance ratio",
    "middleware": "the server answers only requests with the run's key",
    "api-server-count": "an adapter is loaded into one server",
    "headless": "an adapter is loaded into one server",
    "data-parallel-rank": "an adapter is loaded into one server",
    "data-parallel-external-lb": "an adapter is loaded into one server",
    "data-parallel-hybrid-lb": "an adapter is loaded into one server",
    "config": "arguments in a file would not be checked: give them in engine.args",
}
"""Arguments that this package decides, each with the reason."""
_VARIABLES = {
    "VLLM_API_KEY": "a random one is made for each start",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it follows from what is trained",
    "VLLM_SERVER_DEV_MODE": "it follows from engine.sharing",
    "CUDA_VISIBLE_DEVICES": "placement.engine_gpus decides it",
    "CUDA_DEVICE_ORDER": "placement.engine_gpus numbers GPUs as nvidia-smi does",
    "PYTHONPATH": "the server's Python has its own packages",
}
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|(^|_)KEY)$", re.IGNORECASE)


def argument_name(name: str) -> str:
    """Return an argument as vLLM's command line spells it, without the leading dashes."""
    return name.strip().lstrip("-").replace("_", "-").replace(" ", "-")


def argument_mistakes(args: Mapping[str, object]) -> Iterator[str]:
    """Yield a sentence for each argument in `engine.args` that cannot be passed on."""
    for given in args:
        name = argument_name(given)
        if not re.fullmatch(r"[a-zA-Z0-9][\w.-]*", name):
            yield f"engine.args has {given!r}, which is not the name of an argument"
            continue
        positive = name.removeprefix("no-").partition(".")[0]
        if positive in _SETTINGS:
            yield f"engine.args has {given}, which a setting decides: {_SETTINGS[positive]}"
        elif positive in _DECIDED:
            yield f"engine.args has {given}, which cannot be set: {_DECIDED[positive]}"


def variable_mistakes(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable in `engine.environment` that cannot be passed on."""
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or "\0" in value:
            yield f"engine.environment has {name!r}, which is not a valid variable"
        elif name in _VARIABLES:
            yield f"engine.environment has {name}, which cannot be set: {_VARIABLES[name]}"
        elif _SECRET.search(name):
            yield f"engine.environment has {name}, which would be written to files: set secrets in your environment"
