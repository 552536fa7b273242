"""What a checkpoint holds: the weights, the tokenizer, the optimiser, a model card.

Nothing in it is a pickle. With method "lora" it is a PEFT adapter, and `PeftModel.from_pretrained(base, checkpoint)`
gives the learner's logits; with "full" it is a whole Hugging Face model, and
`AutoModelForCausalLM.from_pretrained(checkpoint)` does.
"""

import functools
import json
import platform
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mcp_rl.errors import CheckpointError
from mcp_rl.learning.adapter import ADAPTER
from mcp_rl.learning.checkpoint import Checkpoint, write_checkpoint
from mcp_rl.learning.step import Learner

ADAPTER_FILE = "adapter_model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "trainer_state.json"
GRPO = "trained with GRPO on the tools of an MCP server"


def tokenizer_files(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """The files of a tokenizer, chat_template.jinja included; they are the same in every checkpoint of a run."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            tokenizer.save_pretrained(folder)
        except Exception as error:  # the tokenizers library raises it bare
            raise CheckpointError(f"Cannot write the tokenizer's files into {folder}: {error}.") from error
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def save_learner(
    folder: Path,
    learner: Learner,
    files: Mapping[str, bytes],
    *,
    base_name: str,
    title: str,
    metrics: Mapping[str, float] | None = None,
    frontier: Mapping[str, Any] | None = None,
    keep: int | None = None,
    protect: Collection[int] = (),
    how: str = GRPO,
) -> Checkpoint:
    """Write the checkpoint of the learner's step into `folder`, with `files` (the tokenizer's, the caller's) beside it.

    `frontier` is the caller's own JSON state, such as which scenarios come next; `how` is for the model card.
    Raises CheckpointError.
    """
    state = {
        "step": learner.step,
        "seed": learner.seed,
        "temperature": learner.temperature,
        "forward": learner.forward.kind if learner.forward.decided else None,
        "torch_threads": torch.get_num_threads(),
        "versions": versions(),
        "training_arguments": learner.config.model_dump(mode="json"),
        "metrics": dict(metrics or {}),
        "frontier": dict(frontier or {}),
        "optimizer": {"kind": type(learner.optimizer).__name__, "values": _optimizer_values(learner)},
    }
    whole = not isinstance(learner.model, PeftModel)
    card = model_card(title, base_name, learner.step, metrics or {}, whole=whole, how=how)
    own = {STATE_FILE: json.dumps(state, indent=2).encode(), "README.md": card.encode()}

    def write(target: Path) -> None:
        try:
            write_weights(learner.model, target)
            save_file(_optimizer_tensors(learner), target / OPTIMIZER_FILE)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    return write_checkpoint(folder, learner.step, {**files, **own}, write=write, keep=keep, protect=protect)


@functools.cache
def versions() -> dict[str, str]:
    """What the bits of a result depend on, besides what a run remembers anyway."""
    packages = {name: version(name) for name in ("torch", "transformers", "peft", "safetensors")}
    return {"python": platform.python_version(), **packages, "cpu": torch.backends.cpu.get_cpu_capability()}


def other_versions(checkpoint: Checkpoint) -> str | None:
    """One sentence where a checkpoint was written by other versions than these, so that bits may differ."""
    kept, now = checkpoint.read_json(STATE_FILE).get("versions", {}), versions()
    changed = [f"{name} {kept[name]} (now {now.get(name)})" for name in kept if kept[name] != now.get(name)]
    if not changed:
        return None
    return (
        f"The checkpoint {checkpoint.path} was written with {', '.join(changed)}: the run goes on, but its results may "
        "differ in the last bits from those of a run that was never stopped."
    )


def write_weights(model: PeftModel | PreTrainedModel, folder: Path) -> None:
    """A PEFT adapter's files, or those of a whole model."""
    if isinstance(model, PeftModel):
        adapter = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
        save_file({k: v.contiguous() for k, v in adapter.items()}, folder / ADAPTER_FILE, {"format": "pt"})
        (folder / "adapter_config.json").write_bytes(_adapter_config(model))
    else:
        dtype = model.config.dtype
        model.save_pretrained(folder)
        model.config.dtype = dtype  # saving writes down there what it saved


def load_weights(model: PeftModel | PreTrainedModel, folder: Path) -> None:
    """Put what `write_weights` wrote into a model of the same shape. Raises CheckpointError where it is of another."""
    with _readable(folder):
        if isinstance(model, PeftModel):
            _load_adapter(model, folder)
        else:
            _load_whole(model, folder)


def restore(learner: Learner, checkpoint: Checkpoint) -> dict[str, Any]:
    """Put weights, optimiser and step back; returns the caller's frontier. Raises CheckpointError where they differ."""
    state = checkpoint.read_json(STATE_FILE)
    optimizer = state.get("optimizer", {})
    if optimizer and optimizer["kind"] != type(learner.optimizer).__name__:
        raise CheckpointError(
            f"The checkpoint {checkpoint.path} holds the state of {optimizer['kind']}, and this run's optimiser is "
            f"{type(learner.optimizer).__name__}: set train.optimizer to what it was."
        )
    load_weights(learner.model, checkpoint.path)
    with _readable(checkpoint.path):
        tensors = load_file(checkpoint.path / OPTIMIZER_FILE)
    _restore_optimizer(learner, {**tensors, **optimizer.get("values", {})})
    learner.step = int(state["step"])
    if state.get("forward") is not None:  # what was measured then holds on
        learner.forward.take(state["forward"], learner.model, learner.reference)
    frontier: dict[str, Any] = state["frontier"]
    return frontier


def _load_adapter(model: PeftModel, folder: Path) -> None:
    adapter = load_file(folder / ADAPTER_FILE)
    known = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    if _shapes(adapter) != _shapes(known):
        raise CheckpointError(
            f"The adapter in {folder} has other layers or another rank than this run's; use the base model and the "
            "LoRA settings that it was made with."
        )
    set_peft_model_state_dict(model, adapter, adapter_name=ADAPTER)


@torch.no_grad()
def _load_whole(model: PreTrainedModel, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"There is no whole model in {folder}; set train.method to lora for an adapter.")
    loaded: Any = type(model).from_pretrained(folder, dtype=model.dtype, local_files_only=True)
    stored, known = dict(loaded.named_parameters()), dict(model.named_parameters())
    if _shapes(stored) != _shapes(known):
        raise CheckpointError(f"The model in {folder} is of another shape than this run's base model.")
    for name, parameter in known.items():
        parameter.copy_(stored[name])


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """What cannot be read, as one sentence."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"Cannot read the checkpoint {folder}: {error}.") from error


def _adapter_config(model: PeftModel) -> bytes:
    config = model.peft_config[ADAPTER]
    training, config.inference_mode = config.inference_mode, True
    try:
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            content: dict[str, Any] = json.loads((Path(folder) / "adapter_config.json").read_bytes())
    finally:
        config.inference_mode = training
    content["target_modules"] = sorted(content["target_modules"])  # PEFT's is a set, in another order in each process
    return json.dumps(content, indent=2, sort_keys=True).encode()


def _optimizer_state(learner: Learner) -> Iterator[tuple[str, Any]]:
    """State of each parameter as `name/key`; nothing before the first update."""
    state = learner.optimizer.state
    for name, parameter in learner.parameters.items():
        for key, value in state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    return {name: value.contiguous() for name, value in _optimizer_state(learner) if isinstance(value, Tensor)}


def _optimizer_values(learner: Learner) -> dict[str, Any]:
    """What is no tensor: numbers and None, which JSON gives back as they were."""
    return {name: value for name, value in _optimizer_state(learner) if not isinstance(value, Tensor)}


def _restore_optimizer(learner: Learner, entries: Mapping[str, Any]) -> None:
    learner.optimizer.state.clear()
    counts_on_device = any(group.get("fused") or group.get("capturable") for group in learner.optimizer.param_groups)
    for entry, value in entries.items():
        name, _, key = entry.rpartition("/")
        if isinstance(value, Tensor) and (value.dim() > 0 or counts_on_device):  # else a step count stays on the CPU
            value = value.to(learner.parameters[name].device)
        learner.optimizer.state[learner.parameters[name]][key] = value


def model_card(
    title: str, base_name: str, step: int, metrics: Mapping[str, float], *, whole: bool = False, how: str = GRPO
) -> str:
    """README.md in the Hub's format. `base_model` is left out of the header where it is a local folder."""
    if whole:
        what, library, tags = "All weights", "transformers", ""
        imports = "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        loading = 'model = AutoModelForCausalLM.from_pretrained(".")\n'
    else:
        what, library, tags = "A LoRA adapter", "peft", "lora, "
        imports = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        loading = f'base = AutoModelForCausalLM.from_pretrained("{base_name}")\n'
        loading += 'model = PeftModel.from_pretrained(base, ".")\n'
    header = [
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        f"tags: [{tags}{'grpo' if how == GRPO else 'sft'}, mcp, tool-use]",
    ]
    if not Path(base_name).is_absolute():
        header.insert(0, f"base_model: {base_name}")
    rows = "".join(f"| {name} | {value:.6g} |\n" for name, value in sorted(metrics.items()))
    return (
        "---\n" + "\n".join(header) + "\n---\n\n"
        f"# {title}, step {step}\n\n"
        f"{what} of `{base_name}`, {how}.\n\n"
        f"```python\n{imports}{loading}"
        'tokenizer = AutoTokenizer.from_pretrained(".")\n'
        "```\n\n"
        f"## Metrics of step {step}\n\n| metric | value |\n|---|---|\n{rows}"
    )
