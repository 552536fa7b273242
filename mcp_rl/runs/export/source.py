"""Find the weights that a name stands for, check them, and find their base."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mcp_rl.backends.base.base_name import check_base_model
from mcp_rl.backends.base.options import check_same_weights, follow
from mcp_rl.backends.initial import read_shapes
from mcp_rl.config import TINY, UnslothConfig
from mcp_rl.errors import CheckpointError, ConfigError, RunDirectoryError
from mcp_rl.evaluation.models import find_model
from mcp_rl.learning.disk.checkpoint import MANIFEST, find_damage
from mcp_rl.run_directory import RunDirectory
from mcp_rl.system.visible import visible
from mcp_rl.tiny import weights_path

_ADAPTER, _CONFIG = "adapter_config.json", "config.json"
_LICENSE = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)
_CARDS = ("README.md", "model_card.md")


@dataclass(frozen=True)
class ExportSource:
    """A model to export."""

    label: str
    """Name for people, such as calc-tiny@80."""
    kind: Literal["adapter", "whole", "base"]
    """Content of `checkpoint`; a base has no checkpoint."""
    base_model: str
    """The base as the run names it: `mcp-rl/tiny`, a name on the hub, or a folder."""
    checkpoint: Path | None
    step: int
    run: RunDirectory | None
    base_at: Path | None = None
    """Folder to use in place of `base_model`, from --base."""
    base_called: str | None = None
    """Name of the base on the hub, where it is known."""
    unchecked: tuple[str, ...] = ()
    """Sentences about what of the run was passed over, or cannot be compared with its digest."""

    @property
    def slug(self) -> str:
        """The label as a file name."""
        return re.sub(r"[^\w.-]+", "-", self.label.rsplit("/", 1)[-1]).strip("-.") or "model"

    @property
    def revision(self) -> str | None:
        """Commit of `base_called` on the hub, where the run recorded it."""
        return self.revision_of(self.base_called or self.weights)

    def revision_of(self, name: str) -> str | None:
        """Return the commit of the base of this name that the run loaded."""
        revision, loaded = self._loaded.get("revision"), self._loaded.get("model_name", name)
        return revision if isinstance(revision, str) and loaded == name else None

    @property
    def weights(self) -> str:
        """The model that the run loaded as its base: `base_model`, or the value of `unsloth.model_name`.

        A copy whose files are in 4 or 8 bits stands for the base in 16: nothing is merged into such a copy.
        """
        options = follow(UnslothConfig(), self._loaded, self.base_model, verify=False)
        if options.model_name is None or (self.quantisation and _quantised(options.model_name, options.revision)):
            return self.base_model
        return options.model_name

    @property
    def positions(self) -> dict[str, float | str] | None:
        """Rotary positions that an adapter was trained with, where they differ from the base's own."""
        found = follow(UnslothConfig(), self._loaded, self.base_model, verify=False).rope_scaling
        return found if self.kind == "adapter" else None

    @property
    def quantisation(self) -> str | None:
        """Precision in which the base was loaded for training, where it was quantised."""
        found = self._loaded.get("quantisation")
        return found.replace("-bit", " bits") if isinstance(found, str) and found != "none" else None

    @property
    def _loaded(self) -> dict[str, Any]:
        """The loading options that model.json records."""
        loaded = self.about.get("loaded")
        return loaded if isinstance(loaded, dict) else {}

    @property
    def about(self) -> dict[str, Any]:
        """The run's model.json."""
        return (self.run.read_json("model.json") or {}) if self.run else {}

    def base_folder(self) -> Path:
        """Return the folder of the base's files, downloading a hub's model that is not on this machine.

        Raises ConfigError where it cannot be had.
        """
        if self.base_at is not None:
            return self.base_at
        if self.weights == TINY:
            return weights_path()
        if self.weights != self.base_model:
            check_same_weights(self.weights, self._loaded)
        if (folder := Path(self.weights).expanduser()).is_dir():
            return folder
        return _snapshot(self.weights, self.revision_of(self.weights))

    @property
    def base_license(self) -> str | None:
        """The license that the base's own card names, where the card is on this machine."""
        if self.weights == TINY:
            return "apache-2.0"
        for card in _CARDS:
            if (text := _read(self.here(card))) and (found := _LICENSE.search(text)):
                return found[1]
        return None

    def here(self, name: str) -> Path | None:
        """Return the path of a base's file that is on this machine already."""
        folder = self.base_at or (weights_path() if self.weights == TINY else Path(self.weights).expanduser())
        if folder.is_dir():
            return folder / name
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            found = try_to_load_from_cache(self.weights, name, revision=self.revision_of(self.weights))
        except HFValidationError:
            return None
        return Path(found) if isinstance(found, str) else None


