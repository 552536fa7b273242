"""What a run is computed with: the engine, the processes and devices, and how the base model is loaded."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt

from mcp_rl.config.section import Section


def _flat(given: object) -> object:
    """Arguments of arguments, {compilation-config = {level = 0}}, as vLLM's command line has them."""
    return dict(_pairs(given)) if isinstance(given, Mapping) else given


def _pairs(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _texts(given: object) -> object:
    """Variables are texts, also where a number was written."""
    if not isinstance(given, Mapping):
        return given
    return {
        name: str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for name, value in given.items()
    }


def _numbers(given: object) -> object:
    """`0` and `0,1`, as the options take them."""
    if isinstance(given, str) and all(part.strip().isdecimal() for part in given.split(",")):
        return tuple(int(part) for part in given.split(","))
    return (given,) if isinstance(given, int) and not isinstance(given, bool) else given


GpuNumbers = Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_numbers)]


class EngineConfig(Section):
    """What samples."""

    kind: Literal["auto", "local", "vllm"] = "auto"
    """vLLM where there is a GPU and vLLM is installed, or where `url` or `python` is set; else ours, in process."""
    url: str | None = Field(default=None, min_length=1)
    """A vLLM server that runs already, such as http://127.0.0.1:8000/v1; none: one is started for the run."""
    python: Path | None = None
    """The Python whose environment has vLLM; none: our own."""
    args: Annotated[dict[str, bool | int | float | str], BeforeValidator(_flat)] = Field(default={})
    """More arguments of vLLM's server, such as {max-num-batched-tokens = 8192}; true is a flag without a value."""
    environment: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default={})
    """More variables for vLLM's process, such as {VLLM_CPU_KVCACHE_SPACE = "4"}."""
    memory_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of a GPU's memory that vLLM takes; none: by the memory and the model, as `mcp-rl doctor` shows."""
    sharing: Literal["auto", "sleep", "split"] = "auto"
    """On one GPU: the engine's memory is given up while the learner works, or each has its part; auto: sleep, unless
    rollouts go on meanwhile (`train.max_staleness`)."""
    max_context: int | None = Field(default=None, ge=64)
    """Most tokens of an episode; none: what the limits of a rollout allow, at most the model's positions."""
    max_rows: int = Field(default=256, ge=1)
    """Episodes sampled side by side: as many as rollouts are in flight by default."""
    start_seconds: float = Field(default=900.0, gt=0)
    """For vLLM to be ready: compiling for a large model takes minutes."""


class PlacementConfig(Section):
    """Which processes and devices do what."""

    in_process: bool | None = None
    """Whether the learner is in the trainer's own process; none: on a CPU yes, on a GPU no, where a child's crash is a
    named error and its memory is really freed."""
    learner_gpus: GpuNumbers = ()
    """Devices that learn, one process each (data-parallel); empty: the first one."""
    learner_processes: int | None = Field(default=None, ge=1, le=64)
    """Processes that learn side by side on CPUs; none: one. On GPUs there is one for each of `learner_gpus`."""
    engine_gpus: GpuNumbers = ()
    """Devices that sample; empty: the learner's, shared."""


class UnslothConfig(Section):
    """How the base model is loaded: the options of Unsloth's `FastLanguageModel.from_pretrained`. Without Unsloth,
    transformers and PEFT load it by the same ones."""

    use: bool | None = None
    """Load with Unsloth; none: where it is installed and there is a GPU, unless IMPORT_UNSLOTH=0."""
    model_name: str | None = Field(default=None, min_length=1)
    """What is loaded in place of `base_model`, such as a 4-bit copy of it; none: exactly `base_model`."""
    max_seq_length: int | None = Field(default=None, ge=64)
    """Most tokens of a sequence that is learned; none: the engine's context."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """By the hardware: bfloat16 where it has it, else float16; float32 on a CPU."""
    load_in_4bit: bool | None = None
    """Quantise the base to 4 bits (QLoRA); none: where 16 bits do not fit."""
    load_in_8bit: bool = False
    """Quantise the base to 8 bits: off, 4 bits take less and 16 are exact."""
    full_finetuning: bool | None = None
    """Train every weight; none: as `train.method` says, which it must agree with."""
    token: Literal["HF_TOKEN"] | None = "HF_TOKEN"
    """The variable with the token for gated models, whose value is never written; none: no token."""
    device_map: str | None = Field(default=None, min_length=1)
    """Where layers are put; none: all of them on the learner's device."""
    rope_scaling: dict[str, float | str] | None = None
    """Other positions than the model's own; none: its own."""
    fix_tokenizer: bool = True
    """Let Unsloth mend tokenizers that are known to be broken, as it does by itself."""
    trust_remote_code: bool = False
    """Run code from the model's repository: never, unless it is asked for."""
    use_gradient_checkpointing: Literal["unsloth"] | bool = "unsloth"
    """Activations offloaded by Unsloth, computed again (true), or kept (false); without Unsloth,
    `train.activation_checkpointing` says it."""
    resize_model_vocab: int | None = Field(default=None, ge=1)
    """Another size of the vocabulary; none: the model's."""
    revision: str | None = Field(default=None, min_length=1)
    """Branch, tag or commit on the hub; none: the main branch."""
    use_exact_model_name: bool = True
    """Never another copy under a like name: what is trained is what was asked for."""
    fast_inference: bool = False
    """Unsloth's own vLLM inside the learner: off, ours is a process of its own."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, lt=1)
    """Share of the memory for `fast_inference`: Unsloth's default."""
    float8_kv_cache: bool = False
    """Keys and values of `fast_inference` in 8 bits: off, it is inexact."""
    random_state: int | None = Field(default=None, ge=0)
    """Seed of the adapter; none: the run's seed."""
    max_lora_rank: int | None = Field(default=None, ge=1)
    """Highest rank that `fast_inference` takes; none: the adapter's."""
    disable_log_stats: bool = True
    """Keep `fast_inference` quiet."""
