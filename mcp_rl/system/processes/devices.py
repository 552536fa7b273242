"""The GPUs that a process sees: reads CUDA_VISIBLE_DEVICES as CUDA does, and sets it for child processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def visible_entries(text: str) -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names. CUDA stops reading at -1 and at a repeated name."""
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-") or entry in entries:
            break
        entries.append(entry)
    return entries


def device_environment(numbers: Sequence[int], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables with which a child process sees exactly these GPUs, as 0, 1 and so on.

    `numbers` count the GPUs that this process sees. Raises ConfigError if CUDA_VISIBLE_DEVICES leaves fewer.
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