def find_source(name: str, runs: Path, base: str | None = None) -> ExportSource:
    """Find the model of a name, as `mcp-rl evaluate` understands it.

    `base` is a folder with other weights of the same base, or its name on the hub. Raises ConfigError for a name that
    stands for no model or for one without weights, CheckpointError for a damaged checkpoint.
    """
    spec = find_model(name, runs)
    if spec.kind in ("chat", "scripted"):
        kind = "a chat model behind an API" if spec.kind == "chat" else "a script"
        raise ConfigError(f"{name} is {kind}, so there are no weights to export: name a run, a checkpoint or a folder.")
    folder = spec.checkpoint
    if folder is None:
        place = Path(spec.name).expanduser()
        if spec.name != TINY and place.is_dir() and (place / MANIFEST).is_file():
            _check_whole(place)
            return _from_folder(place, spec.label, spec.run)
        source = ExportSource(spec.label, "base", spec.name, None, 0, spec.run, unchecked=spec.unchecked)
        return _with_base(source, base)
    _check_whole(folder)
    run = spec.run or _run_of(folder)
    kind_: Literal["adapter", "whole"] = "adapter" if (folder / _ADAPTER).is_file() else "whole"
    label = spec.label if spec.run else f"{run.path.name}@{spec.step}" if run else visible(folder.resolve().name)
    source = ExportSource(label, kind_, spec.name, folder, spec.step, run, unchecked=spec.unchecked)
    return _with_base(source, base)


def _from_folder(folder: Path, label: str, run: RunDirectory | None) -> ExportSource:
    """Return the source for the folder of a whole model."""
    run = run or _run_of(folder)
    step = int(folder.name) if folder.name.isdigit() else 0
    if run is None:
        return ExportSource(visible(folder.resolve().name), "base", str(folder), None, step, None)
    base = str((run.read_json("model.json") or {}).get("base_model") or folder)
    return ExportSource(f"{run.path.name}@{step}", "whole", base, folder, step, run)


def _with_base(source: ExportSource, base: str | None) -> ExportSource:
    called = None if Path(source.weights).expanduser().is_dir() or source.weights == TINY else source.weights
    if base is None:
        return replace(source, base_called=called)
    folder = Path(base).expanduser()
    if folder.is_dir():
        check_base_model(base)
        _check_same_shape(source, folder)
        return replace(source, base_at=folder, base_called=called)
    if base == TINY or not re.fullmatch(r"[\w.-]+/[\w.-]+", base):
        raise ConfigError(
            f"--base must be a folder or a name on the Hugging Face hub, such as Qwen/Qwen2.5-3B, not {base}."
        )
    return replace(source, base_called=base)


def _check_same_shape(source: ExportSource, folder: Path) -> None:
    if source.weights != TINY and not Path(source.weights).expanduser().is_dir():
        return
    ours, theirs = (_json(place / _CONFIG) for place in (replace(source, base_at=None).base_folder(), folder))
    for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size"):
        if ours.get(key) != theirs.get(key):
            raise ConfigError(
                f"The model in {folder} is not the base of {source.label}: its {key} is {theirs.get(key)}, but the "
                f"base's is {ours.get(key)}."
            )
    if not any(read_shapes([file]) for file in sorted(folder.glob("*.safetensors"))):
        raise ConfigError(f"The folder {folder} holds no *.safetensors file.")


def _check_whole(folder: Path) -> None:
    if (folder / MANIFEST).is_file() and (damage := find_damage(folder)):
        raise CheckpointError(f"The checkpoint {folder} is damaged ({damage}); export another step.")


def _run_of(folder: Path) -> RunDirectory | None:
    """Return the run that a checkpoint's folder belongs to."""
    place = folder.resolve().parent
    return (
        RunDirectory(place.parent) if place.name == "checkpoints" and (place.parent / "model.json").is_file() else None
    )


def _quantised(name: str, revision: str | None) -> bool:
    """Return whether a model's own files are quantised; a copy that is not on this machine counts as quantised."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(name).expanduser()
    config = (
        folder / "config.json" if folder.is_dir() else try_to_load_from_cache(name, "config.json", revision=revision)
    )
    if not isinstance(config, str | Path):
        return True
    try:
        return "quantization_config" in json.loads(Path(config).read_bytes())
    except (OSError, ValueError):
        return True


def _snapshot(name: str, revision: str | None) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["model*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.jinja", "*.model", "*.md"]
    try:
        try:
            place = snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True)
            if any(Path(place).glob("*.safetensors")):
                return Path(place)
        except LocalEntryNotFoundError:
            pass
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise ConfigError(
            f"The base model {name} is not on this machine and cannot be downloaded: name a folder with it by --base."
        ) from error


def _read(path: Path | None) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path else None
    except OSError:
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"Cannot read {path}: {error}.") from error
    return content
