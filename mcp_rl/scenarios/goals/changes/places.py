"""Changes of things in places, such as files in folders: moves and new names."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_rl.explore import plausible
from mcp_rl.scenarios.goals.program import CountOf
from mcp_rl.scenarios.goals.words import quoted

if TYPE_CHECKING:
    from mcp_rl.explore.entities.world_model import Effect
    from mcp_rl.scenarios.goals.changes.calls import ChangeCalls, StateChange
    from mcp_rl.scenarios.goals.changes.draws import ChangeDraws


class PlaceChanges:
    """Requests to move or rename things."""

    def __init__(self, draws: ChangeDraws, calls: ChangeCalls) -> None:
        self._draws, self._calls = draws, calls
        self._world, self._random, self._english = draws.world, draws.random, draws.english
        self._placed = draws.placed

    def moving(self, effect: Effect) -> StateChange | None:
        """Ask to move things to another place."""
        kind, place = effect.kind, self._placed[effect.kind]
        assert place is not None
        key = self._world.kinds[kind].key
        one = self._random.random() < 0.4
        if (found := self._draws.choose(kind, one=one)) is None:
            return None
        program, evaluated = found
        chosen = self._draws.entities(evaluated, kind)
        folder = self._random.choice(place.places)
        if all(place.of(entity)[0] == folder for entity in chosen) or any(
            folder.startswith(str(e.key)) for e in chosen
        ):
            return None
        targets = {str(e.key): posixpath.join(folder, place.of(e)[1]) for e in chosen if place.of(e)[0] != folder}
        if len(set(targets.values())) < len(targets) or any(target in place.keys for target in targets.values()):
            return None
        where = self._draws.the_place(place, folder)
        if one:
            it = self._draws.said(program)
            forms = [f"{it} belongs in {where}.", f"{it} should end up in {where}, with its name unchanged."]
        else:
            assert isinstance(program, CountOf)
            several = self._english.things(program.things)
            forms = [f"The {several} belong in {where}.",
                     f"All {several} should end up in {where}, with their names unchanged."]  # fmt: skip
        there = [str(one.key) for one in self._world.of_kind(kind) if place.of(one)[0] == folder]
        return self._calls.finish(
            effect,
            program,
            replace(evaluated, chosen=tuple(targets)),
            lambda entity: {key: targets.get(str(entity.key), posixpath.join(folder, place.of(entity)[1]))},
            forms,
            right=there,
        )

    def renaming(self, effect: Effect) -> StateChange | None:
        """Ask for another name of a thing in the same place."""
        kind, place = effect.kind, self._placed[effect.kind]
        assert place is not None
        if (found := self._draws.choose(kind, one=True)) is None:
            return None
        program, evaluated = found
        (entity,) = self._draws.entities(evaluated, kind)
        folder, name = place.of(entity)
        new = self._random.choice(plausible.WORDS) + posixpath.splitext(name)[1]
        path, it = place.key(folder, new), self._draws.said(program)
        if path is None:
            return None
        forms = [
            f"{it} should be called {quoted(new)} from now on, and stay where it is.",
            f"From now on, {it} should go by the name {quoted(new)}, in the same {place.noun} as before.",
        ]
        return self._calls.finish(effect, program, evaluated, {self._world.kinds[kind].key: path}, forms)
