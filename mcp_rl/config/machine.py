"""Settings of the machine: the engine, the processes and devices, and the loading of the base model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt

from mcp_rl.config.section import CARRIED, LIVE, Role, Section


def _flat(given: object) -> object:
    """Flatten nested arguments, such as {compilation-config = {level = 0}}, as on vLLM's command line."""
    return dict(_pairs(given)) if isinstance(given, Mapping) else given


def _pairs(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _texts(given: object) -> object:
    """Turn numbers into text, as environment variables are."""
    if not isinstance(given, Mapping):
        return given
    return {
        name: str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for name, value in given.items()
    }


def _numbers(given: object) -> object:
    """Read `0` and `0,1`, the forms that command-line options take."""
    if isinstance(given, str) and all(part.strip().isdecimal() for part in given.split(",")):
        return tuple(int(part) for part in given.split(","))
    return (given,) if isinstance(given, int) and not isinstance(given, bool) else given


_AS_LOADED = Role(fixed="the checkpoint belongs to its base model as it was loaded")
GpuNumbers = Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_numbers)]


class EngineConfig(Section):
    """The engine that samples."""

    kind: Literal["auto", "local", "vllm"] = "auto"
    """Engine that samples: vLLM if there is a GPU and vLLM is installed, or if `url` or `python` is set; else the
    in-process one."""
    url: Annotated[str | None, Role(carried=False)] = Field(default=None, min_length=1)
    """Address of a running vLLM server, such as http://127.0.0.1:8000/v1; none: one is started for the run."""
    python: Path | None = None
    """A Python whose environment has vLLM; none: the Python of this process."""
    args: Annotated[dict[str, bool | int | float | str], BeforeValidator(_flat)] = Field(default={})
    """Further arguments of vLLM's server, such as {max-num-batched-tokens = 8192}; true is a flag without a value."""
    environment: Annotated[dict[str, str], BeforeValidator(_texts), Role(carried=False)] = Field(default={})
    """Further environment variables of vLLM's process, such as {VLLM_CPU_KVCACHE_SPACE = "4"}."""
    memory_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of a GPU's memory that vLLM takes; none: by the memory and the model, as `mcp-rl doctor` shows."""
    sharing: Literal["auto", "sleep", "split"] = "auto"
    """Sharing of one GPU: the engine gives its memory up while the learner works (sleep), or each keeps a part
    (split); auto: sleep, unless rollouts go on meanwhile (`train.max_staleness`)."""
    max_context: int | None = Field(default=None, ge=64)
    """Maximum tokens of an episode; none: as the limits of a rollout allow, at most the model's positions."""
    max_rows: int = Field(default=256, ge=1)
    """Episodes sampled side by side: as many as rollouts are in flight by default."""
    start_seconds: Annotated[float, Role(carried=False)] = Field(default=900.0, gt=0)
    """Seconds for vLLM to start: compiling for a large model takes minutes."""


class PlacementConfig(Section):
    """The processes and devices that learn and sample."""

    in_process: bool | None = None
    """Run the learner in the trainer's own process; none: on a CPU yes, on a GPU no, where a child's crash is a
    named error and its memory is really freed."""
    learner_gpus: GpuNumbers = ()
    """GPUs that learn, one process each (data-parallel); empty: the first one."""
    learner_processes: Annotated[int | None, Role(carried=False)] = Field(default=None, ge=1, le=64)
    """Processes that learn side by side on CPUs; none: one. On GPUs, `learner_gpus` decides."""
    engine_gpus: GpuNumbers = ()
    """GPUs that sample; empty: the learner's, shared."""
    hourly_rate: float | None = Field(default=None, gt=0)
    """US dollars that the machine costs an hour, for the forecast of `mcp-rl doctor`; none: no cost is forecast."""


class RayConfig(Section):
    """The parts of a run on a Ray cluster (`backend = "ray"`), and how long it waits for them."""

    address: str = Field(default="auto", min_length=1)
    """Address of the cluster, HOST:PORT of its head node; auto: RAY_ADDRESS or a cluster on this machine, else one that
    is started here for the run; local: always one that is started here."""
    learners: int = Field(default=1, ge=1, le=1024)
    """Processes that learn side by side: one, as most of a step is sampling."""
    engines: int = Field(default=1, ge=1, le=4096)
    """Engines that sample from the beginning."""
    most_engines: int | None = Field(default=None, ge=1, le=4096)
    """Most engines, if more may join where room appears; none: as many as `engines`, since a cluster may be shared."""
    tool_nodes: int = Field(default=1, ge=0, le=4096)
    """Tool nodes to wait for at the beginning, each on a node with the resource mcp_rl_tools; all that join later are
    used too; 0: episodes are played by the driver."""
    learner_cpus: float = Field(default=1.0, ge=0)
    """CPUs that Ray reserves for each learner: a count for its placement, not a limit."""
    engine_cpus: float = Field(default=1.0, ge=0)
    """CPUs that Ray reserves for each engine."""
    tool_cpus: float = Field(default=0.0, ge=0)
    """CPUs that Ray reserves for each tool node: none, as `mcp_rl_tools` places it."""
    learner_gpus: float | None = Field(default=None, ge=0)
    """GPUs of each learner; none: one if the cluster has GPUs."""
    engine_gpus: float | None = Field(default=None, ge=0)
    """GPUs of each engine; none: one if the cluster has GPUs. More are used by the tensor-parallel-size of
    `engine.args`."""
    whole_weights: Literal["auto", "broadcast", "store"] = "auto"
    """Way of all weights to the engines, with `train.method=full`; auto: a broadcast by NCCL where learners and engines
    have GPUs, else the object store."""
    waits_for_nodes: bool = False
    """Wait for nodes that an autoscaler adds, instead of refusing what the cluster cannot hold now."""
    patience: float = Field(default=45.0, gt=0)
    """Seconds for actors to be placed and started, and for a lost one to come back while none of its kind is left; more
    with an autoscaler."""
    silence: float = Field(default=15.0, gt=0)
    """Seconds without a sign of life after which an actor counts as lost: a busy machine answers within a few."""
    start_seconds: float = Field(default=1200.0, gt=0)
    """Seconds for a base model to be loaded, or vLLM to start: compiling for a large model takes minutes."""
    turn_seconds: float = Field(default=600.0, gt=0)
    """Seconds for an engine to sample one turn, waiting included: as long as an episode may take."""
    update_seconds: float = Field(default=7200.0, gt=0)
    """Seconds for a training step or a save of a whole model."""
    close_seconds: float = Field(default=15.0, gt=0)
    """Seconds for actors to end their servers before they are killed."""


