"""Imports Unsloth before transformers and PEFT, which it changes when it is imported. Imports nothing else heavy."""

import contextlib
import importlib
import os
import sys
from importlib.util import find_spec

from mcp_rl.system.measured import cache_folder


def import_first(use: bool | None = None) -> bool:
    """Import Unsloth if it will load the model, and return whether it was imported.

    `use` is `unsloth.use`; IMPORT_UNSLOTH in the environment is 0 for never and 1 for always if it is installed. Errors
    are left to the code that loads the model.
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
    """Keep Unsloth from reporting home, and put the code that it writes into the user's cache instead of the working
    folder. The user's own settings stay."""
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_folder() / "unsloth_compiled_cache"))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
