"""Save and restore a learner: weights, tokenizer, optimiser and model card of a checkpoint.

Nothing in it is a pickle. With method "lora" it is a PEFT adapter, and `PeftModel.from_pretrained(base, checkpoint)`
gives the learner's logits; with "full" it is a whole Hugging Face model, and
`AutoModelForCausalLM.from_pretrained(checkpoint)` does.
"""

from __future__ import annotations

import functools
import json
import platform
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mcp_rl.errors import CheckpointError
from mcp_rl.learning.adapter import ADAPTER
from mcp_rl.learning.disk.checkpoint import Checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from mcp_rl.learning.learner import Learner

ADAPTER_FILE = "adapter_model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "trainer_state.json"
GRPO = "trained with GRPO on the tools of an MCP server"


@dataclass(frozen=True)
class ModelCard:
    """The contents of a checkpoint's README.md, in the Hub's format."""

    title: str
    base_name: str
    """Name or folder of the base model; a local folder is left out of the header."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the checkpoint's step."""
    how: str = GRPO
    """Method of training, as the end of a sentence."""

    def markdown(self, step: int, *, whole: bool = False) -> str:
        """Return the text for the checkpoint of a step, which is an adapter or a `whole` model."""
        if whole:
            contents, library, tags = "All weights", "transformers", ""
            imports = "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            loading = 'model = AutoModelForCausalLM.from_pretrained(".")\n'
        else:
            contents, library, tags = "A LoRA adapter", "peft", "lora, "
            imports = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            loading = f'base = AutoModelForCausalLM.from_pretrained("{self.base_name}")\n'
            loading += 'model = PeftModel.from_pretrained(base, ".")\n'
        header = [
            f"library_name: {library}",
            "pipeline_tag: text-generation",
            f"tags: [{tags}{'grpo' if self.how == GRPO else 'sft'}, mcp, tool-use]",
        ]
        if not Path(self.base_name).is_absolute():
            header.insert(0, f"base_model: {self.base_name}")
        rows = "".join(f"| {name} | {value:.6g} |\n" for name, value in sorted(self.metrics.items()))
        return (
            "---\n" + "\n".join(header) + "\n---\n\n"
            f"# {self.title}, step {step}\n\n"
            f"{contents} of `{self.base_name}`, {self.how}.\n\n"
            f"```python\n{imports}{loading}"
            'tokenizer = AutoTokenizer.from_pretrained(".")\n'
            "```\n\n"
            f"## Metrics of step {step}\n\n| metric | value |\n|---|---|\n{rows}"
        )


def tokenizer_files(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """Return the files of a tokenizer with chat_template.jinja; they are the same in every checkpoint of a run."""
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
    card: ModelCard,
    *,
    frontier: Mapping[str, Any] | None = None,
    keep: int | None = None,
    protect: Collection[int] = (),
) -> Checkpoint:
    """Write the checkpoint of the learner's step into `folder`, with `files` (the tokenizer's, the caller's) beside it.

    `frontier` is the caller's own JSON state, such as the scenarios that come next. All but the newest `keep`
    checkpoints and those of the steps in `protect` are removed. Raises CheckpointError.
    """
    state = {
        "step": learner.step,
        "seed": learner.seed,
        "temperature": learner.temperature,
        "forward": learner.forward.kind if learner.forward.decided else None,
        "torch_threads": torch.get_num_threads(),
        "versions": versions(),
        "training_arguments": learner.config.model_dump(mode="json"),
        "metrics": dict(card.metrics),
        "frontier": dict(frontier or {}),
        "optimizer": {"kind": type(learner.optimizer).__name__, "values": _optimizer_values(learner)},
    }
    readme = card.markdown(learner.step, whole=not isinstance(learner.model, PeftModel))
    own = {STATE_FILE: json.dumps(state, indent=2).encode(), "README.md": readme.encode()}

    def write(target: Path) -> None:
        try:
            write_weights(learner.model, target)
            save_file(_optimizer_tensors(learner), target / OPTIMIZER_FILE)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    return write_checkpoint(folder, learner.step, {**files, **own}, write=write, keep=keep, protect=protect)


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that the bits of a result depend on, besides a run's own settings."""
    packages = {name: version(name) for name in ("torch", "transformers", "peft", "safetensors")}
    return {"python": platform.python_version(), **packages, "cpu": torch.backends.cpu.get_cpu_capability()}


def other_versions(checkpoint: Checkpoint) -> str | None:
    """Return a sentence if other versions than these wrote a checkpoint, so that bits may differ."""
    kept, now = checkpoint.read_json(STATE_FILE).get("versions", {}), versions()
    if not isinstance(kept, dict):
        return None
    changed = [f"{name} {kept[name]} (now {now.get(name)})" for name in kept if kept[name] != now.get(name)]
    if not changed:
        return None
    return (
        f"The checkpoint {checkpoint.path} was written with {', '.join(changed)}: the run continues, but its results "
        "may differ in the last bits from those of a run that was never stopped."
    )


