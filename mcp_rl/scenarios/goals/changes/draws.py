"""Shared draws of all changes: the world and its words, choices of things, and new values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_rl.explore import plausible
from mcp_rl.scenarios.goals.placed import Placing, placing
from mcp_rl.scenarios.goals.program import CountOf, Evaluated, ExtremeOf, Program, Unanswerable, evaluate
from mcp_rl.scenarios.goals.propose import ProgramDrawer
from mcp_rl.scenarios.goals.requests import Requests, ToolNames
from mcp_rl.scenarios.goals.values import number
from mcp_rl.scenarios.goals.words import PEOPLE, English, quoted, sentence

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Effect, Entity, WorldModel

_MOST_CHANGED = 4
_PLACES = frozenset(("city", "town", "place", "location", "birthplace"))


class ChangeDraws:
    """Choices of things and values for changes over one world, from one stream of random numbers."""

    def __init__(self, world: WorldModel, tools: ToolNames, random: random.Random) -> None:
        self.world, self.random = world, random
        self.english = English(world, random)
        self.requests = Requests(self.english, tools)
        self.proposer = ProgramDrawer(self.english, random)
        self.placed = {kind: placing(world, kind) for kind in world.kinds}

    def choose(self, kind: str, *, without: Sequence[str] = (), one: bool) -> tuple[Program, Evaluated] | None:
        """Choose some things of a kind, or `one`; None if the draw gave an unsuitable number of them."""
        if one and self.random.random() < 0.4:
            drawn = self.proposer.draw_for("extreme", kind)
            program: Program | None = drawn if isinstance(drawn, ExtremeOf) else None
            if isinstance(program, ExtremeOf):
                program = ExtremeOf(program.things, program.by, program.most, self.english.name_field(kind))
        elif one and self.random.random() < 0.4:
            named = self.proposer.named(kind)
            program = CountOf(named) if named else None
        else:
            program = CountOf(self.proposer.select(kind, without=without))
        if program is None or (isinstance(program, CountOf) and not program.things.conditions):
            return None
        evaluated = evaluate(self.world, program)
        chosen, every = len(evaluated.chosen), len(self.world.of_kind(kind))
        fits = chosen == 1 if one else 1 < chosen <= _MOST_CHANGED
        return (program, evaluated) if fits and chosen < every else None

    def said(self, program: Program) -> str:
        """Phrase the one thing that a program chooses."""
        assert isinstance(program, ExtremeOf | CountOf)
        if isinstance(program, ExtremeOf):
            return self.requests.the_extreme(program)
        return self.english.the_one(program.things)

    def entities(self, evaluated: Evaluated, kind: str) -> list[Entity]:
        """Return the things of a kind that an answered program chose."""
        return [one for one in self.world.of_kind(kind) if str(one.key) in evaluated.chosen]

    def has(self, kind: str, name: str) -> bool:
        """Return whether things of a kind have a field."""
        return name in self.world.kinds[kind].fields

    def texts(self, effect: Effect) -> list[str]:
        """Return the fields that an effect gives a value and that hold the text of a thing."""
        named = [name for name in effect.valued_by.values() if self.has(effect.kind, name)]
        return [name for name in named if self.english.sort(effect.kind, name) == "contents"]

    def seen(self, evaluated: Evaluated, kind: str, name: str) -> Evaluated:
        """Return an answered program that also requires a look at a field of the chosen things."""
        if any(name not in one.facts for one in self.entities(evaluated, kind)):
            raise Unanswerable(f"no call shows the {name}")
        facts = [(kind, key, name) for key in evaluated.chosen]
        return replace(evaluated, facts=tuple(dict.fromkeys([*evaluated.facts, *facts])))

    def the_place(self, place: Placing, folder: str) -> str:
        """Phrase a place, as in: the folder "notes"."""
        noun = self.english.place(place.kind, place.noun)
        return f"the {noun} {quoted(self.english.spoken(place.kind, place.place, folder))}"

    def value(self, kind: str, name: str, *, fresh: bool) -> JsonValue:
        """Draw a plausible value of a field: one of another thing, or a fresh one."""
        about = self.world.kinds[kind].fields.get(name)
        if about is None:
            return None
        seen = [one.facts[name].value for one in self.world.of_kind(kind) if name in one.facts]
        match about.kind:
            case "list":
                known_items = listed_items(seen)
                return [self.random.choice(known_items)] if known_items else [self.random.choice(plausible.WORDS)]
            case "prose":
                return sentence(plausible.sentence(self.random)) + "."
            case "number":
                known = [value for one in seen if (value := number(one)) is not None]
                return round(self.random.choice(known) + self.random.randint(1, 9)) if known else None
            case "text":
                shared = [value for value in dict.fromkeys(map(str, seen)) if seen.count(value) > 1]
                if shared and not fresh:
                    return self.random.choice(shared)
                if (
                    fresh
                    and self.english.is_person(kind)
                    and (new := [one for one in plausible.NAMES if one not in seen])
                ):
                    return self.random.choice(new)
                names = plausible.NAMES if _is_name(self.english.words(kind, name), PEOPLE) else plausible.CITIES
                if names is plausible.NAMES or _is_name(self.english.words(kind, name), _PLACES):
                    return self.random.choice([one for one in names if one not in seen] or names)
                words = self.random.sample(plausible.WORDS, 2)
                if self.english.sort(kind, name) == "contents":
                    return sentence(plausible.sentence(self.random)) + "."
                return sentence(" ".join(words)) if all(str(one)[:1].isupper() for one in seen) else "-".join(words)
        return None


def _is_name(words: str, nouns: Collection[str]) -> bool:
    """Return whether a field of these words holds the name of what one of the nouns means."""
    return words.split(" ")[-1] in nouns


def listed_items(lists: Sequence[JsonValue]) -> list[str]:
    """Return the distinct texts in several lists."""
    return list(
        dict.fromkeys(item for value in lists if isinstance(value, list) for item in value if isinstance(item, str))
    )
