"""Finds and checks the weights that a run begins with in place of a fresh adapter: another run's, or a checkpoint's.

Nothing is loaded here. Configurations, and the names and shapes in the headers of safetensors files, tell whether the
weights fit, so a misfit is reported before a server or a model starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.config import TINY, TrainConfig
from mcp_rl.config.learning import ALL_LINEAR
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.learning.disk.checkpoint import MANIFEST, find_damage, newest_checkpoint
from mcp_rl.tiny import weights_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ADAPTER, _ADAPTER_CONFIG, _CONFIG = "adapter_model.safetensors", "adapter_config.json", "config.json"
_PREFIX = "base_model.model."
"""PEFT's prefix of layer names."""

_PLAIN = {
    "peft_type": "LORA", "use_rslora": False, "use_dora": False, "bias": "none", "rank_pattern": {},
    "alpha_pattern": {}, "modules_to_save": None,
}  # fmt: skip
"""The configuration of a plain LoRA adapter, which computes W + alpha / r · B·A and nothing else."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Initial:
    """Weights that a run can begin with."""

    folder: Path
    method: Literal["lora", "full"]
    skipped: Sequence[str] = ()
    """Warnings, a sentence for each newer checkpoint of the run that is damaged."""

    @property
    def files(self) -> list[Path]:
        """All files that determine the results computed with the weights."""
        if self.method == "lora":
            return [self.folder / _ADAPTER_CONFIG, self.folder / _ADAPTER]
        return [self.folder / _CONFIG, *sorted(self.folder.glob("model*.safetensors"))]


_Stamp = tuple[tuple[str, int, int, int], ...]
_known: dict[Path, tuple[_Stamp, Initial]] = {}
"""Verified weights by folder, each with the stamp of the folder at that time."""


def find_initial(path: Path) -> Initial:
    """Return the weights in a folder: a run's newest whole checkpoint, or the folder itself. Raises ConfigError if it
    holds none.

    A start asks several times: hashes are compared again only if a file has another size, time or place.
    """
    place = path.expanduser().absolute()
    stamp = _stamp(place)
    known = _known.get(place)
    if known is not None and known[0] == stamp:
        return known[1]
    found = _find(path)
    _known[place] = stamp, found
    return found


def _stamp(folder: Path) -> _Stamp:
    """Return name, size, time and inode of every file that may be read."""
    found = []
    for pattern in ("*", "checkpoints/*/*"):
        for file in sorted(folder.glob(pattern)):
            with contextlib.suppress(OSError):
                about = file.stat()
                found.append((str(file), about.st_size, about.st_mtime_ns, about.st_ino))
    return tuple(found)


def _find(path: Path) -> Initial:
    folder, skipped = path.expanduser(), list[str]()
    if not folder.is_dir():
        raise ConfigError(f"There is nothing to begin with in {path}: there is no such folder.")
    if (folder / "checkpoints").is_dir():
        try:
            newest = newest_checkpoint(folder / "checkpoints")
        except CheckpointError as error:
            problem = str(error).partition(":")[0]
            raise ConfigError(
                f"There is nothing to begin with in {path}: {problem[0].lower()}{problem[1:]}."
            ) from error
        if newest is None:
            raise ConfigError(f"The run in {path} has no checkpoint yet, so there is nothing to begin with.")
        folder, skipped = newest.path, newest.skipped
    elif (folder / MANIFEST).is_file() and (damage := find_damage(folder)):
        raise ConfigError(f"The checkpoint {path} is damaged ({damage}); begin with another one.")
    if (folder / _ADAPTER).is_file() and (folder / _ADAPTER_CONFIG).is_file():
        return Initial(folder, "lora", skipped)
    if (folder / _CONFIG).is_file() and list(folder.glob("model*.safetensors")):
        return Initial(folder, "full", skipped)
    raise ConfigError(
        f"There is nothing to begin with in {path}: give the folder of a run, of a checkpoint, or one with a PEFT "
        "adapter or a whole model in it."
    )


def initial_hash(path: Path) -> str:
    """Return a hash of the weights, wherever they lie. Raises ConfigError if there are none."""
    initial = find_initial(path)
    digest, known = hashlib.sha256(), _verified(initial.folder)
    for file in initial.files:
        if file.name == _ADAPTER_CONFIG:  # it also holds the path of the base
            kept = {name: _json(file).get(name) for name in ("r", "lora_alpha", "target_modules")}
            digest.update(json.dumps(kept | {"target_modules": sorted(kept["target_modules"] or [])}).encode())
            continue
        digest.update(known[file.name] if file.name in known else _sha256(file))
    return digest.hexdigest()[:16]


def _verified(folder: Path) -> dict[str, bytes]:
    """Return the SHA-256 of each file in the folder's manifest, which `find_initial` has compared with it."""
    if not (folder / MANIFEST).is_file():
        return {}
    return {name: bytes.fromhex(about["sha256"]) for name, about in _json(folder / MANIFEST)["files"].items()}


