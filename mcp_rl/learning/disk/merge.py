"""Merge an adapter into its base on disk: from safetensors files to safetensors files, one layer at a time.

W + s·B·A is formed in float32 and rounded once to the written dtype (Hu et al., LoRA, 2021), and no more than one file
of the result is in memory. An adapter that is not a plain LoRA of linear layers, or whose layers have other names in
the files than in the model, is loaded as a whole and merged by PEFT. `logit_difference` compares the logits.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from mcp_rl.errors import CheckpointError
from mcp_rl.learning.disk.adapter_config import load_adapter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SHARD_BYTES = 2 * 10**9
"""Largest size of a file of the result."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PREFIX = "base_model.model."
_WEIGHTS = "model.safetensors"
_INDEX = f"{_WEIGHTS}.index.json"
_INPUT, _OUTPUT = "model.embed_tokens", "lm_head"
"""The two layers that share their weights in a model with tied embeddings."""
_SAMPLING = {
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "length_penalty"),
}
"""Fields of generation_config.json that change what is sampled."""


@dataclass(frozen=True)
class Merged:
    """A merged model on disk."""

    parameters: int
    dtype: str
    """Dtype of most of the result's weights."""
    files: int
    update_lost: float
    """Norm of the rounding error in the adapted weights, relative to the norm of the update; 0 in float32."""
    untied: bool = False
    """True if the base ties its input and output embeddings and the result does not, because the adapter changes one
    of them."""


@dataclass(frozen=True)
class _Factors:
    """The update of a layer, s·B·A."""

    a: Tensor
    b: Tensor
    scale: float
    embedding: bool = False

    def delta(self) -> Tensor:
        """Return the update in float32, in the weight's layout."""
        product = self.scale * (self.b.float() @ self.a.float())
        return product.T if self.embedding else product


def merge(
    base: Path, adapter: Path | None, out: Path, *, dtype: str = "auto", shard_bytes: int = SHARD_BYTES
) -> Merged:
    """Write the model in `base`, with the adapter in `adapter` merged in, into the folder `out`.

    `dtype` "auto" keeps each weight's own. Without an adapter the weights are copied. Raises CheckpointError if the
    adapter does not fit, or if the base's files are quantised.
    """
    config = _json(base / "config.json")
    if "quantization_config" in config:
        raise CheckpointError(
            f"The base model in {base} is quantised in its files, so nothing can be merged into them: give the same "
            "model in 16 bits with --base."
        )
    out.mkdir(parents=True, exist_ok=True)
    files = weight_files(base)
    factors = _plain_factors(adapter) if adapter is not None else {}
    homes = _homes(files)
    tied = bool(config.get("tie_word_embeddings")) and f"{_OUTPUT}.weight" not in homes
    if factors is None or not homes or not _all_there(factors, homes, tied):
        return _merge_loaded(base, adapter, out, dtype, shard_bytes)
    untied = tied and bool({_INPUT, _OUTPUT} & set(factors))
    writer = _Writer(out, shard_bytes)
    lost = update = 0.0
    with ExitStack() as open_files:
        readers = {file: open_files.enter_context(safe_open(file, framework="pt")) for file in files}
        for name, source, layer in _plan(homes, untied):
            weight = readers[homes[source]].get_tensor(source)
            target = DTYPES.get(dtype, weight.dtype) if weight.is_floating_point() else weight.dtype
            if found := factors.get(layer):
                delta = found.delta()
                if delta.shape != weight.shape:
                    raise CheckpointError(
                        f"The adapter in {adapter} does not fit the base model: {layer} is "
                        f"{' x '.join(map(str, delta.shape))} in the adapter and "
                        f"{' x '.join(map(str, weight.shape))} in the base."
                    )
                exact = weight.float() + delta
                weight = exact.to(target)
                lost += float((weight.float() - exact).square().sum())
                update += float(delta.square().sum())
            writer.add(name, weight.to(target))
    files_written = writer.close()
    _write_config(base, out, config, writer.dtype, untied)
    return Merged(writer.parameters, writer.dtype, files_written, math.sqrt(lost / update) if update else 0.0, untied)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers loads from a model's folder, which may hold others too: Mistral's
    folders have the same weights again under other names."""
    if (folder / _WEIGHTS).is_file():  # even beside an index of earlier shards
        return [folder / _WEIGHTS]
    if (folder / _INDEX).is_file():
        named = _json(folder / _INDEX).get("weight_map")
        return sorted({folder / Path(str(name)).name for name in (named if isinstance(named, dict) else {}).values()})
    return sorted(folder.glob("*.safetensors"))


def _plan(homes: Mapping[str, Path], untied: bool) -> Iterator[tuple[str, str, str]]:
    """Yield each weight's name in the result, its name in the base, and the layer that may be adapted."""
    for name in homes:
        yield name, name, name.removesuffix(".weight")
    if untied:
        yield f"{_OUTPUT}.weight", f"{_INPUT}.weight", _OUTPUT