def write_weights(model: PeftModel | PreTrainedModel, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write the files of a PEFT adapter, or of a whole model, with weights in `dtype` (None: unchanged)."""
    if isinstance(model, PeftModel):
        adapter = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
        save_file({k: v.contiguous() for k, v in adapter.items()}, folder / ADAPTER_FILE, {"format": "pt"})
        (folder / "adapter_config.json").write_bytes(_adapter_config(model))
    else:
        before = model.config.dtype
        model.save_pretrained(folder, state_dict=None if dtype is None else _in(dtype, model.state_dict()))
        model.config.dtype = before  # save_pretrained overwrites it
        if dtype is not None:
            about = json.loads((folder / "config.json").read_bytes()) | {"dtype": str(dtype).removeprefix("torch.")}
            (folder / "config.json").write_text(json.dumps(about, indent=2), encoding="utf-8")


def _in(dtype: torch.dtype, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in another type, tied ones still sharing their memory."""
    found: dict[int, Tensor] = {}
    return {name: found.setdefault(value.data_ptr(), value.to(dtype)) for name, value in weights.items()}


def load_weights(model: PeftModel | PreTrainedModel, folder: Path) -> None:
    """Load the files of `write_weights` into a model. Raises CheckpointError if its shape is another."""
    with _readable(folder):
        if isinstance(model, PeftModel):
            _load_adapter(model, folder)
        else:
            _load_whole(model, folder)


def restore(learner: Learner, checkpoint: Checkpoint) -> dict[str, Any]:
    """Restore weights, optimiser and step; return the caller's frontier. Raises CheckpointError if they do not fit."""
    state = checkpoint.read_json(STATE_FILE)
    try:
        return _restore(learner, checkpoint, state)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{checkpoint.path / STATE_FILE} does not fit this run: {type(error).__name__}: {error}."
        ) from error


def _restore(learner: Learner, checkpoint: Checkpoint, state: dict[str, Any]) -> dict[str, Any]:
    optimizer = state.get("optimizer", {})
    if optimizer and optimizer["kind"] != type(learner.optimizer).__name__:
        raise CheckpointError(
            f"The checkpoint {checkpoint.path} holds the state of {optimizer['kind']}, and this run's optimiser is "
            f"{type(learner.optimizer).__name__}: set train.optimizer to the checkpoint's."
        )
    load_weights(learner.model, checkpoint.path)
    with _readable(checkpoint.path):
        tensors = load_file(checkpoint.path / OPTIMIZER_FILE)
    _restore_optimizer(learner, {**tensors, **optimizer.get("values", {})})
    learner.step = int(state["step"])
    if state.get("forward") is not None:  # keep the choice that was measured then
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
        raise CheckpointError(f"The folder {folder} holds no whole model; set train.method to lora for an adapter.")
    loaded: Any = type(model).from_pretrained(folder, dtype=model.dtype, local_files_only=True)
    stored, known = dict(loaded.named_parameters()), dict(model.named_parameters())
    if _shapes(stored) != _shapes(known):
        raise CheckpointError(f"The model in {folder} has another shape than this run's base model.")
    for name, parameter in known.items():
        parameter.copy_(stored[name])


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn reading errors in this block into CheckpointError."""
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
    content["target_modules"] = sorted(content["target_modules"])  # PEFT's set has another order in each process
    return json.dumps(content, indent=2, sort_keys=True).encode()


def _optimizer_state(learner: Learner) -> Iterator[tuple[str, Any]]:
    """Yield the optimiser's state of each parameter as `name/key`; nothing before the first update."""
    state = learner.optimizer.state
    for name, parameter in learner.parameters.items():
        for key, value in state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    return {name: value.contiguous() for name, value in _optimizer_state(learner) if isinstance(value, Tensor)}


def _optimizer_values(learner: Learner) -> dict[str, Any]:
    """Return the state's numbers and None, which JSON restores unchanged."""
    return {name: value for name, value in _optimizer_state(learner) if not isinstance(value, Tensor)}


def _restore_optimizer(learner: Learner, entries: Mapping[str, Any]) -> None:
    learner.optimizer.state.clear()
    counts_on_device = any(group.get("fused") or group.get("capturable") for group in learner.optimizer.param_groups)
    for entry, value in entries.items():
        name, _, key = entry.rpartition("/")
        if isinstance(value, Tensor) and (value.dim() > 0 or counts_on_device):  # a plain step count stays on the CPU
            value = value.to(learner.parameters[name].device)
        learner.optimizer.state[learner.parameters[name]][key] = value
