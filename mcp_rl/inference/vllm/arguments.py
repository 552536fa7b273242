"""The command line and environment of vLLM's server, made from the settings. Pure: nothing is started.

The arguments ask for:

- token ids, the logprobs that tokens were drawn with (`--logprobs-mode processed_logprobs`), and no sampling defaults
  from the model's `generation_config.json`: a top_p there would silently bias the importance ratio;
- adapters that are loaded and unloaded while the server runs, as many at once as policies are sampled at once;
- a key, passed in the environment only, which `compat/in_vllm/` demands for every path: vLLM itself guards only /v1;
- no parsing of tool calls: prompts and answers are token ids, and `inference/chat/` reads the calls in the model's own
  format, of which vLLM would have to be told;
- no usage statistics, and no access to the hub if the model is a folder.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from mcp_rl.config.engine_arguments import argument_mistakes, argument_name, variable_mistakes
from mcp_rl.errors import ConfigError
from mcp_rl.inference.vllm.compat.cpu import cpu_arguments
from mcp_rl.inference.vllm.compat.known import GUARD, IN_VLLM, LORA_RANKS
from mcp_rl.system.processes.devices import device_environment
from mcp_rl.system.processes.memory import machine_memory
from mcp_rl.system.threads import free_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.config import EngineConfig
    from mcp_rl.inference.vllm.installed import Installed

_GIB = 2**30


@dataclass(frozen=True)
class ServingSpec:
    """A model to serve, and what the server must be able to do with it."""

    model: str
    """A folder, or a name on the hub."""
    name: str
    """Name of the base model in requests."""
    gpus: tuple[int, ...] = ()
    """Devices as nvidia-smi numbers them, or as CUDA_VISIBLE_DEVICES lists them; empty: the first one, or the CPU."""
    lora_rank: int | None = None
    """Highest rank of the adapters to be loaded; None: no adapters."""
    adapters: int = 4
    """Adapters sampled at once: the policy, earlier ones whose turns are not over, and the next one."""
    max_context: int | None = None
    """Most tokens of an episode; None: the model's positions."""
    dtype: str = "auto"
    """The learner's precision; "auto": float32 on a CPU, else the model's own."""
    revision: str | None = None
    trust_remote_code: bool = False
    token: str | None = "HF_TOKEN"
    """Variable that holds the token for gated models on the hub; None: no token is passed on."""
    seed: int = 0
    sleep: bool = False
    """True if the server must be able to give up its memory for a while."""
    new_weights: bool = False
    """True if the base's own weights are replaced while it runs (full fine-tuning)."""

    @property
    def local(self) -> bool:
        """True if the model is a folder, so nothing is needed from the hub."""
        return Path(self.model).is_dir()


def check_served(config: EngineConfig, served: ServingSpec) -> None:
    """Raise ConfigError for settings that vLLM cannot fulfil, before anything starts."""
    mistakes = [*argument_mistakes(config.args), *variable_mistakes(config.environment)]
    if mistakes:
        raise ConfigError(f"{mistakes[0]}.")
    if served.lora_rank is not None and served.lora_rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"train.lora.rank = {served.lora_rank} is too high: vLLM takes adapters of rank {LORA_RANKS[-1]} at most."
        )
    if len(served.gpus) != len(set(served.gpus)):
        raise ConfigError(f"placement.engine_gpus = {served.gpus} names a GPU twice.")
    replica = _gpus_of_replica(config.args)
    if served.gpus and len(served.gpus) % replica:
        raise ConfigError(
            f"placement.engine_gpus names {len(served.gpus)} GPUs, which is not a multiple of the {replica} that "
            "engine.args splits the model over."
        )


def check_installed(vllm: Installed, config: EngineConfig) -> None:
    """Raise ConfigError if this vLLM lacks what the arguments need."""
    given = {argument_name(name): value for name, value in config.args.items()}
    if given.get("quantization") == "bitsandbytes" and not vllm.bitsandbytes:
        raise ConfigError(
            "vLLM's environment lacks the plugin for base models in 4 bits: install it with "
            f"`{vllm.python} -m pip install vllm-bnb-plugin`, sample with --engine local, or start a new run with "
            "unsloth.load_in_4bit=false."
        )


