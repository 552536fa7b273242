"""Does an adapter that was loaded change what the server says? Asked where no learner is there to compare with."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from mcp_rl.errors import CheckpointError, EngineError
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion

_KNOWN = list(range(20, 84))
"""Ids that every vocabulary has."""


async def check_applied(client: VllmClient, policy: PolicyVersion, base: str) -> None:
    """Raises EngineError where known tokens have exactly the base model's probabilities under an adapter that is not
    zero; CheckpointError where the adapter cannot be read."""
    if policy.folder is None or policy.whole or _is_zero(policy.folder / "adapter_model.safetensors"):
        return
    if await client.logprobs(policy.model, _KNOWN) == await client.logprobs(base, _KNOWN):
        raise EngineError(
            f"vLLM took the adapter in {policy.folder} and goes on sampling the base model: what it says is the same "
            "to the last digit."
        )


def _is_zero(path: Path) -> bool:
    """Whether every B is zero, as in an adapter that was never trained."""
    try:
        with safe_open(path, "np") as file:
            return not any(np.any(file.get_tensor(name)) for name in file.keys() if "lora_B" in name)  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}.") from error
    except TypeError:  # bfloat16, which numpy has not
        return False
