"""Changes of one world, drawn from the effects of its tools in turn."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.changes.calls import ChangeCalls
from mcp_rl.scenarios.goals.changes.draws import ChangeDraws
from mcp_rl.scenarios.goals.changes.known import KnownThings
from mcp_rl.scenarios.goals.changes.new_things import NewThings
from mcp_rl.scenarios.goals.changes.places import PlaceChanges
from mcp_rl.scenarios.goals.changes.texts import TextEdits
from mcp_rl.scenarios.goals.program import Unanswerable
from mcp_rl.scenarios.goals.requests import ToolNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mcp_rl.explore.entities.world_model import Effect, WorldModel
    from mcp_rl.scenarios.goals.changes.calls import StateChange

_TRIES = 40
"""Maximum draws for each change that is wanted."""


class Changes:
    """Draws changes of one world, from the names of its server's tools and a seed."""

    def __init__(self, world: WorldModel, tools: Sequence[str], seed: int) -> None:
        self._world = world
        self._random = random.Random(f"{seed}:changes")
        self._tools = ToolNames(tools)
        self._draws = draws = ChangeDraws(world, self._tools, self._random)
        self._english, self._proposer, self._placed = draws.english, draws.proposer, draws.placed
        calls = ChangeCalls(draws)
        self._known, self._new = KnownThings(draws, calls), NewThings(draws, calls)
        self._texts, self._places = TextEdits(draws, calls), PlaceChanges(draws, calls)
        self._effects = [effect for effect in world.effects if effect.kind in world.kinds and self._sayable(effect)]

    def draw(self, count: int) -> Iterator[StateChange]:
        """Yield up to `count` distinct changes, with the effects in turn."""
        seen: set[str] = set()
        for attempt in range(_TRIES * count if self._effects else 0):
            if len(seen) >= count:
                return
            change = self._one(self._effects[attempt % len(self._effects)])
            if change is not None and change.text not in seen and not self._tools.in_text(change.text):
                seen.add(change.text)
                yield change

    def _sayable(self, effect: Effect) -> bool:
        fields = self._world.kinds[effect.kind].fields
        if effect.kind not in self._proposer.kinds and effect.does != "creates":
            return False
        named = [name for name in effect.valued_by.values() if name in fields]
        if effect.does == "removes":
            return effect.keyed_by is not None
        if effect.does == "creates":
            return bool(named) and all(self._can_be_given(effect.kind, name) for name in named)
        known = effect.field in fields and self._can_be_given(effect.kind, str(effect.field))
        said = effect.value is not None or effect.field in effect.valued_by.values()
        return known and effect.keyed_by is not None and said

    def _can_be_given(self, kind: str, name: str) -> bool:
        """Return whether a request can give a value of a field; a path as a name in a place."""
        if self._placed[kind] is not None and name == self._world.kinds[kind].key:
            return True
        return self._english.usable(kind, name)

    def _one(self, effect: Effect) -> StateChange | None:
        try:
            return self._random.choice(self._makers(effect))(effect)
        except Unanswerable:
            return None

    def _makers(self, effect: Effect) -> Sequence[Callable[[Effect], StateChange | None]]:
        """Return the ways to make a task of an effect; the more demanding ones appear several times."""
        if effect.copies:
            return [self._new.like_another]
        match effect.does:
            case "adds" | "takes":
                return [self._known.in_list]
            case "removes":
                return [self._known.removal]
            case "sets":
                if self._placed[effect.kind] is not None and effect.field == self._world.kinds[effect.kind].key:
                    return [self._places.renaming, *[self._places.moving] * 3]
                if self._english.sort(effect.kind, str(effect.field)) == "contents":
                    return [self._known.setting, *[self._texts.editing] * 2]
                return [self._known.setting]
        new = self._new
        if self._draws.texts(effect) and self._proposer.kinds:
            return [new.stated, *[new.listing] * 2, *[new.noting] * 2, new.copying]
        return [new.stated]
