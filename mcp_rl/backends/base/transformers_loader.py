"""Loads the base model by transformers alone: whole, or quantised by bitsandbytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mcp_rl.backends.base.loaded import dtype_for
from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from mcp_rl.backends.base.options import LoadPlan

_KEEPS_ITS_LENGTH = ("dynamic", "default", "proportional")
"""Kinds of rotary positions that leave the model's own length as it was."""


def read_config(plan: LoadPlan, name: str | None = None) -> Any:
    """Return the configuration at the planned place, or at another. Raises what transformers raises."""
    where = {"token": plan.token(), "trust_remote_code": plan.options.trust_remote_code}
    if name is None:
        return AutoConfig.from_pretrained(plan.location, revision=plan.revision, **where)
    return AutoConfig.from_pretrained(name, **where)


def load_with_transformers(plan: LoadPlan, config: Any) -> PreTrainedModel:
    """Load the model onto the learner's device. Raises OSError and ValueError as transformers does, and ConfigError for
    options that do not fit the model."""
    options, cuda = plan.options, torch.cuda.is_available()
    dtype = dtype_for(plan)
    settings: dict[str, Any] = {"dtype": dtype, "trust_remote_code": options.trust_remote_code, "token": plan.token()}
    settings["use_safetensors"] = True  # a pickle may run code as it is read
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
    loading: Any = AutoModelForCausalLM.from_pretrained
    model, found = loading(plan.location, output_loading_info=True, **settings)
    if missing := sorted(found["missing_keys"]):  # transformers would train on random ones
        raise ConfigError(
            f"The weights of {plan.name} lack {len(missing)} that its config.json describes, such as {missing[0]}, so "
            "they are another model's: put the right files together."
        )
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
    """Keep 4-bit layers trainable on CPUs that compute bfloat16: as soon as they do not seem to be trained, they repack
    their weights in place, and then have no gradient."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def with_positions(config: Any, scaling: dict[str, float | str]) -> Any:
    """Return the configuration with other rotary positions, such as `{type = "linear", factor = 2}`."""
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
    """Change the size of the vocabulary; new rows are drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(size)
