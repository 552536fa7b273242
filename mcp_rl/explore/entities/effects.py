"""Effects of changing calls on things, measured: each call is made at the beginning of an episode of its own, and the
listings before and after are compared.

Arguments are drawn for new things, and then with the keys of things that are there, with values that a thing does not
have yet and with values that it has. An effect counts if an argument is the key or the value of what changed.
"""

from __future__ import annotations

import posixpath
import random
import re
import time
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.explore import plausible
from mcp_rl.explore.answer import call_key
from mcp_rl.explore.entities.caller import Answered, CallBudget, WorldCaller
from mcp_rl.explore.entities.differences import Leaf, SeenState, compared, leaves_in, narrowed, replaced
from mcp_rl.explore.entities.parameters import ToolParameter, likeness, parameters_of
from mcp_rl.explore.entities.statements import filled, row_effects
from mcp_rl.explore.entities.world_model import ArgumentSlot, Effect
from mcp_rl.explore.fitting import fitted_samplers
from mcp_rl.explore.world import sql_parameter
from mcp_rl.system.threads import crowding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mcp_rl.explore.entities.caller import Call
    from mcp_rl.explore.entities.survey import Survey
    from mcp_rl.explore.entities.world_model import Entity, WorldModel
    from mcp_rl.explore.sample import Sampler
    from mcp_rl.explore.values_seen import ValuePool
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_SECONDS = 8.0
_SURE_TRIES, _MOST_SECONDS = 4, 30.0
"""Minimum number of tries of each tool, however slowly the server starts, and the seconds after which even these end.
"""
_AT_ONCE = 3
_MOST_LOOKS = 12
_SEED = "effects"
_SEVERAL = 3
"""Least number of things that must all differ in a fact before the fact can name one of them."""
_DRAWS = 2
"""Draws for new things, and for things that are there."""


