"""Which GPUs a process sees: CUDA_VISIBLE_DEVICES as CUDA reads it, and as a child of ours is given it."""

import os
from collections.abc import Mapping, Sequence

from mcp_rl.errors import ConfigError


def visible_entries(text: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names. CUDA stops reading at -1 and at what is named twice."""
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-") or entry in entries:
            break
        entries.append(entry)
    return entries


def device_environment(numbers: Sequence[int], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables with which a child process sees exactly these GPUs, as 0, 1 and so on.

    `numbers` count what this process sees. Raises ConfigError where CUDA_VISIBLE_DEVICES leaves fewer.
    """
    given = environment.get("CUDA_VISIBLE_DEVICES")
    order = environment.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID"
    if given is None:
        return {"CUDA_DEVICE_ORDER": order, "CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))}
    entries = visible_entries(given)
    if missing := [number for number in numbers if number >= len(entries)]:
        raise ConfigError(
            f"GPU {missing[0]} is not there: CUDA_VISIBLE_DEVICES={given} leaves {len(entries)}, counted from 0."
        )
    return {"CUDA_DEVICE_ORDER": order, "CUDA_VISIBLE_DEVICES": ",".join(entries[number] for number in numbers)}
