"""Unsloth before transformers and PEFT, which it changes as it is imported. Nothing heavy is imported otherwise."""

import contextlib
import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path


def import_first(use: bool | None = None) -> bool:
    """Import Unsloth now, where it will load the model: `use` is `unsloth.use`, and IMPORT_UNSLOTH of the environment
    is 0 for never and 1 for wherever it is installed. Returns whether it was imported.

    What it fails with shows where the model is loaded.
    """
    named = os.environ.get("IMPORT_UNSLOTH")
    if named == "0" or (use is False and named != "1") or find_spec("unsloth") is None:
        return False
    if use is None and named != "1" and not _has_gpu():
        return False
    set_manners()
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Exception):
        importlib.import_module("unsloth")
        return True
    return False


def set_manners() -> None:
    """Unsloth reports nothing home, and keeps the code that it writes in the user's cache, not in the working folder.
    What the user has set stays."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache / "mcp_rl" / "unsloth_compiled_cache"))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
