"""Loads the base model and its adapter by Unsloth: its loader, its kernels, its gradient checkpointing.

Unsloth changes transformers and PEFT when it is imported, so `import_first` is called before they are imported. Its
prints go to stderr, since stdout is for results; it reports nothing home.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, cast

import torch

from mcp_rl.backends.base.first import set_manners
from mcp_rl.backends.base.loaded import dtype_for
from mcp_rl.backends.base.options import INSTALL, LoadPlan
from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import ADAPTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peft import PeftModel
    from transformers import PreTrainedModel

FALLBACK_LENGTH = 4096
"""Most tokens of a sequence if neither the settings nor the model say a number."""


def load_with_unsloth(plan: LoadPlan, config: Any) -> PreTrainedModel:
    """Load the model by Unsloth. Raises ConfigError if Unsloth cannot be used here, and what Unsloth raises."""
    with _quietly():
        try:
            from unsloth import FastLanguageModel
        except ImportError as error:
            raise ConfigError(f"Unsloth cannot be imported ({_first_line(error)}): {INSTALL['unsloth']}") from error
        except NotImplementedError as error:
            raise ConfigError(
                "Unsloth needs a GPU, and found none: set unsloth.use=false, and transformers loads the model."
            ) from error
        model, _ = FastLanguageModel.from_pretrained(**arguments(plan, config))
    return cast("PreTrainedModel", model)


def arguments(plan: LoadPlan, config: Any) -> dict[str, Any]:
    """Return the arguments of `FastLanguageModel.from_pretrained`."""
    options = plan.options
    given: dict[str, Any] = {
        "model_name": plan.location,
        "max_seq_length": plan.max_seq_length or _own_length(config),
        "dtype": dtype_for(plan),
        "load_in_4bit": plan.quantisation == "4-bit",
        "load_in_8bit": plan.quantisation == "8-bit",
        "full_finetuning": plan.full,
        "token": plan.token() or None,
        "rope_scaling": options.rope_scaling,
        "fix_tokenizer": options.fix_tokenizer,
        "trust_remote_code": options.trust_remote_code,
        "use_gradient_checkpointing": checkpointing(plan),
        "resize_model_vocab": options.resize_model_vocab,
        "revision": plan.revision,
        "use_exact_model_name": options.use_exact_model_name,
        "offload_embedding": False,  # by default large ones go to the host's memory, unplanned
        "fast_inference": options.fast_inference,
        "random_state": plan.seed,
        "max_lora_rank": plan.rank,
    }
    given["device_map"] = options.device_map or {
        "": torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    }
    if options.fast_inference:
        given |= {
            "gpu_memory_utilization": options.gpu_memory_utilization,
            "float8_kv_cache": options.float8_kv_cache,
            "disable_log_stats": options.disable_log_stats,
        }
    return given


def checkpointing(plan: LoadPlan) -> str | bool:
    """Return Unsloth's setting for activations: its own if given, else the one that follows from
    `train.activation_checkpointing`."""
    own = plan.options.use_gradient_checkpointing
    return own if own is not None else "unsloth" if plan.checkpointing else False


def adapt_with_unsloth(
    model: PreTrainedModel, plan: LoadPlan, *, rank: int, alpha: int, targets: Sequence[str], base_name: str, seed: int
) -> PeftModel:
    """Put a fresh adapter, computed by Unsloth's kernels, on a model that Unsloth loaded."""
    from unsloth import FastLanguageModel

    with _quietly(), torch.random.fork_rng():
        adapted = FastLanguageModel.get_peft_model(
            model,
            r=rank,
            target_modules=list(targets),
            lora_alpha=alpha,
            lora_dropout=0.0,
            bias="none",
            use_gradient_checkpointing=checkpointing(plan),
            random_state=seed,
            max_seq_length=getattr(model, "max_seq_length", None) or plan.max_seq_length or FALLBACK_LENGTH,
        )
    adapted.peft_config[ADAPTER].base_model_name_or_path = base_name
    adapted.eval()
    return cast("PeftModel", adapted)


def _own_length(config: Any) -> int:
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or FALLBACK_LENGTH)


@contextlib.contextmanager
def _quietly() -> Any:
    set_manners()
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
