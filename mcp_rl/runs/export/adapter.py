"""Write a PEFT folder that plain peft and vLLM load, naming a base that other machines can find."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.runs.export.card import BASE_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.runs.export.source import ExportSource

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_BASE_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "LICENSE*", "*.py")


def check_adapter(source: ExportSource) -> None:
    """Raise ConfigError if the model has no adapter to export."""
    if source.kind == "adapter":
        return
    why = "all of its weights were trained" if source.kind == "whole" else "it is a base model"
    raise ConfigError(f"{source.label} has no adapter, because {why}: export it with --format merged.")


def write_adapter(source: ExportSource, folder: Path) -> int:
    """Write the adapter's files, with the base beside them if it has no name on the hub, and return the rank.

    Raises CheckpointError where the adapter cannot be read, ConfigError where the base is missing.
    """
    assert source.checkpoint is not None
    about = adapter_config(source)
    about["inference_mode"] = True
    if source.base_called is not None:
        about["base_model_name_or_path"], about["revision"] = source.base_called, source.revision
    else:
        about["base_model_name_or_path"], about["revision"] = f"./{BASE_FOLDER}", None
        copy_base(source.base_folder(), folder / BASE_FOLDER)
    shutil.copyfile(source.checkpoint / ADAPTER, folder / ADAPTER)
    (folder / CONFIG).write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
    return int(about.get("r") or 0)


def adapter_config(source: ExportSource) -> dict[str, Any]:
    """Read the adapter's configuration. Raises CheckpointError where it cannot be read."""
    assert source.checkpoint is not None
    try:
        about: dict[str, Any] = json.loads((source.checkpoint / CONFIG).read_bytes())
        rank = int(about["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"Cannot read {source.checkpoint / CONFIG}: it does not describe a LoRA adapter."
        ) from error
    if not (source.checkpoint / ADAPTER).is_file():
        raise CheckpointError(f"The folder {source.checkpoint} holds no {ADAPTER}.")
    return {**about, "r": rank}


def copy_base(base: Path, folder: Path) -> None:
    """Copy the files of a base that transformers loads: weights, configuration, tokenizer."""
    from mcp_rl.learning.disk.merge import weight_files

    folder.mkdir()
    weights = weight_files(base)
    for file in sorted({*weights, *(file for pattern in _BASE_FILES for file in base.glob(pattern))}):
        shutil.copyfile(file, folder / file.name)
    if not weights:
        raise ConfigError(
            f"The base model in {base} has no *.safetensors files: save it in that format, and name it with --base."
        )
