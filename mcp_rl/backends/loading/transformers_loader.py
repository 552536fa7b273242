"""The base model by transformers alone: whole, or quantised by bitsandbytes as it is loaded."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mcp_rl.backends.loading.loaded import dtype_for
from mcp_rl.backends.loading.options import LoadPlan
from mcp_rl.errors import ConfigError

_KEEPS_ITS_LENGTH = ("dynamic", "default", "proportional")
"""Kinds of positions for which the model's own length stays what it was."""


def read_config(plan: LoadPlan, name: str | None = None) -> Any:
    """The configuration at the place that is to be loaded, or at another. Raises what transformers raises."""
    where = {"token": plan.token(), "trust_remote_code": plan.options.trust_remote_code}
    if name is None:
        return AutoConfig.from_pretrained(plan.location, revision=plan.revision, **where)
    return AutoConfig.from_pretrained(name, **where)


def load_with_transformers(plan: LoadPlan, config: Any) -> PreTrainedModel:
    """The model, on the learner's device. Raises OSError and ValueError as transformers does, ConfigError for options
    that do not fit the model."""
    options, cuda = plan.options, torch.cuda.is_available()
    dtype = dtype_for(plan)
    settings: dict[str, Any] = {"dtype": dtype, "trust_remote_code": options.trust_remote_code, "token": plan.token()}
    if plan.revision is not None:
        settings["revision"] = plan.revision
    if options.rope_scaling is not None:
        settings["config"] = with_positions(config, options.rope_scaling)
    if options.device_map is not None:
        settings["device_map"] = options.device_map
    elif plan.quantisation in ("8-bit", "4-bit"):
        settings["device_map"] = {"": torch.cuda.current_device() if cuda else "cpu"}
    if plan.quantisation in ("8-bit", "4-bit"):
        settings["quantization_config"] = _bitsandbytes(plan, dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(plan.location, **settings)
    if not cuda:
        _stay_trainable(model)
    if options.resize_model_vocab is not None:
        _resize(model, options.resize_model_vocab, plan.seed)
    if cuda and "device_map" not in settings:
        model = model.to("cuda")
    return model  # type: ignore[no-any-return]


def _bitsandbytes(plan: LoadPlan, dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    make: Any = BitsAndBytesConfig
    if plan.quantisation == "8-bit":
        return make(load_in_8bit=True)
    return make(  # QLoRA: Dettmers et al., 2023, section 3
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def _stay_trainable(model: Any) -> None:
    """On CPUs that compute bfloat16, layers in 4 bits repack their weights in place as soon as nobody seems to train
    them, and then have no gradient."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def with_positions(config: Any, scaling: dict[str, float | str]) -> Any:
    """The configuration with other rotary positions: `{type = "linear", factor = 2}` and the like."""
    text = config.get_text_config()
    own = getattr(text, "rope_parameters", None)
    if not isinstance(own, dict) or "rope_type" not in own:
        raise ConfigError(f"unsloth.rope_scaling: {type(config).__name__} has no rotary positions of one kind.")
    given = dict(scaling)
    kind = str(given.pop("type", given.pop("rope_type", "")))
    factor = float(given.get("factor", 1.0))
    longest = int(text.max_position_embeddings)
    if kind in ("yarn", "llama3", "longrope"):
        given.setdefault("original_max_position_embeddings", longest)
    text.rope_parameters = {**own, **given, "rope_type": kind}
    if kind not in _KEEPS_ITS_LENGTH:
        text.max_position_embeddings = int(longest * factor)
    return config


def _resize(model: PreTrainedModel, size: int, seed: int) -> None:
    """Another number of tokens; new rows are drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(size)
