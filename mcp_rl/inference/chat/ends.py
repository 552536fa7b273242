"""Tokens that end a model's turn, from its generation_config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED = "turn_ends"
"""Key of the turn-ending ids in a run's model.json."""


def listed_ends(generation: Any) -> tuple[int, ...]:
    """Return the ids of a generation configuration's `eos_token_id`: one id, a list, or nothing."""
    named = getattr(generation, "eos_token_id", None)
    return _ids(named if isinstance(named, list | tuple) else [named])


def recorded_ends(loaded: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ends that a run has recorded.

    A run of an earlier version records none: its turns end at the tokenizer's own end alone.
    """
    named = loaded.get(RECORDED)
    return _ids(named) if isinstance(named, list | tuple) else ()


def _ids(named: Any) -> tuple[int, ...]:
    return tuple(id for id in named if type(id) is int)
