"""At which tokens a model ends its turn, as its generation_config.json says."""

from collections.abc import Mapping
from typing import Any

RECORDED = "turn_ends"
"""Under this name a run says in its model.json at which ends its turns end."""


def listed_ends(generation: Any) -> tuple[int, ...]:
    """The ids of a generation configuration's `eos_token_id`, which is one, a list, or none."""
    named = getattr(generation, "eos_token_id", None)
    return _ids(named if isinstance(named, list | tuple) else [named])


def recorded_ends(loaded: Mapping[str, Any]) -> tuple[int, ...]:
    """The ends that a run has recorded. An earlier version's run, which says nothing, ends its turns at the
    tokenizer's own end alone: then there are none to add."""
    named = loaded.get(RECORDED)
    return _ids(named) if isinstance(named, list | tuple) else ()


def _ids(named: Any) -> tuple[int, ...]:
    return tuple(id for id in named if type(id) is int)
