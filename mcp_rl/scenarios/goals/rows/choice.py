"""A choice of rows: on which thing they stand, how they are named, and what else is said of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.program import ChosenThings, Condition

if TYPE_CHECKING:
    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import EntityKind


@dataclass(frozen=True)
class RowChoice:
    """The conditions of a choice of rows, apart; each is None where the choice has none."""

    place: JsonValue = None
    """The key of the thing on which the rows stand."""
    name: JsonValue = None
    other: Condition | None = None

    @classmethod
    def of(cls, kind: EntityKind, things: ChosenThings) -> RowChoice:
        """Return the conditions of chosen rows."""
        said = {one.field: one for one in things.conditions}
        place, name = said.pop(kind.within, None), said.pop(kind.key, None)
        other = next(iter(said.values()), None)
        return cls(place.value if place else None, name.value if name else None, other)

    def things(self, kind: EntityKind) -> ChosenThings:
        """Return the rows that satisfy the conditions."""
        named = ((kind.within, self.place), (kind.key, self.name))
        conditions = [Condition(name, "is", value) for name, value in named if value is not None]
        return ChosenThings(kind.name, (*conditions, *([self.other] if self.other else [])))
