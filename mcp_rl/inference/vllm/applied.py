"""Check that a loaded adapter changes the server's output, where there is no learner to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open

from mcp_rl.errors import CheckpointError, EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.inference.vllm.client import VllmClient
    from mcp_rl.inference.vllm.engine import PolicyVersion

_PROBE_IDS = list(range(20, 84))
"""Ids that every vocabulary has."""


async def check_applied(client: VllmClient, policy: PolicyVersion, base: str) -> None:
    """Raise EngineError if known tokens have exactly the base model's probabilities under an adapter that is not zero.

    Raises CheckpointError if the adapter cannot be read.
    """
    if policy.folder is None or policy.whole or _is_zero(policy.folder / "adapter_model.safetensors"):
        return
    if await client.logprobs(policy.model, _PROBE_IDS) == await client.logprobs(base, _PROBE_IDS):
        raise EngineError(
            f"vLLM accepted the adapter in {policy.folder} but goes on sampling the base model: the logprobs of both "
            "are the same to the last digit."
        )


def _is_zero(path: Path) -> bool:
    """Return whether every B is zero, as in an adapter that was never trained."""
    try:
        with safe_open(path, "np") as file:
            return not any(np.any(file.get_tensor(name)) for name in file.keys() if "lora_B" in name)  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}.") from error
    except TypeError:  # numpy lacks bfloat16
        return False