def _plain_factors(adapter: Path) -> dict[str, _Factors] | None:
    """Return the update of each layer, by its name in the base; None if the adapter is more than W + s·B·A."""
    about = _json(adapter / "adapter_config.json")
    plain = about.get("peft_type") == "LORA" and not any(
        about.get(key)
        for key in (
            *("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias"),
            *("layer_replication", "target_parameters", "trainable_token_indices", "alora_invocation_tokens"),
            *("use_bdlora", "use_qalora", "arrow_config", "velora_config", "monteclora_config"),
        )
    )
    if not plain or about.get("bias", "none") != "none":
        return None
    try:
        tensors = load_file(adapter / "adapter_model.safetensors")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"Cannot read the adapter in {adapter}: {error}.") from error
    rank, alpha = int(about["r"]), float(about["lora_alpha"])
    scale = alpha / math.sqrt(rank) if about.get("use_rslora") else alpha / rank
    found: dict[str, _Factors] = {}
    used = 0
    for name, a in tensors.items():
        layer, _, kind = name.removeprefix(_PREFIX).rpartition(".lora_")
        if kind == "A.weight" and (b := tensors.get(name.replace(".lora_A.", ".lora_B."))) is not None:
            found[layer] = _Factors(a, b, scale)
            used += 2
        elif kind == "embedding_A" and (b := tensors.get(f"{_PREFIX}{layer}.lora_embedding_B")) is not None:
            found[layer] = _Factors(a, b, scale, embedding=True)
            used += 2
    return found if used == len(tensors) else None


def _all_there(factors: Mapping[str, _Factors], homes: Mapping[str, Path], tied: bool) -> bool:
    return all(f"{layer}.weight" in homes or (tied and layer == _OUTPUT) for layer in factors)


