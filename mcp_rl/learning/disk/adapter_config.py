"""The configuration of an adapter that comes from anywhere, read before PEFT does what it says.

PEFT makes layers of the rank that it names, of gigabytes if it likes, before it compares them with the weights; it
matches layers by regular expressions that may take for ever; and some options compute, replicate layers or import.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from mcp_rl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from peft import PeftModel
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_REFUSED = (
    *("megatron_config", "layer_replication", "loftq_config", "eva_config", "corda_config"),
    *("lora_ga_config", "velora_config", "alora_invocation_tokens", "use_qalora", "monteclora_config"),
    *("runtime_config", "target_parameters", "use_bdlora", "arrow_config", "kasa_config", "trainable_token_indices"),
)
"""Options of PEFT beyond LoRA with its usual variants; each of them computes, imports or makes further weights."""
_NAME = re.compile(r"[\w.]+")
_FACTOR = re.compile(r"\.lora_(?:embedding_)?([AB])\b")
_NUMBERS = ("rank_pattern", "alpha_pattern")


def adapter_options(folder: Path, layers: Iterable[str]) -> dict[str, Any]:
    """Return the configuration of the adapter in a folder, for a model with layers of these names.

    Layers that it names by a pattern are listed by their names. Raises CheckpointError if it is no LoRA, or says what
    its weights do not have.
    """
    about = _read(folder)
    if about.get("peft_type") != "LORA":
        raise _refused(folder, f"it is of type {str(about.get('peft_type'))[:40]!r}, and only LORA is loaded")
    if odd := [name for name in _REFUSED if about.get(name)]:
        raise _refused(folder, f"it has {odd[0]}, which no LoRA needs; merge it into its base where you trust it")
    rank, ranks = about.get("r"), _ranks(folder)
    if not _plain_patterns(about):
        raise _refused(folder, "its rank_pattern or alpha_pattern names layers by an expression")
    wanted = [rank, *(about.get("rank_pattern") or {}).values()]
    if not all(type(one) is int and 0 < one <= max(ranks, default=0) for one in wanted):
        raise _refused(folder, f"its weights are of the ranks {sorted(ranks)[:5]}, and it says {str(wanted)[:80]}")
    return {
        **about,
        "target_modules": _layers(folder, "target_modules", about.get("target_modules"), list(layers)),
        "exclude_modules": _layers(folder, "exclude_modules", about.get("exclude_modules"), list(layers)),
        "init_lora_weights": True,
        "auto_mapping": None,
    }


def load_adapter(base: PreTrainedModel, folder: Path) -> PeftModel:
    """Return the model with the adapter in a folder. Raises CheckpointError like `adapter_options`, and what PEFT
    raises for weights that do not fit."""
    from peft import PeftConfig, PeftModel

    about = adapter_options(folder, (name for name, _ in base.named_modules()))
    config = PeftConfig.from_peft_type(**about)  # type: ignore[no-untyped-call]
    return PeftModel.from_pretrained(base, str(folder), config=config, local_files_only=True)


def _read(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"Cannot read {folder / CONFIG}: {error}.") from error
    if not isinstance(about, dict):
        raise CheckpointError(f"{folder / CONFIG} is not a JSON object.")
    return about


def _plain_patterns(about: dict[str, Any]) -> bool:
    """Return whether ranks and alphas of single layers are named by their layers, not by regular expressions."""
    patterns = [about.get(name) or {} for name in _NUMBERS]
    return all(isinstance(pattern, dict) and all(map(_NAME.fullmatch, pattern)) for pattern in patterns)


def _ranks(folder: Path) -> set[int]:
    """Return the ranks of the adapter's weights, by the header of its file."""
    try:
        with safe_open(folder / WEIGHTS, framework="np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"Cannot read {folder / WEIGHTS}: {error}.") from error
    factors = [(*_FACTOR.findall(name)[-1:], shape) for name, shape in shapes.items()]
    return {shape["AB".index(found[0])] for *found, shape in factors if found and len(shape) > 1}


def _layers(folder: Path, name: str, said: Any, layers: list[str]) -> Any:
    """Return the layers that are meant: those that match, if it is a pattern."""
    if said is None or said == "all-linear":
        return said
    if isinstance(said, list) and all(isinstance(one, str) for one in said):
        return said
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(said, options=options)
        return [layer for layer in layers if pattern.fullmatch(layer)]
    except (re2.error, TypeError, ValueError) as error:
        raise _refused(folder, f"its {name} is neither a list of layers nor a pattern that can be matched") from error


def _refused(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(f"Cannot load the adapter in {folder}: {why}.")