class UnslothConfig(Section):
    """Loading of the base model: the options of Unsloth's `FastLanguageModel.from_pretrained`. Without Unsloth,
    transformers and PEFT load it by the same options."""

    use: Annotated[bool | None, CARRIED] = None
    """Load with Unsloth; none: if it is installed, whichever is measured to be faster for this model and these lengths,
    its kernels or shared prefixes, once on each machine; where nothing was measured, with a quantised base on a GPU."""
    model_name: Annotated[str | None, _AS_LOADED] = Field(default=None, min_length=1)
    """Weights to load in place of `base_model`, such as a 4-bit copy of it; none: exactly `base_model`."""
    max_seq_length: Annotated[int | None, CARRIED] = Field(default=None, ge=64)
    """Maximum tokens of a sequence to learn from; none: the engine's context."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], CARRIED] = "auto"
    """Type of the weights; auto: bfloat16 if the hardware has it, else float16; float32 on a CPU."""
    load_in_4bit: Annotated[bool | None, _AS_LOADED] = None
    """Quantise the base to 4 bits (QLoRA); none: if 16 bits do not fit."""
    load_in_8bit: Annotated[bool, _AS_LOADED] = False
    """Quantise the base to 8 bits: off, as 4 bits take less and 16 are exact."""
    full_finetuning: Annotated[bool | None, LIVE] = None
    """Train every weight; none: as `train.method` says, which it must agree with."""
    token: Annotated[Literal["HF_TOKEN"] | None, CARRIED] = "HF_TOKEN"
    """Environment variable with the token for gated models, whose value is never written; none: no token."""
    device_map: Annotated[str | None, CARRIED] = Field(default=None, min_length=1)
    """Placement of the layers; none: all of them on the learner's device."""
    rope_scaling: Annotated[dict[str, float | str] | None, _AS_LOADED] = None
    """Scaling of the rotary positions; none: the model's own."""
    fix_tokenizer: bool = True
    """Let Unsloth repair tokenizers that are known to be broken, its default."""
    trust_remote_code: Annotated[bool, Role(identity=False, carried=True, replay=True, same_policy=True)] = False
    """Run code from the model's repository: never, unless you ask for it."""
    use_gradient_checkpointing: Annotated[Literal["unsloth"] | bool | None, CARRIED] = None
    """Activations offloaded by Unsloth, recomputed (true), or kept (false); none: offloaded where
    `train.activation_checkpointing` is on, which is all that decides without Unsloth."""
    resize_model_vocab: Annotated[int | None, _AS_LOADED] = Field(default=None, ge=1)
    """Size of the vocabulary; none: the model's."""
    revision: Annotated[str | None, _AS_LOADED] = Field(default=None, min_length=1)
    """Branch, tag or commit on the hub; none: the main branch."""
    use_exact_model_name: bool = True
    """Never load another copy under a similar name: what is trained is what was asked for."""
    fast_inference: Annotated[bool, LIVE] = False
    """Unsloth's own vLLM inside the learner: off, as the engine runs in a process of its own."""
    gpu_memory_utilization: Annotated[float, LIVE] = Field(default=0.5, gt=0, lt=1)
    """Share of the memory for `fast_inference`: Unsloth's default."""
    float8_kv_cache: Annotated[bool, LIVE] = False
    """8-bit keys and values in `fast_inference`: off, as it is inexact."""
    random_state: Annotated[int | None, Role(fixed="the adapter is already initialised")] = Field(default=None, ge=0)
    """Seed of the adapter; none: the run's seed."""
    max_lora_rank: Annotated[int | None, LIVE] = Field(default=None, ge=1)
    """Highest rank that `fast_inference` takes; none: the adapter's."""
    disable_log_stats: Annotated[bool, LIVE] = True
    """Keep `fast_inference` quiet."""