class EffectMeter:
    """Measures the effects of the changing tools of a server."""

    def __init__(
        self, sessions: Sessions, server: ToolServer, params: ServerParams, survey: Survey, world: WorldModel
    ) -> None:
        self._sessions, self._params = sessions, params
        self._survey, self._world, self._server = survey, world, server
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        self._began, self._patience = time.monotonic(), crowding()
        self._random = random.Random(_SEED)
        self._constants, self._trusted = _constants(world), _trusted(world)
        self._keys = {entity.key for entity in world.entities}
        self._tried: set[str] = set()
        """Kinds of which the tries of the current tool have already named a thing."""
        self._folders = [
            *dict.fromkeys(
                posixpath.dirname(str(entity.key))
                for entity in world.entities
                if world.kinds[entity.kind].key == "path" and "/" in str(entity.key)
            )
        ]
        self._required: dict[str, set[str]] = {}
        self.slots: list[ArgumentSlot] = []
        """The arguments by which changing calls named things."""

    async def measured(self, tools: Sequence[Tool], pool: ValuePool) -> list[Effect]:
        """Return the effects of these tools, as far as their calls showed any."""
        by_statement = [one for tool in tools for one in row_effects(tool, self._world)]
        tools = [tool for tool in tools if sql_parameter(tool) is None]
        samplers = fitted_samplers(tools, pool, self._server)
        self._required = {tool.name: {one.name for one in parameters_of(tool) if one.required} for tool in tools}
        tries = [list(self._tries(tool, samplers[tool.name])) for tool in tools]
        # The tools in turns, so that a lack of time leaves something known of each.
        turns = range(max(map(len, tries), default=0))
        calls = [(turn, queue[turn]) for turn in turns for queue in tries if turn < len(queue)]
        found: list[list[Effect]] = [[] for _ in calls]

        async def one(at: int, turn: int, call: Call) -> None:
            async with self._limiter:
                if self._spent() < (_MOST_SECONDS if turn < _SURE_TRIES else _SECONDS):
                    found[at] = await self._effects(call)

        async with anyio.create_task_group() as tasks:
            for at, (turn, call) in enumerate(calls):
                tasks.start_soon(one, at, turn, call)
            for effect, row in by_statement:
                tasks.start_soon(self._by_statement, effect, row, found)
        effects = _once(effect for several in found for effect in several)
        order = {tool.name: at for at, tool in enumerate(tools)}
        return sorted(effects, key=lambda effect: order.get(effect.tool, len(order)))

    def _spent(self) -> float:
        """Return the seconds since the beginning, as on a machine that does nothing else."""
        return (time.monotonic() - self._began) / self._patience

    # Arguments

    def _tries(self, tool: Tool, sampler: Sampler) -> Iterator[Call]:
        seen: set[str] = set()
        self._tried.clear()
        parameters = {one.name: one for one in parameters_of(tool)}
        must = {one.name for one in parameters.values() if one.required}
        ending = "" if re.search("dir|folder", tool.name.lower()) else ".txt"
        for at, variant in enumerate(("new", "there", "beside", "beside", "own", "new", "there")):
            for _ in range(_DRAWS):
                draw = sampler.draw(self._random)
                if draw is None:
                    return
                arguments = self._usual(draw.arguments)
                if not at:
                    required = {name: v for name, v in arguments.items() if name in must}
                    arguments = required if sampler.valid(required) else arguments
                if variant == "beside":
                    arguments = self._beside(arguments, parameters, at)
                elif variant == "new":
                    arguments = self._new(arguments, parameters, ending)
                else:
                    arguments = self._about(arguments, parameters, own=variant == "own")
                key = call_key(tool.name, arguments)
                if key not in seen and sampler.valid(arguments):
                    seen.add(key)
                    yield tool.name, arguments
                    break

    def _usual(self, drawn: dict[str, Any]) -> dict[str, Any]:
        """Return arguments with the values that all reading calls had, such as the path of a repository."""
        return {name: self._constants.get(name, value) for name, value in drawn.items()}

    def _new(self, drawn: dict[str, Any], parameters: Mapping[str, ToolParameter], ending: str) -> dict[str, Any]:
        """Return arguments with names that no thing has."""
        arguments: Any = drawn
        for leaf in leaves_in(drawn):
            if not isinstance(leaf.value, str) or leaf.name in self._constants:
                continue
            if self._folders and leaf.parameter_in(parameters).is_place:
                arguments = replaced(arguments, leaf.path, self._new_path(ending))
            elif leaf.value in self._keys:
                arguments = replaced(arguments, leaf.path, self._new_name())
        return dict(arguments)

    def _beside(self, drawn: dict[str, Any], parameters: Mapping[str, ToolParameter], at: int) -> dict[str, Any]:
        """Return arguments with a new name for a thing, and the key of another thing of the kind beside it; none where
        a kind has no two such parameters. `at` chooses the other thing."""
        for kind in self._world.kinds.values():
            fits = [
                name
                for name, one in parameters.items()
                if one.type == "string" and name not in self._constants
                if likeness(one, kind.name, kind.key, is_key=True) > 1
            ]
            things = [one.key for one in self._world.of_kind(kind.name) if isinstance(one.key, str)]
            own = next((name for name in fits if parameters[name].required), None)
            if own is not None and len(fits) > 1 and len(things) > 1:
                other = next(name for name in fits if name != own)
                return {**drawn, own: self._new_name().lower().replace(" ", "-"), other: things[at % len(things)]}
        return {}

    def _new_path(self, ending: str = ".txt") -> str:
        return f"{self._random.choice(self._folders)}/{self._random.choice(plausible.WORDS)}{ending}"

    def _new_name(self) -> str:
        return f"{self._random.choice(plausible.WORDS).capitalize()} {self._random.choice(plausible.WORDS)}"

    def _about(self, drawn: dict[str, Any], parameters: Mapping[str, ToolParameter], *, own: bool) -> dict[str, Any]:
        """Return arguments about a thing that is there, with values that it has (`own`) or has not."""
        thing: Entity | None = None
        arguments: Any = drawn
        for leaf in leaves_in(drawn):
            if leaf.name in self._constants:
                continue
            parameter = leaf.parameter_in(parameters)
            kind, field = self._field_for(leaf, parameter, thing)
            things = self._world.of_kind(kind) if kind else []
            value: Any = None
            if thing is None and things:
                thing = self._random.choice(things)
                self._tried.add(kind)
                value = thing.facts[field].value if field in thing.facts else None
            elif self._folders and parameter.is_place:
                value = self._new_path()
            elif thing is not None and kind and (own or kind != thing.kind):
                value = self._other_value(thing, kind, field, own=own)
            if value is not None and type(value) is type(leaf.value):
                arguments = replaced(arguments, leaf.path, value)
        return dict(arguments)

    def _field_for(self, leaf: Leaf, parameter: ToolParameter, thing: Entity | None) -> tuple[str, str]:
        """Return the kind and the field whose values may stand there; for the first thing only fields that name it."""
        slots = {(slot.kind, slot.field) for slot in self._world.slots}
        by_name = {slot.parameter: (slot.kind, slot.field) for slot in reversed(self._world.slots)}
        best: tuple[float, str, str] = (1, "", "")
        kinds = list(self._world.kinds.values())
        for kind in self._random.sample(kinds, len(kinds)):
            for name in kind.fields:
                names_it = name == kind.key or (kind.name, name) in slots
                if thing is None and not names_it:
                    continue
                how: float = likeness(parameter, kind.name, name, is_key=name == kind.key)
                how += by_name.get(leaf.name) == (kind.name, name)
                how += 0.5 * (how > 1 and thing is None and kind.name not in self._tried)
                best = max(best, (how, kind.name, name), key=lambda one: one[0])
        return best[1], best[2]

    def _other_value(self, thing: Entity, kind: str, field: str, *, own: bool) -> Any:
        """Return a value from the thing's own lists, or one of another thing that it does not have."""
        listed = [one for fact in thing.facts.values() if isinstance(fact.value, list) for one in fact.value]
        every = [one.facts[field].value for one in self._world.of_kind(kind) if field in one.facts]
        values = [one for value in every for one in (value if isinstance(value, list) else [value])]
        if own:
            values = [one for one in listed if one in values or kind == thing.kind]
        else:
            values = [one for one in values if one not in listed]
        return self._random.choice(values) if values else None

    # Comparing

    async def _effects(self, call: Call) -> list[Effect]:
        tool, arguments = call
        leaves = list(leaves_in(arguments))
        looks = self._looks(leaves)
        after = await self._after(call, looks, leaves)
        if after is None:
            return []
        before = self._answers_before(looks)
        old, new = self._state(before), self._state([one for one in after if one is not None])
        found = [
            effect.model_copy(update={"tool": tool, "example": self._example(effect, narrowed(arguments, own), tool)})
            for effect, own in compared(old, new, leaves, self._world)
        ]
        for effect in found:
            self._learn_slots(effect, leaves)
        return found

    def _example(self, effect: Effect, arguments: dict[str, Any], tool: str) -> dict[str, Any]:
        """Return the arguments of a call; to remove a thing, those alone that the tool needs or that name it."""
        if effect.does != "removes":
            return arguments
        names = {*self._required.get(tool, ()), re.split(r"[.\[]", effect.keyed_by or "")[0]}
        return {name: value for name, value in arguments.items() if name in names}

    async def _after(self, call: Call, looks: Sequence[Call], leaves: Sequence[Leaf]) -> list[Answered | None] | None:
        """Make a call at the beginning of an episode; return the answers of the looks after it, or None if it fails."""
        try:
            async with self._sessions.lease(self._params) as lease:
                caller = WorldCaller(lease.session.connection, CallBudget.of(1, _SECONDS))
                made = await caller.all([call])
                if made[0] is None or made[0].is_error:
                    return None
                # A new caller, since the state is another one now.
                looker = WorldCaller(lease.session.connection, CallBudget.of(2 * _MOST_LOOKS, _SECONDS))
                after = list(await looker.all(looks))
                return [*after, *await looker.all(self._closer_looks(after, leaves))]
        except ServerFault:
            return None

    async def _by_statement(self, effect: Effect, row: Entity, found: list[list[Effect]]) -> None:
        """Try a statement on a row, and add its effect if the listings show just that."""
        values = {name: fact.value for name, fact in row.facts.items()}
        key = self._world.kinds[effect.kind].key
        if effect.does != "removes":
            others = {name: self._other_of(effect.kind, name, values.get(name)) for name in effect.valued_by.values()}
            values |= others
        statement = filled(effect.statement, values)
        async with self._limiter:
            if statement is None or self._spent() > _MOST_SECONDS:
                return
            arguments = dict.fromkeys(effect.example, statement)
            looks = self._looks([])
            after = await self._after((effect.tool, arguments), looks, [])
        if after is None:
            return
        old = self._state(self._answers_before(looks)).kinds.get(effect.kind, {})
        new = self._state([one for one in after if one is not None]).kinds.get(effect.kind, {})
        changed = [one for one in {**old, **new} if old.get(one) != new.get(one)]
        told = new.get(changed[0]) if len(changed) == 1 else None
        wanted = {name: values[name] for name in effect.valued_by.values()}
        if len(changed) == 1 and (
            (effect.does == "removes" and told is None and changed[0] == values[key])
            or (told is not None and all(told.get(name) == value for name, value in wanted.items()))
        ):
            found.append([effect.model_copy(update={"example": arguments})])

    def _other_of(self, kind: str, name: str, value: Any) -> Any:
        """Return a value of the field from another thing, or a new one."""
        values = [one.facts[name].value for one in self._world.of_kind(kind) if name in one.facts]
        others = [one for one in values if one != value]
        if self._world.kinds[kind].fields[name].kind == "text" and len(set(map(str, values))) == len(values):
            return self._new_name()
        return self._random.choice(others) if others else None

    def _learn_slots(self, effect: Effect, leaves: Iterable[Leaf]) -> None:
        """Keep the fields by whose values a thing was named."""
        named = [leaf.value for leaf in leaves if leaf.parameter == effect.keyed_by]
        for entity in self._world.of_kind(effect.kind) if effect.does != "creates" else ():
            for name, fact in entity.facts.items():
                slot = ArgumentSlot(tool=effect.tool, parameter=str(effect.keyed_by), kind=effect.kind, field=name)
                tells_apart = (
                    name == self._world.kinds[effect.kind].key
                    or any((one.kind, one.field) == (effect.kind, name) for one in self._world.slots)
                    or self._differs_for_each(effect.kind, name)
                )
                same = bool(named) and type(fact.value) is type(named[0]) and fact.value == named[0]
                if same and tells_apart and slot not in self.slots:
                    self.slots.append(slot)

    def _differs_for_each(self, kind: str, name: str) -> bool:
        """Return whether each of several things has another value of the field, as an id is."""
        things = self._world.of_kind(kind)
        values = {str(one.facts[name].value) for one in things if name in one.facts}
        return len(values) == len(things) >= _SEVERAL

    def _looks(self, leaves: Iterable[Leaf]) -> list[Call]:
        """Return the listings, and the calls about the things that the arguments name."""
        listings = {
            call_key(seen.tool, seen.arguments): (seen.tool, seen.arguments)
            for seen in self._world.observations
            if seen.lists is not None
        }
        named = {leaf.value for leaf in leaves if isinstance(leaf.value, str | int)}
        closer: dict[str, Call] = {}
        for entity in self._world.entities:
            if any(fact.value in named for fact in entity.facts.values() if isinstance(fact.value, str | int)):
                for fact in entity.facts.values():
                    for at in fact.shown_by:
                        seen = self._world.observations[at]
                        values = [v[0] if isinstance(v, list) and v else v for v in seen.arguments.values()]
                        if any(value in named for value in values if isinstance(value, str | int)):
                            closer.setdefault(seen.tool, (seen.tool, seen.arguments))
        return [*listings.values(), *closer.values()][:_MOST_LOOKS]

    def _closer_looks(self, after: Sequence[Answered | None], leaves: Iterable[Leaf]) -> list[Call]:
        """Return calls about the things that are new."""
        state = self._state([one for one in after if one is not None])
        calls: list[Call] = []
        for noun, things in state.kinds.items():
            known = {entity.key for entity in self._world.of_kind(noun)}
            for key in [key for key in things if key not in known][:2]:
                for slot in self._world.slots:
                    value = things[key].get(slot.field) if slot.kind == noun else None
                    seen = next((one for one in self._world.observations if one.tool == slot.tool), None)
                    if value is not None and seen is not None and slot.parameter in seen.arguments:
                        listed = isinstance(seen.arguments[slot.parameter], list)
                        calls.append((slot.tool, {**seen.arguments, slot.parameter: [value] if listed else value}))
        return calls[:_MOST_LOOKS]

    def _answers_before(self, looks: Sequence[Call]) -> list[Answered]:
        wanted = {call_key(*call) for call in looks}
        return [answer for answer in self._survey.answers if answer.key in wanted]

    def _state(self, answers: Sequence[Answered]) -> SeenState:
        told = self._survey.merged([one for one in answers if not one.is_error], learn=False)
        return SeenState.of(told, self._trusted)


