"""A small random model of each decoder-only architecture that the learner is tested with; nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 97
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {},
    "Mistral": {"sliding_window": 9},
    "Gemma2": {"sliding_window": 12, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    "Gemma3": {**_MIXED, "query_pre_attn_scalar": 16},
    "Phi3": {"sliding_window": None},
    "GPTJ": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 256, "rotary_dim": 8},
    "Falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY},
    "StableLm": {},
    "DeepseekV3": {
        **_EXPERTS,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "head_dim": 8,
    },
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 256},
    "GPTNeoX": {},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 32},
    "Olmo2": {},
    "SmolLM3": {"no_rope_layers": [1, 0]},
    "Granite": {"logits_scaling": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    "Cohere": {"logit_scale": 0.3},
    "Cohere2": {**_MIXED, "logit_scale": 0.3},
    "GptOss": {**_MIXED, **_EXPERTS, "num_local_experts": 4},
    "Qwen3Moe": {**_EXPERTS, "num_experts": 4},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
_CONFIGS = {"Gemma3": "Gemma3TextConfig"}
_NAMED_OTHERWISE = {"GPT2", "GPTJ", "Falcon"}
"""Architectures whose configurations name their sizes differently."""
_MODELS = {"Gemma3": "Gemma3ForCausalLM", "GPT2": "GPT2LMHeadModel"}


def architecture(name: str, **changed: Any) -> Callable[[], PreTrainedModel]:
    """Return a function that makes the same model of this architecture each time."""

    def make() -> PreTrainedModel:
        torch.manual_seed(5)
        settings = {**({} if name in _NAMED_OTHERWISE else _SIZES), **ARCHITECTURES[name], **changed}
        config = getattr(transformers, _CONFIGS.get(name, f"{name}Config"))(**settings)
        model: PreTrainedModel = getattr(transformers, _MODELS.get(name, f"{name}ForCausalLM"))(config)
        return sharpened(model)

    return make


@torch.no_grad()
def sharpened(model: PreTrainedModel) -> PreTrainedModel:
    """Scale up a fresh model's weights, whose predictions would be nearly uniform."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
    model.eval()  # type: ignore[no-untyped-call]
    return model
