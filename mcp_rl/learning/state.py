"""What a checkpoint holds, as bytes: the PEFT adapter, the tokenizer, the optimiser, a model card.

Nothing in it is a pickle. `PeftModel.from_pretrained(base, checkpoint)` gives the learner's logits.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mcp_rl.errors import CheckpointError
from mcp_rl.learning.adapter import ADAPTER
from mcp_rl.learning.checkpoint import Checkpoint
from mcp_rl.learning.step import Learner

ADAPTER_FILE = "adapter_model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "trainer_state.json"


def tokenizer_files(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """The files of a tokenizer, chat_template.jinja included; they are the same in every checkpoint of a run."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def learner_files(
    learner: Learner,
    *,
    base_name: str,
    title: str,
    metrics: Mapping[str, float],
    frontier: Mapping[str, Any],
) -> dict[str, bytes]:
    """Everything but the tokenizer. `frontier` is the caller's own JSON state, such as which scenarios come next."""
    state = {
        "step": learner.step,
        "seed": learner.seed,
        "temperature": learner.temperature,
        "torch_threads": torch.get_num_threads(),
        "training_arguments": learner.config.model_dump(mode="json"),
        "metrics": dict(metrics),
        "frontier": dict(frontier),
    }
    adapter = get_peft_model_state_dict(learner.model, adapter_name=ADAPTER, save_embedding_layers=False)
    return {
        "adapter_config.json": _adapter_config(learner.model),
        ADAPTER_FILE: save_tensors({k: v.contiguous() for k, v in adapter.items()}, {"format": "pt"}),
        OPTIMIZER_FILE: save_tensors(_optimizer_tensors(learner)),
        STATE_FILE: json.dumps(state, indent=2).encode(),
        "README.md": model_card(title, base_name, learner.step, metrics).encode(),
    }


def restore(learner: Learner, checkpoint: Checkpoint) -> dict[str, Any]:
    """Put adapter, optimiser and step back; returns the caller's frontier. Raises CheckpointError where they differ."""
    try:
        adapter = load_tensors(checkpoint.read(ADAPTER_FILE))
        known = get_peft_model_state_dict(learner.model, adapter_name=ADAPTER, save_embedding_layers=False)
        if {k: v.shape for k, v in adapter.items()} != {k: v.shape for k, v in known.items()}:
            raise CheckpointError(
                f"The adapter in {checkpoint.path} has other layers or another rank than this run's; use the base "
                "model and the LoRA settings that it was made with."
            )
        set_peft_model_state_dict(learner.model, adapter, adapter_name=ADAPTER)
        _restore_optimizer(learner, load_tensors(checkpoint.read(OPTIMIZER_FILE)))
    except SafetensorError as error:
        raise CheckpointError(f"Cannot read the checkpoint {checkpoint.path}: {error}.") from error
    state = checkpoint.read_json(STATE_FILE)
    learner.step = int(state["step"])
    frontier: dict[str, Any] = state["frontier"]
    return frontier


def _adapter_config(model: PeftModel) -> bytes:
    config = model.peft_config[ADAPTER]
    training, config.inference_mode = config.inference_mode, True
    try:
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            return (Path(folder) / "adapter_config.json").read_bytes()
    finally:
        config.inference_mode = training


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    """State of each parameter as `name/key`; empty before the first update."""
    state = learner.optimizer.state
    return {
        f"{name}/{key}": torch.as_tensor(value).contiguous()
        for name, parameter in learner.parameters.items()
        for key, value in state.get(parameter, {}).items()
    }


def _restore_optimizer(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    learner.optimizer.state.clear()
    for name, parameter in learner.parameters.items():
        own = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        if own:
            learner.optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in own.items()}


def model_card(title: str, base_name: str, step: int, metrics: Mapping[str, float]) -> str:
    """README.md in the Hub's format. `base_model` is left out of the header where it is a local folder."""
    header = ["library_name: peft", "pipeline_tag: text-generation", "tags: [lora, grpo, mcp, tool-use]"]
    if not Path(base_name).is_absolute():
        header.insert(0, f"base_model: {base_name}")
    rows = "".join(f"| {name} | {value:.6g} |\n" for name, value in sorted(metrics.items()))
    return (
        "---\n" + "\n".join(header) + "\n---\n\n"
        f"# {title}, step {step}\n\n"
        f"A LoRA adapter of `{base_name}`, trained with GRPO on the tools of an MCP server.\n\n"
        "```python\n"
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'base = AutoModelForCausalLM.from_pretrained("{base_name}")\n'
        'model = PeftModel.from_pretrained(base, ".")\n'
        'tokenizer = AutoTokenizer.from_pretrained(".")\n'
        "```\n\n"
        f"## Metrics of step {step}\n\n| metric | value |\n|---|---|\n{rows}"
    )
