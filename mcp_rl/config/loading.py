"""Contradictions between settings of loading the base model, each as a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_rl.config.learning import TrainConfig
    from mcp_rl.config.machine import UnslothConfig
    from mcp_rl.config.run_settings import RunSettings

_POSITIONS = ("linear", "dynamic", "yarn", "llama3", "longrope")
"""Types of rotary scaling that both transformers and Unsloth know."""

_ONLY_UNSLOTH = {
    "fix_tokenizer": "only Unsloth repairs tokenizers, so leave it out",
    "use_exact_model_name": "only Unsloth loads other copies, so leave it out",
    "use_gradient_checkpointing": "without Unsloth, set train.activation_checkpointing instead",
}
"""Options without a meaning in transformers and PEFT, each with what to do."""


def loading_contradictions(options: UnslothConfig, train: TrainConfig) -> Iterator[str]:
    """Yield a sentence for each contradiction between the loading options and the section `train`."""
    bits = [f"unsloth.load_in_{n}bit" for n, on in ((4, options.load_in_4bit), (8, options.load_in_8bit)) if on]
    full = train.method == "full"
    if len(bits) > 1:
        yield f"{bits[0]} and {bits[1]} are both set: quantise the base to one of them, or not at all"
    if options.full_finetuning is not None and options.full_finetuning != full:
        yield (
            f'unsloth.full_finetuning = {_toml(options.full_finetuning)} and train.method = "{train.method}" '
            "contradict each other: set train.method only"
        )
    if bits and full:
        yield f'{bits[0]} and train.method = "full": quantised weights cannot be trained, but an adapter on them can'
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
        yield "unsloth.fast_inference is set and unsloth.use is not true: only Unsloth brings this engine"
    if options.fast_inference and options.revision:
        yield "unsloth.fast_inference always loads the main branch, and unsloth.revision is set: leave one of them out"
    if options.fast_inference and options.trust_remote_code:
        yield "unsloth.fast_inference runs no code from the model's repository: leave unsloth.trust_remote_code out"
    if not options.fast_inference:
        for name in ("gpu_memory_utilization", "float8_kv_cache", "disable_log_stats"):
            if getattr(options, name) != type(options).model_fields[name].default:
                yield f"unsloth.{name} belongs to unsloth.fast_inference, which is off: vLLM is set in [engine]"
    if options.use is False:
        for name, instead in _ONLY_UNSLOTH.items():
            if getattr(options, name) != type(options).model_fields[name].default:
                yield f"unsloth.{name} is set and unsloth.use = false: {instead}"
    if options.use and train.forward == "tree":
        yield (
            'unsloth.use = true and train.forward = "tree": Unsloth puts its own attention into the model, so leave '
            "train.forward or unsloth.use out"
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


def placed_contradictions(config: RunSettings) -> Iterator[str]:
    """Yield a sentence for each contradiction between the loading options and the engine or the placement."""
    options, placement = config.unsloth, config.placement
    longest = config.rollout.max_tokens
    if options.max_seq_length is not None and options.max_seq_length < longest:
        yield (
            f"unsloth.max_seq_length = {options.max_seq_length} is below rollout.max_tokens = {longest}: an episode "
            "may be longer than the learner can take"
        )
    if options.device_map is not None and len(placement.learner_gpus) > 1:
        yield (
            f"unsloth.device_map = {options.device_map} spreads one model over devices, and placement.learner_gpus "
            f"gives each of {len(placement.learner_gpus)} devices a model: leave one of them out"
        )
    if options.use and config.engine.kind == "local":
        yield (
            'unsloth.use = true and engine.kind = "local": the in-process engine cannot sample a model with the '
            "attention of Unsloth, but vLLM can"
        )
    if options.fast_inference and config.engine.kind == "vllm":
        yield 'unsloth.fast_inference and engine.kind = "vllm" are two engines: leave unsloth.fast_inference out'


def _toml(value: bool) -> str:
    return "true" if value else "false"