def command(vllm: Installed, config: EngineConfig, served: ServingSpec, *, port: int) -> list[str]:
    """The server's command line. It holds no secrets."""
    given = {argument_name(name): value for name, value in config.args.items()}
    words = [vllm.python, "-m", vllm.module]
    model = str(Path(served.model).resolve()) if served.local else served.model
    words += ["--model", model, "--served-model-name", served.name]
    words += ["--host", "127.0.0.1", "--port", str(port), "--middleware", GUARD]
    words += ["--disable-uvicorn-access-log", "--enable-prompt-tokens-details"]
    words += ["--dtype", "float32" if served.dtype == "auto" and vllm.cpu else served.dtype]
    words += ["--max-num-seqs", str(config.max_rows), "--seed", str(served.seed)]
    words += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    limits = [limit for limit in (served.max_context, config.max_context) if limit is not None]
    if limits:
        words += ["--max-model-len", str(min(limits))]
    if served.revision is not None:
        words += ["--revision", served.revision]
    if served.trust_remote_code:
        words += ["--trust-remote-code"]
    if not {"enable-prefix-caching", "no-enable-prefix-caching"} & set(given):
        words += ["--enable-prefix-caching"]
    if served.lora_rank is not None:
        rank = next(rank for rank in LORA_RANKS if rank >= served.lora_rank)
        words += ["--enable-lora", "--max-lora-rank", str(rank)]
        words += ["--max-loras", str(served.adapters), "--max-cpu-loras", str(2 * served.adapters)]
    lora = served.lora_rank is not None
    words += cpu_arguments(given, lora=lora) if vllm.cpu else _gpu_arguments(config, served, given)
    return words + [word for name, value in given.items() for word in _argument(name, value)]


def _gpu_arguments(config: EngineConfig, served: ServingSpec, given: Mapping[str, object]) -> list[str]:
    words = []
    if config.memory_share is not None:
        words += ["--gpu-memory-utilization", f"{config.memory_share:g}"]
    if served.sleep:
        words += ["--enable-sleep-mode"]
    replica = _gpus_of_replica(config.args)
    if "data-parallel-size" not in given and len(served.gpus) > replica:
        words += ["--data-parallel-size", str(len(served.gpus) // replica)]
    return words


def _gpus_of_replica(args: Mapping[str, object]) -> int:
    """Number of GPUs that each copy of the weights is split over."""
    given = {argument_name(name): value for name, value in args.items()}
    sizes = [given.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline")]
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def _argument(name: str, value: bool | int | float | str) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def environment(
    vllm: Installed,
    config: EngineConfig,
    served: ServingSpec,
    *,
    key: str,
    scratch: Mapping[str, str] = MappingProxyType({}),
    env: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Variables for vLLM's process, beside those that every child inherits (`system/processes/spawn.py`: no secrets).

    `key` is what requests must bring, `scratch` names the place of temporary files (`scratch.py`), and `env` is this
    process's environment. The token for the hub is passed on only if the model is on the hub.
    """
    # Kernels are compiled with programs (ninja) beside that Python.
    found = {"PATH": os.pathsep.join(filter(None, [str(Path(vllm.python).parent), env.get("PATH", "")]))}
    found |= {"PYTHONPATH": str(IN_VLLM), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "VLLM_LOGGING_COLOR": "0"}
    found |= {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if served.local:
        found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    elif served.token is not None and served.token in env:
        found["HF_TOKEN"] = env[served.token]
    found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "0" if served.lora_rank is None else "1"
    found["VLLM_SERVER_DEV_MODE"] = "1" if served.new_weights or (served.sleep and not vllm.cpu) else "0"
    device = _cpu_variables(config, env) if vllm.cpu else _gpu_variables(served, env)
    return {**found, **scratch, **device, **config.environment}


def _cpu_variables(config: EngineConfig, env: Mapping[str, str]) -> dict[str, str]:
    found = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    found["OMP_NUM_THREADS"] = env.get("OMP_NUM_THREADS") or str(max(1, free_cpus() - 1))
    cache = str(cpu_cache(config.memory_share, machine_memory()[0]))
    return found | {"VLLM_CPU_KVCACHE_SPACE": env.get("VLLM_CPU_KVCACHE_SPACE") or cache}


def _gpu_variables(served: ServingSpec, env: Mapping[str, str]) -> dict[str, str]:
    if served.gpus:
        return device_environment(served.gpus, env)
    return {"CUDA_DEVICE_ORDER": env.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID"}


def cpu_cache(share: float | None, memory: int) -> int:
    """GiB for keys and values on a CPU: the given share of the memory, or a sixteenth of it; from 1 to 16."""
    return max(1, min(16, int(memory * (share or 1 / 16) / _GIB)))


def weights_split(weights: int, memory: int, gpus: int, share: float = 0.9) -> int:
    """The best `tensor-parallel-size`: as few GPUs as leave a third of vLLM's share for keys and values.

    Replicas answer more requests than a split model does, since they need not wait for each other at every layer; so
    weights (in bytes) are split only if they would fill one GPU (`memory`, in bytes).
    """
    split = 1
    while split * 2 <= gpus and gpus % (split * 2) == 0 and weights / split > memory * share * 2 / 3:
        split *= 2
    return split
