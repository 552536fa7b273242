"""A PEFT folder that plain peft and vLLM load, naming a base that others can find."""

import json
import shutil
from pathlib import Path
from typing import Any

from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.export.card import BASE_FOLDER
from mcp_rl.export.source import Source

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_BASE_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "LICENSE*", "*.py")


def check_adapter(source: Source) -> None:
    """Raises ConfigError where there is no adapter to export."""
    if source.kind == "adapter":
        return
    why = "all of its weights were trained" if source.kind == "whole" else "it is a base model"
    raise ConfigError(f"{source.label} has no adapter, as {why}: export it with --format merged.")


def write_adapter(source: Source, folder: Path) -> int:
    """The adapter's files, and the base beside them where it has no name of its own; returns the rank.

    Raises CheckpointError where the adapter cannot be read, ConfigError where the base is not there.
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


def adapter_config(source: Source) -> dict[str, Any]:
    """Raises CheckpointError where it cannot be read."""
    assert source.checkpoint is not None
    try:
        about: dict[str, Any] = json.loads((source.checkpoint / CONFIG).read_bytes())
        rank = int(about["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"Cannot read {source.checkpoint / CONFIG}: it is no LoRA adapter's.") from error
    if not (source.checkpoint / ADAPTER).is_file():
        raise CheckpointError(f"The folder {source.checkpoint} holds no {ADAPTER}.")
    return {**about, "r": rank}


def copy_base(base: Path, folder: Path) -> None:
    """What transformers loads of a base: weights, configuration, tokenizer."""
    from mcp_rl.learning.merge import weight_files

    folder.mkdir()
    weights = weight_files(base)
    for file in sorted({*weights, *(file for pattern in _BASE_FILES for file in base.glob(pattern))}):
        shutil.copyfile(file, folder / file.name)
    if not weights:
        raise ConfigError(f"The base model in {base} has no *.safetensors files: save it so, and name it by --base.")