def _homes(files: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each tensor, in the order of names, layers by their number."""
    homes: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as content:
                homes |= dict.fromkeys(content.keys(), file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"Cannot read {file}: {error}.") from error
    return dict(sorted(homes.items(), key=lambda home: [int(p) if p.isdigit() else -1 for p in home[0].split(".")]))


@dataclass
class _Writer:
    """Write tensors into file after file; no file is larger than `limit` bytes unless a single tensor is."""

    out: Path
    limit: int
    parameters: int = 0
    _held: dict[str, Tensor] = field(default_factory=dict)
    _bytes: int = 0
    _total: int = 0
    _names: list[list[str]] = field(default_factory=list)
    _dtypes: dict[str, int] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """Return the dtype of most weights."""
        return max(self._dtypes, key=lambda name: self._dtypes[name], default="float32")

    def add(self, name: str, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if self._held and self._bytes + size > self.limit:
            self._flush()
        self._held[name] = tensor.contiguous()
        self._bytes += size
        self.parameters += tensor.numel()
        kind = str(tensor.dtype).removeprefix("torch.")
        self._dtypes[kind] = self._dtypes.get(kind, 0) + tensor.numel()

    def _flush(self) -> None:
        save_file(self._held, self._part(len(self._names) + 1), {"format": "pt"})
        self._names.append(list(self._held))
        self._total += self._bytes
        self._held, self._bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self.out / f".{number:05d}.safetensors"

    def close(self) -> int:
        """Give the files their final names, write an index if there are several, and return their number."""
        if self._held:
            self._flush()
        count = len(self._names)
        names = [_WEIGHTS] if count == 1 else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
        for number, name in enumerate(names, 1):
            self._part(number).rename(self.out / name)
        if count > 1:
            placed = {tensor: name for name, held in zip(names, self._names, strict=True) for tensor in held}
            index = {"metadata": {"total_size": self._total}, "weight_map": placed}
            (self.out / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        return count


def _write_config(base: Path, out: Path, config: Mapping[str, Any], dtype: str, untied: bool) -> None:
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "torch_dtype")}
    kept["dtype"] = dtype
    if untied:
        kept["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(kept, indent=2) + "\n")
    for code in base.glob("*.py"):  # of a model with custom code
        shutil.copy(code, out / code.name)


def _merge_loaded(base: Path, adapter: Path | None, out: Path, dtype: str, shard_bytes: int) -> Merged:
    """Merge by transformers and PEFT, with the whole model in memory in float32."""
    target = DTYPES.get(dtype) or AutoConfig.from_pretrained(base).dtype or torch.float32
    policy = _load_policy(base, adapter)
    model: Any = policy.merge_and_unload(safe_merge=True) if isinstance(policy, PeftModel) else policy
    parameters = sum(p.numel() for p in model.parameters())
    model = model.to(target)
    model.save_pretrained(out, max_shard_size=shard_bytes)
    files = len(list(out.glob("*.safetensors")))
    return Merged(parameters, str(target).removeprefix("torch."), files, 0.0 if target == torch.float32 else math.nan)


def generation_config(base: Path | None, eos: int | None, *, trained: bool) -> bytes:
    """Return generation_config.json for the model in `base` (None: not on this machine), with `eos`, the end of a turn,
    among the tokens that end a text.

    A `trained` model is sampled as it was evaluated: without its base's penalties, cut-offs and temperature.
    """
    content: dict[str, Any] = {}
    if base is not None:
        try:
            config = GenerationConfig.from_pretrained(base)
        except OSError:
            config = GenerationConfig.from_model_config(AutoConfig.from_pretrained(base))
        content = config.to_diff_dict()
    if trained:
        content = {key: value for key, value in content.items() if key not in _SAMPLING}
    ends = content.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if eos is not None and eos not in listed:
        content["eos_token_id"] = [eos, *listed] if listed else eos
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


@dataclass(frozen=True)
class Difference:
    """Differences between the logits of two models, over all tokens of a text."""

    largest: float
    """The largest absolute difference."""
    mean: float
    """The mean absolute difference."""
    same_first: float
    """Share of positions at which both models find the same token most likely."""


def exact_dtype(base: Path, free: int) -> str | None:
    """Return the dtype in which both models can be computed one after the other in `free` bytes: "float64", whose
    rounding hides nothing, else "float32", else None."""
    about = _json(base / "config.json")
    stored = sum(file.stat().st_size for file in weight_files(base))
    weights = stored / (4 if str(about.get("dtype") or about.get("torch_dtype")) == "float32" else 2)
    for name, size in (("float64", 8), ("float32", 4)):
        if weights * size * 1.3 + 2e8 < free:  # while it is loaded, a part of the model is in memory twice
            return name
    return None


@torch.no_grad()
def logit_difference(
    base: Path, adapter: Path | None, merged: Path, ids: Sequence[int], dtype: str = "float64"
) -> Difference:
    """Compare the merged model with base and adapter, computed in `dtype` on the CPU, one after the other."""
    tokens = torch.tensor([list(ids)])
    found = []
    for folder, adapted in ((base, adapter), (merged, None)):
        model = _load_policy(folder, adapted, getattr(torch, dtype))
        found.append(model(input_ids=tokens, use_cache=False).logits[0].double())
        del model
        gc.collect()
    ours, theirs = found
    return Difference(
        largest=float((ours - theirs).abs().max()),
        mean=float((ours - theirs).abs().mean()),
        same_first=float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
    )


def _load_policy(base: Path, adapter: Path | None, dtype: torch.dtype = torch.float32) -> Any:
    disable_progress_bar()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT uses a deprecated name of transformers
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
        if adapter is not None:
            model = load_adapter(model, adapter).to(dtype)
    return model.eval()


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}.") from error
    return content
