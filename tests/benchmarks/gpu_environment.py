"""A check for a process of its own, in a module that imports little."""

import os

from benchmarks.gpu_check.setting import Figures, Setting


def environment(setting: Setting) -> Figures:
    """Return the environment variables that the process sees."""
    return {"offline": os.environ["HF_HUB_OFFLINE"], "devices": os.environ.get("CUDA_VISIBLE_DEVICES")}
