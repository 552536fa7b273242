"""The command and the environment that vLLM's server is started with, out of the settings. Pure: nothing is started.

What is asked for, and why:

- token ids and the logprobs that tokens were drawn with (`--logprobs-mode processed_logprobs`), and no sampling
  defaults out of the model's `generation_config.json`: a top_p there would bias the importance ratio unseen;
- adapters that come and go while it runs, as many at once as policies are sampled at once;
- a key, in the environment only, which `guard/` asks of every request: vLLM by itself guards what is under /v1;
- no usage statistics, and no look at the hub where the model is a folder.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mcp_rl.config import EngineConfig
from mcp_rl.config.engine_arguments import argument_mistakes, argument_name, variable_mistakes
from mcp_rl.errors import ConfigError
from mcp_rl.inference.vllm.installed import Installed
from mcp_rl.processes.devices import device_environment
from mcp_rl.processes.memory import machine_memory
from mcp_rl.threads import free_cpus

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM has kernels for (`vllm.config.lora.MaxLoRARanks`): ours is rounded up."""
GUARD = Path(__file__).with_name("guard")
"""A folder with two modules that vLLM's Python imports; nothing else of ours is on its path."""
_GIB = 2**30


@dataclass(frozen=True)
class Served:
    """What a server is to serve."""

    model: str
    """A folder, or a name on the hub."""
    name: str
    """What requests call the base model."""
    gpus: tuple[int, ...] = ()
    """Devices as nvidia-smi numbers them, or as CUDA_VISIBLE_DEVICES lists them; empty: the first, or the CPU."""
    lora_rank: int | None = None
    """Highest rank of the adapters that come; None: none come."""
    adapters: int = 4
    """Adapters that are sampled at once: the policy, those before whose turns are not over, one that is coming."""
    max_context: int | None = None
    """Most tokens of an episode; None: the model's positions."""
    dtype: str = "auto"
    """What the learner computes in; "auto": float32 on a CPU, else as the model's own."""
    revision: str | None = None
    trust_remote_code: bool = False
    token: str | None = "HF_TOKEN"
    """The variable with the token for gated models on the hub; None: none is handed on."""
    seed: int = 0
    sleep: bool = False
    """Whether its memory is to be given up at times."""
    new_weights: bool = False
    """Whether the base's own weights are replaced while it runs (full fine-tuning)."""

    @property
    def local(self) -> bool:
        """Whether the model is a folder, so that nothing need be looked for on the hub."""
        return Path(self.model).is_dir()


def check_served(config: EngineConfig, served: Served) -> None:
    """Raises ConfigError for what vLLM cannot be asked for, before anything starts."""
    mistakes = [*argument_mistakes(config.args), *variable_mistakes(config.environment)]
    if mistakes:
        raise ConfigError(f"{mistakes[0]}.")
    if served.lora_rank is not None and served.lora_rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"vLLM takes adapters of rank {LORA_RANKS[-1]} at most, not train.lora.rank = {served.lora_rank}."
        )
    if len(served.gpus) != len(set(served.gpus)):
        raise ConfigError(f"placement.engine_gpus = {served.gpus} names one twice.")
    replica = _gpus_of_replica(config.args)
    if served.gpus and len(served.gpus) % replica:
        spread = f"engine.args spreads the weights over {replica} GPUs"
        raise ConfigError(f"{spread}, and {len(served.gpus)} engine_gpus are no multiple of it.")


def check_installed(vllm: Installed, config: EngineConfig) -> None:
    """Raises ConfigError where this vLLM lacks what the arguments need."""
    given = {argument_name(name): value for name, value in config.args.items()}
    if given.get("quantization") == "bitsandbytes" and not vllm.bitsandbytes:
        raise ConfigError(
            "vLLM computes with a base in 4 bits by a plugin, which its environment lacks: "
            f"`{vllm.python} -m pip install vllm-bnb-plugin`, or sample with --engine local; for a new run there is "
            "unsloth.load_in_4bit=false too."
        )


def command(vllm: Installed, config: EngineConfig, served: Served, *, port: int) -> list[str]:
    """The server's command line; no secret is in it."""
    given = {argument_name(name): value for name, value in config.args.items()}
    words = [vllm.python, "-m", vllm.module]
    words += ["--model", served.model, "--served-model-name", served.name]
    words += ["--host", "127.0.0.1", "--port", str(port), "--middleware", "mcp_rl_guard.Guard"]
    words += ["--disable-uvicorn-access-log", "--enable-prompt-tokens-details"]
    words += ["--dtype", "float32" if served.dtype == "auto" and vllm.cpu else served.dtype]
    words += ["--max-num-seqs", str(config.max_rows), "--seed", str(served.seed)]
    words += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
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
    words += _for_cpu(served, given) if vllm.cpu else _for_gpus(config, served, given)
    return words + [word for name, value in given.items() for word in _passed(name, value)]


