"""The settings of [unsloth] are those of its loader, and what cannot hold together is refused in one sentence."""

from typing import Any

import pytest
from pydantic import ValidationError

from mcp_rl.config import RunConfig, UnslothConfig
from mcp_rl.config.load import load_config
from mcp_rl.errors import ConfigError

FROM_PRETRAINED = {
    "model_name", "max_seq_length", "dtype", "load_in_4bit", "load_in_8bit", "full_finetuning", "token", "device_map",
    "rope_scaling", "fix_tokenizer", "trust_remote_code", "use_gradient_checkpointing", "resize_model_vocab",
    "revision", "use_exact_model_name", "fast_inference", "gpu_memory_utilization", "float8_kv_cache", "random_state",
    "max_lora_rank", "disable_log_stats",
}  # fmt: skip
"""Parameters of FastLanguageModel.from_pretrained in Unsloth 2026.10.7."""


def test_every_option_of_the_loader_is_a_documented_setting() -> None:
    fields = UnslothConfig.model_fields
    assert set(fields) == FROM_PRETRAINED | {"use"}
    assert all(field.description for field in fields.values())


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"unsloth": {"load_in_4bit": True, "load_in_8bit": True}}, "load_in_4bit and unsloth.load_in_8bit"),
    "full and not": ({"unsloth": {"full_finetuning": True}}, 'full_finetuning = true and train.method = "lora"'),
    "not and full": (
        {"unsloth": {"full_finetuning": False}, "train": {"method": "full"}},
        'full_finetuning = false and train.method = "full"',
    ),
    "quantised and full": (
        {"unsloth": {"load_in_4bit": True}, "train": {"method": "full"}},
        "quantised weights cannot be trained",
    ),
    "a vocabulary in no adapter": ({"unsloth": {"resize_model_vocab": 2000}}, "which an adapter does not hold"),
    "rank": ({"unsloth": {"max_lora_rank": 8}}, "max_lora_rank = 8 is below train.lora.rank = 16"),
    "length": ({"unsloth": {"max_seq_length": 64}}, "max_seq_length = 64 is below rollout.max_tokens"),
    "engine of nobody": ({"unsloth": {"fast_inference": True}}, "fast_inference is set and unsloth.use is not true"),
    "two engines": (
        {"unsloth": {"fast_inference": True, "use": True}, "engine": {"kind": "vllm"}},
        "are two engines",
    ),
    "a cache of nothing": ({"unsloth": {"float8_kv_cache": True}}, "float8_kv_cache belongs to unsloth.fast_inference"),
    "memory of nothing": ({"unsloth": {"gpu_memory_utilization": 0.7}}, "gpu_memory_utilization belongs to"),
    "statistics of nothing": ({"unsloth": {"disable_log_stats": False}}, "disable_log_stats belongs to"),
    "spread twice": (
        {"unsloth": {"device_map": "balanced"}, "placement": {"learner_gpus": (0, 1)}},
        "gives each of 2 devices a model",
    ),
    "sampled by ours": ({"unsloth": {"use": True}, "engine": {"kind": "local"}}, "cannot sample a model with the"),
    "a tree in Unsloth": ({"unsloth": {"use": True}, "train": {"forward": "tree"}}, 'train.forward = "tree"'),
    "nobody mends": ({"unsloth": {"use": False, "fix_tokenizer": False}}, "only Unsloth repairs tokenizers"),
    "checkpointing of nobody": (
        {"unsloth": {"use": False, "use_gradient_checkpointing": True}},
        "set train.activation_checkpointing instead",
    ),
    "positions": ({"unsloth": {"rope_scaling": {"type": "round", "factor": 2}}}, "needs a type of linear, dynamic"),
    "shorter": ({"unsloth": {"rope_scaling": {"type": "linear", "factor": 0.5}}}, "factor of 1 or more, not 0.5"),
    "pinned": (
        {"unsloth": {"use": True, "fast_inference": True, "revision": "v1"}},
        "always loads the main branch, and unsloth.revision is set",
    ),
    "code": (
        {"unsloth": {"use": True, "fast_inference": True, "trust_remote_code": True}},
        "runs no code from the model's repository",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_settings_that_cannot_hold_together_are_one_sentence(case: str) -> None:
    settings, words = CONTRADICTIONS[case]
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({"server": ("s",), **settings})
    (error,) = caught.value.errors()
    assert words in error["msg"] and "\n" not in error["msg"]


AGREEING: list[dict[str, Any]] = [
    {"unsloth": {"load_in_4bit": True}},
    {"unsloth": {"load_in_8bit": True, "load_in_4bit": False}},
    {"unsloth": {"full_finetuning": True, "resize_model_vocab": 2000}, "train": {"method": "full"}},
    {"unsloth": {"max_lora_rank": 64, "rope_scaling": {"rope_type": "yarn", "factor": 4}}},
    {"unsloth": {"use": True}, "engine": {"kind": "vllm"}},
    {"unsloth": {"dtype": "bfloat16", "token": None, "random_state": 7, "device_map": "balanced"}},
]


@pytest.mark.parametrize("settings", AGREEING)
def test_settings_that_agree_are_taken(settings: dict[str, Any]) -> None:
    RunConfig.model_validate({"server": ("s",), **settings})


def test_a_token_is_a_variables_name_and_nothing_else() -> None:
    with pytest.raises(ConfigError, match="never holds the token itself") as caught:
        load_config(overrides=["unsloth.token=hf_abcdefgh", "server=s"])
    assert "hf_abcdefgh" not in str(caught.value)
