"""The real chat templates of model families, read from TRL, on a tokenizer of ours that has their tokens, and small
random models of their architectures."""

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.tiny import weights_path

BAR = "\uff5c"
EOS = f"<{BAR}end\u2581of\u2581sentence{BAR}>"
_MARKS = re.compile(rf"<[|{BAR}][\w\u2581]+[|{BAR}]>|<\|\"\|>|<\|\w+>|<\w+\|>|</?think>|<(?:start|end)_of_turn>")


@dataclass(frozen=True)
class Family:
    """A template, the ends that its model's generation configuration names, and what must be found out of it."""

    template: str
    ends: tuple[str, ...]
    dialect: str
    thinks: bool = False
    told: bool = False
    """Its tools are told in the system prompt, by chat.format = "hermes"."""
    several: bool = True
    whole: bool = True
    """Turn by turn, its conversation is what its template makes of all of it."""
    trims: bool = False
    """It strips the blank ends of results, which stay as they are here."""
    model: str = "qwen2"
    """The type of its models, with what is special in their architecture."""
    sizes: dict[str, Any] = field(default_factory=dict)
    untrained: str = ""
    """What the sentence names that refuses to train it with the in-process engine."""


_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SHARED = {**_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
_LATENT = {"num_key_value_heads": 4, "head_dim": None, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
           "qk_rope_head_dim": 8, "v_head_dim": 8}  # fmt: skip
_LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
           "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}  # fmt: skip
_MAMBA = {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8,
          "n_groups": 1}  # fmt: skip

FAMILIES = [
    Family("qwen2_5", ("<|im_end|>",), "hermes"),
    Family("qwen3", ("<|im_end|>",), "hermes", thinks=True, model="qwen3"),
    Family("qwen3_instruct_2507", ("<|im_end|>",), "hermes", model="qwen3_moe", sizes=_EXPERTS),
    Family(
        "qwen3_5_think",
        ("<|im_end|>",),
        "xml",
        thinks=True,
        trims=True,
        model="qwen3_5_text",
        sizes=_LINEAR,
        untrained="linear_attention",
    ),
    Family("qwen3_8", ("<|im_end|>",), "xml", thinks=True, trims=True, model="qwen3_moe", sizes=_EXPERTS),
    Family(
        "nemotron_3_nano",
        ("<|im_end|>",),
        "xml",
        thinks=True,
        whole=False,
        model="nemotron_h",
        sizes=_MAMBA,
        untrained="recurrence",
    ),
    Family("llama3_1", ("<|eot_id|>", "<|eom_id|>"), "llama", several=False, model="llama"),
    Family(
        "llama3_2",
        ("<|eot_id|>", "<|eom_id|>"),
        "llama",
        several=False,
        model="llama",
        sizes={"tie_word_embeddings": True},
    ),
    Family(
        "gptoss",
        ("<|return|>", "<|call|>"),
        "harmony",
        thinks=True,
        several=False,
        model="gpt_oss",
        sizes={**_WINDOWS, **_EXPERTS, "num_local_experts": 4},
    ),
    Family("glm4moe", ("<|user|>", "<|observation|>"), "glm", thinks=True, model="glm4_moe", sizes=_SHARED),
    Family(
        "gemma4_v5",
        ("<turn|>", "<|tool_response>"),
        "gemma",
        thinks=True,
        model="gemma4_text",
        sizes={
            **_WINDOWS,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 5000,
            "per_layer_config": {"1": {"head_dim": 16}},
        },
    ),
    Family(
        "lfm2_2_5",
        ("<|im_end|>",),
        "lfm",
        thinks=True,
        model="lfm2",
        sizes={"layer_types": ["conv", "full_attention"]},
        untrained="conv",
    ),
    Family("llama3", ("<|eot_id|>",), "hermes", told=True, model="mistral"),  # whose own templates TRL has not
    Family(
        "gemma3",
        ("<end_of_turn>",),
        "hermes",
        told=True,
        model="gemma3_text",
        sizes={**_WINDOWS, "query_pre_attn_scalar": 8},
    ),
    Family("phi3_5", ("<|end|>",), "hermes", told=True, whole=False, model="phi3"),
    Family(
        "deepseekv3",
        (EOS,),
        "hermes",
        thinks=True,
        told=True,
        whole=False,
        model="deepseek_v3",
        sizes={**_SHARED, **_LATENT},
    ),
    Family("deepseek_r1_distill", (EOS,), "hermes", thinks=True, told=True, whole=False),
]


def templates() -> Path | None:
    """Return TRL's folder of templates, without importing TRL; None if it is not installed."""
    found = find_spec("trl")
    return Path(str(found.origin)).parent / "chat_templates" if found is not None else None


def tokenizer_of(family: Family) -> Any:
    """Return our tokenizer with a family's template and special tokens."""
    folder = templates()
    assert folder is not None
    source = (folder / f"{family.template}.jinja").read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    marks = {*_MARKS.findall(source), *family.ends, "<bos>"}
    tokenizer.add_tokens(sorted(marks - set(tokenizer.get_vocab())), special_tokens=True)
    tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token = source, "<bos>", family.ends[0]
    return tokenizer


def chat_of(family: Family, **settings: Any) -> ChatFormat:
    """Return the chat format of a family, told in the system prompt where its template has no tools."""
    tokenizer = tokenizer_of(family)
    ends = tokenizer.convert_tokens_to_ids(list(family.ends))
    return ChatFormat(tokenizer, ends, format="hermes" if family.told else "auto", **settings)


def write_base(family: Family, folder: Path) -> Path:
    """Write a small random model of a family's architecture, with its template and its ends, into a folder."""
    tokenizer = tokenizer_of(family)
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.model, **{**_SIZES, **family.sizes, "vocab_size": len(tokenizer)})
    config.bos_token_id = config.eos_token_id = None
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids(list(family.ends)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
