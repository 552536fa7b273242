"""Whether torchrun or accelerate started us, as one of several processes. Nothing heavy is imported here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from mcp_rl.config import PlacementConfig

VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
"""What torchrun tells the processes that it starts; those that we start must not take it for theirs. More begin with
TORCHELASTIC_."""


@dataclass(frozen=True)
class Launched:
    """This process among those that were started together."""

    rank: int
    size: int
    local_rank: int
    """Among those of this machine."""
    local_size: int


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """None where we were started alone. Raises ConfigError where the variables make no sense."""
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


def check_launched(placement: "PlacementConfig") -> None:
    """Raises ConfigError where settings say something else of the learners than torchrun, which has started them."""
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
