"""Settings of how the base model is loaded that cannot hold together, each as a sentence."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mcp_rl.config.learning import TrainConfig
from mcp_rl.config.machine import UnslothConfig

if TYPE_CHECKING:
    from mcp_rl.config.run import RunConfig

_POSITIONS = ("linear", "dynamic", "yarn", "llama3", "longrope")
"""Kinds of rotary positions that transformers and Unsloth both know."""

_OF_UNSLOTH = {
    "fix_tokenizer": "only Unsloth mends tokenizers, so leave it out",
    "use_exact_model_name": "only Unsloth takes other copies, so leave it out",
    "use_gradient_checkpointing": "without Unsloth it is train.activation_checkpointing that says it",
}
"""Options that mean nothing to transformers and PEFT, and what to do."""


def loading_contradictions(options: UnslothConfig, train: TrainConfig) -> Iterator[str]:
    """Of how the base model is loaded."""
    bits = [f"unsloth.load_in_{n}bit" for n, on in ((4, options.load_in_4bit), (8, options.load_in_8bit)) if on]
    full = train.method == "full"
    if len(bits) > 1:
        yield f"{bits[0]} and {bits[1]} are both set: the base is quantised to one of them, or not at all"
    if options.full_finetuning is not None and options.full_finetuning != full:
        yield (
            f'unsloth.full_finetuning = {_toml(options.full_finetuning)} and train.method = "{train.method}" '
            "contradict each other: set train.method alone"
        )
    if bits and full:
        yield f'{bits[0]} and train.method = "full": quantised weights cannot be trained, an adapter on them can'
    if options.resize_model_vocab is not None and not full:
        yield (
            "unsloth.resize_model_vocab changes the embeddings, which an adapter does not hold: leave it out, or train "
            'every weight with train.method = "full"'
        )
    if options.max_lora_rank is not None and not full and options.max_lora_rank < train.lora.rank:
        yield (
            f"unsloth.max_lora_rank = {options.max_lora_rank} is below train.lora.rank = {train.lora.rank}, the rank "
            "of the adapter"
        )
    if options.fast_inference and not options.use:
        yield "unsloth.fast_inference is set and unsloth.use is not true: only Unsloth has an engine of its own"
    if options.fast_inference and options.revision:
        yield "unsloth.fast_inference loads the main branch, whatever unsloth.revision says: leave one of them out"
    if options.fast_inference and options.trust_remote_code:
        yield "unsloth.fast_inference runs no code of the model's repository: leave unsloth.trust_remote_code out"
    if not options.fast_inference:
        for name in ("gpu_memory_utilization", "float8_kv_cache", "disable_log_stats"):
            if getattr(options, name) != type(options).model_fields[name].default:
                yield f"unsloth.{name} is of unsloth.fast_inference, which is off: vLLM's own settings are in [engine]"
    if options.use is False:
        for name, instead in _OF_UNSLOTH.items():
            if getattr(options, name) != type(options).model_fields[name].default:
                yield f"unsloth.{name} is set and unsloth.use = false: {instead}"
    if options.use and train.forward == "tree":
        yield (
            'unsloth.use = true and train.forward = "tree": Unsloth puts its own attention into the model, so leave '
            "train.forward to be found out, or leave unsloth.use out"
        )
    yield from _positions_contradictions(options.rope_scaling)


def _positions_contradictions(scaling: Mapping[str, float | str] | None) -> Iterator[str]:
    if scaling is None:
        return
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind not in _POSITIONS:
        known = ", ".join(_POSITIONS)
        yield f'unsloth.rope_scaling needs a type of {known}, such as {{type = "linear", factor = 2}}, not {kind}'
    elif not isinstance(factor, int | float) or factor < 1:
        yield f"unsloth.rope_scaling needs a factor of 1 or more, not {factor}"


def placed_contradictions(config: "RunConfig") -> Iterator[str]:
    """Of loading with what else a run is computed with."""
    options, placement = config.unsloth, config.placement
    longest = config.rollout.max_tokens
    if options.max_seq_length is not None and options.max_seq_length < longest:
        yield (
            f"unsloth.max_seq_length = {options.max_seq_length} is below rollout.max_tokens = {longest}: an episode "
            "may be longer than what is learned of it"
        )
    if options.device_map is not None and len(placement.learner_gpus) > 1:
        yield (
            f"unsloth.device_map = {options.device_map} spreads one model over devices, and placement.learner_gpus "
            f"gives each of {len(placement.learner_gpus)} devices a model: leave one of them out"
        )
    if options.use and config.engine.kind == "local":
        yield (
            'unsloth.use = true and engine.kind = "local": our engine cannot sample a model with the attention of '
            "Unsloth; vLLM can"
        )
    if options.fast_inference and config.engine.kind == "vllm":
        yield 'unsloth.fast_inference and engine.kind = "vllm" are two engines: leave unsloth.fast_inference out'


def _toml(value: bool) -> str:
    return "true" if value else "false"
