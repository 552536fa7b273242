"""The environment of a learner's process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcp_rl.system.processes.spawn import python_path

if TYPE_CHECKING:
    from mcp_rl.config import UnslothConfig

USE_UNSLOTH = "MCP_RL_UNSLOTH"
"""The variable that tells a learner's process what `unsloth.use` is: 1, 0, or empty if it is left open."""


def learner_environment(unsloth: UnslothConfig, *, sampling: bool) -> dict[str, str]:
    """Return the variables that a learner's process gets besides those for computing: where `mcp_rl` is, the order of
    GPUs, whether to import Unsloth, and the token that the settings name.

    `sampling`: the in-process engine samples the learner's base, which Unsloth must not change.
    """
    use = False if sampling else unsloth.use
    environment = {
        "PYTHONPATH": python_path(),
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID",  # the order of vLLM and nvidia-smi
        USE_UNSLOTH: "" if use is None else str(int(use)),
    }
    if unsloth.token is not None and unsloth.token in os.environ:
        environment[unsloth.token] = os.environ[unsloth.token]
    return environment