def _once(found: Iterable[Effect]) -> list[Effect]:
    """Return each effect once, as the call shows it that says most. A value that is always set must be the same in all
    calls, and one that is copied must have come from two things."""
    effects: dict[tuple[object, ...], list[Effect]] = {}
    for one in found:
        key = (one.tool, one.does, one.kind, one.field, one.statement, bool(one.copies), one.value is not None)
        effects.setdefault(key, []).append(one)
    kept = []
    for several in effects.values():
        first = max(several, key=_says)
        sources = {str(one.example.get(name)) for one in several for name in one.copies}
        if all(one.value == first.value for one in several) and len(sources) != 1:
            kept.append(first)
    return kept


def _says(effect: Effect) -> tuple[bool, int]:
    return effect.keyed_by is not None, len(effect.valued_by)


def _trusted(world: WorldModel) -> dict[tuple[str, str], list[str]]:
    """Return the tools by which the model knows each field of each kind."""
    tools: dict[tuple[str, str], dict[str, None]] = {}
    for entity in world.entities:
        for name, fact in entity.facts.items():
            for at in fact.shown_by:
                tools.setdefault((entity.kind, name), {})[world.observations[at].tool] = None
    return {key: list(names) for key, names in tools.items()}


def _constants(world: WorldModel) -> dict[str, Any]:
    """Return the arguments that had one value in several calls of several tools."""
    values: dict[str, list[Any]] = {}
    for seen in world.observations:
        for name, value in seen.arguments.items():
            values.setdefault(name, []).append(value)
    slots = {slot.parameter for slot in world.slots}
    return {
        name: several[0]
        for name, several in values.items()
        if len(several) > 2 and name not in slots and all(value == several[0] for value in several)
    }
