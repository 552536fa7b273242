"""Detects whether torchrun or accelerate started this process, as one of several. Imports nothing heavy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.config import PlacementConfig

VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
"""torchrun's variables for the processes that it starts, beside those that begin with TORCHELASTIC_. Processes that we
start must not take them for their own."""


@dataclass(frozen=True)
class Launched:
    """The place of this process among those that were started together."""

    rank: int
    size: int
    local_rank: int
    """Rank among the processes of this machine."""
    local_size: int


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Return the place of this process; None if it was started alone. Raises ConfigError if variables disagree."""
    given = os.environ if environment is None else environment
    if given.get("WORLD_SIZE", "1") == "1":
        return None
    try:
        rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
        found = Launched(rank, size, int(given.get("LOCAL_RANK", rank)), int(given.get("LOCAL_WORLD_SIZE", size)))
        if not 0 <= found.rank < found.size or not 0 <= found.local_rank < found.local_size:
            raise ValueError("a rank is out of range")
        return found
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"WORLD_SIZE={given['WORLD_SIZE']} is set, as torchrun does, but RANK and LOCAL_RANK do not fit it "
            f"({error}): start with torchrun or accelerate launch, or unset WORLD_SIZE."
        ) from error


def check_launched(placement: PlacementConfig) -> None:
    """Raise ConfigError if the settings contradict torchrun, which has started the learners."""
    place = launched()
    if place is None:
        return
    if placement.learner_gpus not in ((), tuple(range(place.local_size))):
        raise ConfigError(
            f"torchrun started {place.local_size} learners on this machine, which take its first GPUs, and "
            "placement.learner_gpus names others: leave it out, and choose with CUDA_VISIBLE_DEVICES."
        )
    if placement.learner_processes not in (None, place.size):
        raise ConfigError(
            f"torchrun started {place.size} learners, and placement.learner_processes is "
            f"{placement.learner_processes}: leave it out."
        )
    if taken := [number for number in placement.engine_gpus if number < place.local_size]:
        raise ConfigError(
            f"placement.engine_gpus names GPU {taken[0]}, which is a learner's: torchrun started {place.local_size} on "
            f"this machine, which take its first GPUs; begin with {place.local_size}."
        )