def _sha256(file: Path) -> bytes:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def check_initial(path: Path, config: TrainConfig, base_model: str) -> Initial:
    """Return the weights in `path`. Raises ConfigError if a run of this configuration cannot begin with them."""
    initial = find_initial(path)
    if initial.method != config.method:
        raise ConfigError(
            f"{initial.folder} holds a whole model, not an adapter: give it as --base-model, or train it whole "
            "with train.method=full."
            if initial.method == "full"
            else f"{path} holds a LoRA adapter, but train.method is full: leave train.method as it is, lora."
        )
    if initial.method == "lora":
        _check_adapter(path, initial, config, _base_shapes(base_model))
    else:
        _check_whole(path, initial, _base_shapes(base_model), base_model)
    return initial


def _check_adapter(path: Path, initial: Initial, config: TrainConfig, base: Shapes | None) -> None:
    about, lora = _json(initial.folder / _ADAPTER_CONFIG), config.lora
    for name, plain in _PLAIN.items():
        if (said := about.get(name)) and said != plain:
            raise ConfigError(
                f"The adapter in {path} is not a plain LoRA, since it has {name} = {json.dumps(said)}: merge it into "
                "its base, and give that as --base-model."
            )
    targets = about.get("target_modules") or []
    for name, theirs, ours in (
        ("train.lora.rank", about.get("r"), lora.rank),
        ("train.lora.alpha", about.get("lora_alpha"), lora.alpha),
        ("train.lora.targets", sorted(targets) if isinstance(targets, list) else targets, sorted(lora.targets)),
    ):
        if theirs != ours and ours != [ALL_LINEAR]:  # which names those are is known once the base is loaded
            raise ConfigError(
                f"The adapter in {path} was made with {name} = {json.dumps(theirs)}, and this run has "
                f"{json.dumps(ours)}: set it to the adapter's."
            )
    if base is None:
        return
    shapes = read_shapes([initial.folder / _ADAPTER])
    factors = [(*name.removeprefix(_PREFIX).rpartition(".lora_"), shapes[name]) for name in shapes]
    if not any(f"{layer}.weight" in base for layer, *_ in factors):
        return  # transformers has other names for this model's weights than its files; loading compares them
    for layer, _, factor, shape in factors:
        found = base.get(f"{layer}.weight")
        side = 0 if factor.startswith("B") else 1
        if found is None or shape[side] != found[side]:
            has = "no such layer" if found is None else f"one of {found[0]} x {found[1]}"
            raise ConfigError(
                f"The adapter in {path} was made for another base model: it has {layer} of {shape[side]} "
                f"{'outputs' if side == 0 else 'inputs'}, where this one has {has}."
            )


def _check_whole(path: Path, initial: Initial, base: Shapes | None, base_model: str) -> None:
    if base is None:
        return
    found = read_shapes(initial.files[1:])
    if found.keys().isdisjoint(base):
        return  # as above
    if differing := [name for name in sorted({*found, *base}) if found.get(name) != base.get(name)]:
        raise ConfigError(
            f"The model in {path} is not of the shape of the base model {base_model!r}: they differ in {differing[0]}"
            f"{f' and {len(differing) - 1} more' if len(differing) > 1 else ''}."
        )


def read_shapes(files: Iterable[Path]) -> Shapes:
    """Return the shape of each tensor by name. Raises ConfigError for a file that is not a safetensors file."""
    from safetensors import SafetensorError, safe_open

    shapes: Shapes = {}
    for file in files:
        try:
            with safe_open(file, framework="np") as content:
                shapes |= {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"Cannot read {file}: {error}.") from error
    return shapes


def _base_shapes(base_model: str) -> Shapes | None:
    """Return the shapes of the base model's tensors; None if this machine has no safetensors files of it."""
    folder = weights_path() if base_model == TINY else Path(base_model).expanduser()
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(base_model, _CONFIG)
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
    return read_shapes(folder.glob("model*.safetensors")) or None


def _json(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"Cannot read {file}: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is not a JSON object.")
    return content