def _for_cpu(served: Served, given: Mapping[str, object]) -> list[str]:
    """One process that compiles nothing: a small model is ready in half a minute. A prompt goes forward at once, since
    0.32 dies of a request with a seed whose prompt is computed in parts (`gpu_model_runner.py` asks its generator for
    an offset, which only CUDA's have). Adapters are computed by `guard/mcp_rl_lora.py`, and the prefix cache has blocks
    of 32 tokens, its smallest here, in place of 128: most prompts of tools are shorter than a few of those."""
    words = [] if {"enforce-eager", "no-enforce-eager"} & set(given) else ["--enforce-eager"]
    if not {"enable-chunked-prefill", "no-enable-chunked-prefill"} & set(given):
        words += ["--no-enable-chunked-prefill"]
    if "block-size" not in given:
        words += ["--block-size", "32"]
    if served.lora_rank is not None and "worker-extension-cls" not in given:
        words += ["--worker-extension-cls", "mcp_rl_lora.Adapters"]
    return words if "distributed-executor-backend" in given else [*words, "--distributed-executor-backend", "uni"]


def _for_gpus(config: EngineConfig, served: Served, given: Mapping[str, object]) -> list[str]:
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
    """GPUs that each copy of the weights is spread over."""
    given = {argument_name(name): value for name, value in args.items()}
    sizes = [given.get(f"{way}-parallel-size", 1) for way in ("tensor", "pipeline")]
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def _passed(name: str, value: bool | int | float | str) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def environment(
    vllm: Installed,
    config: EngineConfig,
    served: Served,
    *,
    key: str,
    scratch: Mapping[str, str] = MappingProxyType({}),
    ours: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """What vLLM's process gets beside what every child of ours inherits (`processes/spawn.py`: no secrets).

    `key` is what requests must bring, `scratch` says where temporary files go (`scratch.py`). The token for the hub is
    handed on only where the model is there.
    """
    # Kernels are compiled with programs (ninja) that lie beside that Python.
    found = {"PATH": os.pathsep.join(filter(None, [str(Path(vllm.python).parent), ours.get("PATH", "")]))}
    found |= {"PYTHONPATH": str(GUARD), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "VLLM_LOGGING_COLOR": "0"}
    found |= {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if served.local:
        found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    elif served.token is not None and served.token in ours:
        found["HF_TOKEN"] = ours[served.token]
    found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "0" if served.lora_rank is None else "1"
    found["VLLM_SERVER_DEV_MODE"] = "1" if served.new_weights or (served.sleep and not vllm.cpu) else "0"
    of_device = _cpu_variables(config, ours) if vllm.cpu else _gpu_variables(served, ours)
    return {**found, **scratch, **of_device, **config.environment}


def _cpu_variables(config: EngineConfig, ours: Mapping[str, str]) -> dict[str, str]:
    found = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    found["OMP_NUM_THREADS"] = ours.get("OMP_NUM_THREADS") or str(max(1, free_cpus() - 1))
    cache = str(cpu_cache(config.memory_share, machine_memory()[0]))
    return found | {"VLLM_CPU_KVCACHE_SPACE": ours.get("VLLM_CPU_KVCACHE_SPACE") or cache}


def _gpu_variables(served: Served, ours: Mapping[str, str]) -> dict[str, str]:
    if served.gpus:
        return device_environment(served.gpus, ours)
    return {"CUDA_DEVICE_ORDER": ours.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID"}


def cpu_cache(share: float | None, memory: int) -> int:
    """GiB of keys and values on a CPU: the share that is asked for, or a sixteenth of the memory; from 1 to 16."""
    return max(1, min(16, int(memory * (share or 1 / 16) / _GIB)))


def weights_split(weights: int, memory: int, gpus: int, share: float = 0.9) -> int:
    """What `tensor-parallel-size` should be: as few GPUs as leave a third of vLLM's share for keys and values.

    Replicas answer more requests than a split model does, since they need not wait for each other at every layer; so
    the weights (bytes) are split only where they would fill one GPU (`memory`, bytes).
    """
    split = 1
    while split * 2 <= gpus and gpus % (split * 2) == 0 and weights / split > memory * share * 2 / 3:
        split *= 2
    return split
