"""A world model of a live server.

The calls are made twice, the second time from the beginning of another episode and after the clock has moved on: what
differs then is no fact. Calls and seconds are limited, and so are the things of a kind.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.explore.answer import holds_no_text
from mcp_rl.explore.bearing import Bearing, bearing
from mcp_rl.explore.entities.abbreviations import words_used
from mcp_rl.explore.entities.caller import Answered, CallBudget, WorldCaller
from mcp_rl.explore.entities.effects import EffectMeter
from mcp_rl.explore.entities.fields import described, words_for_relation
from mcp_rl.explore.entities.forms.reading import text_inside
from mcp_rl.explore.entities.keeping import collect
from mcp_rl.explore.entities.merging import MOST_ENTITIES, Draft, Told, thing_asked_about
from mcp_rl.explore.entities.nouns import plural
from mcp_rl.explore.entities.parameters import may_be_id_of, parameters_of
from mcp_rl.explore.entities.singles import singles_of
from mcp_rl.explore.entities.survey import Survey
from mcp_rl.explore.entities.world_model import (
    Entity,
    EntityField,
    EntityKind,
    Fact,
    Observation,
    Reference,
    WorldModel,
)
from mcp_rl.explore.explorable import explorable, reads, unfit_tools
from mcp_rl.explore.first_contact import understood
from mcp_rl.explore.fitting import WORLD_SEED, observe_setup, observe_start, tables_in
from mcp_rl.explore.pace import call_deadline, slowest_call
from mcp_rl.explore.tried import SAY_START
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.explore.words import words_of
from mcp_rl.explore.world import World
from mcp_rl.scenario import ServerGroup
from mcp_rl.system.visible import shortened
from mcp_rl.toolserver.pool import Sessions, open_sessions
from mcp_rl.toolserver.state import calls_in_flight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence

    from mcp_rl.config import ToolsConfig
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_CALLS, _SECONDS = 600, 8.0
"""Most calls of the survey, and its seconds; the second time, all of them are made again."""
_IN_FLIGHT = 8
_SLOW_CALLS, _MOST_SECONDS = 100, 120.0
"""Calls for which a slow server gets more time, and most seconds that they may take."""
_CLOCK_TICK = 1.1
_DEEPEST, _MOST_DESCRIBED = 5, 60
"""Depth of an output schema, and fields of one object in it, whose descriptions are read."""
_MOST_POOLED = 60
"""Answers from which arguments for changing calls are drawn."""
_MOST_OBSERVED = 1_500_000
"""Most characters of all observations."""
_READING_CHANGES = re.compile(r"\b(?:accessed|atime|last (?:access|seen|used|opened|viewed)|views|hits)\b")
"""Fields that reading a thing may change."""
_ROUND_NUMBERS = (10, 20, 25, 30, 50, 100, 200, 250, 500, 1000)
"""Lengths at which listings are often cut."""


@dataclass(frozen=True)
class BuiltWorld:
    """A world model, and what is to be said of it."""

    model: WorldModel
    remarks: tuple[str, ...] = ()
    """A sentence for each thing that is missing, with what would help."""
    places: tuple[str, ...] = ()
    """The addresses and paths where exploring began."""
    same: tuple[Answered, ...] = ()
    """Calls that gave the same result in two episodes; none where changes were tried after them."""


async def build_world(sessions: Sessions, *, server: ToolServer, params: ServerParams) -> BuiltWorld:
    """Return the world behind a server, as calls of its reading tools tell it.

    Raises ServerFault where the server is lost.
    """
    async with sessions.lease(params) as lease:
        session = lease.session
        pace = call_deadline(server), calls_in_flight(slowest_call(server), _IN_FLIGHT, call_deadline(server))
        seconds = min(_MOST_SECONDS, max(_SECONDS, _SLOW_CALLS * slowest_call(server)))
        # A server that starts slowly loses nothing.
        budget = CallBudget.of(_CALLS, seconds, first=_SLOW_CALLS, first_seconds=_MOST_SECONDS)
        tools = _reading(session, server)
        began = anyio.current_time()
        survey = Survey(WorldCaller(session.connection, budget, *pace), tools, *_known(server))
        await survey.run()
        spent = budget.seconds if budget.spent else 0.0
    first = [answer for answer in survey.answers if answer.tells]
    await anyio.sleep(max(0.0, began + _CLOCK_TICK - anyio.current_time()))
    async with _another_place(sessions, server, params) as session_again:
        again = await _repeated(session_again, first, 2 * seconds, pace)
    built = _Assembly(server.name, survey, first, again, spent).built()
    if server.stateful and (known := _without_singles(built.model)).entities:
        meter = EffectMeter(sessions, server, params, survey, known)
        effects = await meter.measured(_changing(session, server, tools), _pool(first))
        slots = dict.fromkeys((*built.model.slots, *meter.slots))
        changes = {"effects": tuple(effects), "slots": tuple(slots)}
        built = replace(built, model=built.model.model_copy(update=changes))
    else:
        same = tuple(one for one, two in zip(first, again, strict=True) if two is not None and two.text == one.text)
        built = replace(built, same=same)
    collect(built.model)
    return built


async def world_of(server: ToolServer, transport: str | None, tools: ToolsConfig) -> BuiltWorld:
    """Start a server, build the model of its world, and stop it.

    Its state is measured first, if nothing is known of it. Raises ServerError where it cannot be used.
    """
    server = await understood(server, transport, tools)
    async with open_sessions(server, tools) as sessions:
        return await build_world(sessions, server=server, params=server.params(transport))


def _reading(session: Session, server: ToolServer) -> list[Tool]:
    """Return the tools that read: as was measured, and those that seem to and were not seen to change anything."""
    unfit = unfit_tools(server)
    found = []
    for tool in explorable(session.offered, server):
        owner, name = server.owner_of(tool.name)
        seems = bearing(tool) is Bearing.READS and (owner.measured is None or name not in owner.measured.changing)
        if tool.name not in unfit and (reads(tool, server) or (seems and server.stateful)):
            found.append(tool)
    return found


@asynccontextmanager
async def _another_place(sessions: Sessions, server: ToolServer, params: ServerParams) -> AsyncIterator[Session]:
    """Yield a session at the beginning of another episode: in a new process where calls fill the server first.

    The ids and times of what they make may be others in each process.
    """
    filled = any(one.measured is not None and one.measured.setup for one in server.members or (server,))
    if filled and not sessions.replays:
        async with Sessions(server=server) as others, others.lease(params) as lease:
            yield lease.session
    else:
        async with sessions.lease(params) as lease:
            yield lease.session


def _changing(session: Session, server: ToolServer, reading: Sequence[Tool]) -> list[Tool]:
    """Return the tools that may be called and change something."""
    unfit = unfit_tools(server)
    names = {tool.name for tool in reading} | unfit
    return [tool for tool in explorable(session.offered, server) if tool.name not in names]


def _pool(answers: Sequence[Answered]) -> ValuePool:
    """Return the values that these answers show, for arguments."""
    pool = ValuePool()
    for answer in answers[:_MOST_POOLED]:
        pool.observe(answer.arguments, answer.text)
    return pool


def _known(server: ToolServer) -> tuple[list[str], list[str]]:
    """Return the addresses and paths where exploring begins, and the tables that were made in their databases."""
    pool = ValuePool()
    for one in server.members or (server,):
        for params in one.transports.values():
            if not isinstance(params, ServerGroup):
                observe_start(pool, params, one.start)
    places = [*pool["start"], *pool["path:folder"], *pool["path:file"]]
    for one in server.members or (server,):
        if one.measured is not None:
            observe_setup(pool, one.measured.setup, World(WORLD_SEED))
    return places, list(tables_in(pool))


async def _repeated(
    session: Session, answers: Sequence[Answered], seconds: float, pace: tuple[float, int]
) -> list[Answered | None]:
    """Make the same calls again; `pace` is the deadline of one, and how many are made at once."""
    budget = CallBudget.of(2 * len(answers), seconds, first=_SLOW_CALLS, first_seconds=2 * _MOST_SECONDS)
    caller = WorldCaller(session.connection, budget, *pace)
    return await caller.all((answer.tool, answer.arguments) for answer in answers)


class _Assembly:
    """Puts a model together."""

    def __init__(
        self, name: str, survey: Survey, first: list[Answered], again: list[Answered | None], spent: float
    ) -> None:
        """`spent` is the time of the survey in seconds, if it ran out, else 0."""
        pairs = [(one, two) for one, two in zip(first, again, strict=True) if two is not None and two.tells]
        self._name, self._survey, self._spent = name, survey, spent
        self._answers = [one for one, _ in pairs]
        self._again = [two for _, two in pairs]
        self._merge()
        unsteady = {
            (noun, draft.key) for noun, draft in self._once.drafts.items() if not self._trusted(draft, draft.key)
        }
        if unsteady:  # other fields may be keys that last
            survey.passing |= unsteady
            self._merge()

    def _merge(self) -> None:
        self._once = self._survey.merged(self._answers)
        self._twice = self._survey.merged(self._again, learn=False)

    def built(self) -> BuiltWorld:
        """Return the model."""
        drafts = {noun: draft for noun, draft in self._once.drafts.items() if draft.things}
        entities = self._on_known_things([one for draft in drafts.values() for one in self._entities(draft)])
        names = {entity.kind for entity in entities}
        kinds = {noun: draft for noun, draft in drafts.items() if noun in names}
        complete = self._complete(entities)
        in_parts = self._complete_in_parts(entities, complete)
        singles = singles_of(self._once, self._twice, self._answers, self._again)
        complete |= {one.kind: sorted({at for fact in one.facts.values() for at in fact.shown_by}) for one in singles}
        told, observations = self._observed([*entities, *singles], complete, in_parts)
        entities = [one for one in told if one.kind in kinds]
        alone = [one for one in told if one.kind not in kinds]
        tools = self._survey.reader.tools.values()
        abouts, known = _descriptions(tools), words_used(tools, (answer.text for answer in self._answers))
        described_kinds = {
            noun: EntityKind(
                name=noun,
                plural=plural(noun),
                key=draft.key,
                fields=dict(self._fields(draft, _values(entities, noun), abouts, known)),
                complete=noun in complete or noun in in_parts,
                within=draft.within,
            )
            for noun, draft in kinds.items()
        }
        references = tuple(_references(described_kinds, entities, set(self._survey.places)))
        model = WorldModel(
            server=self._name,
            kinds=_with_relations(described_kinds, references) | _single_kinds(alone, abouts, known),
            entities=(*entities, *alone),
            observations=tuple(observations),
            slots=tuple(
                slot
                for slot in dict.fromkeys(self._survey.accepted)
                if slot.kind in described_kinds and slot.field in described_kinds[slot.kind].fields
            ),
            references=references,
        )
        return BuiltWorld(model, tuple(self._remarks(model)), tuple(self._survey.places))

    def _fields(
        self, draft: Draft, values: Mapping[str, Sequence[Any]], abouts: Mapping[str, str], known: Collection[str]
    ) -> Iterator[tuple[str, EntityField]]:
        """Yield the fields of a kind by their names; `known` are the words that the server uses."""
        keys = frozenset(map(str, values.get(draft.key, ())))
        for name, held in values.items():
            about, is_key = abouts.get(name, ""), name == draft.key
            yield name, described(name, held, draft.noun, is_key=is_key, about=about, known=known, keys=keys)

    def _entities(self, draft: Draft) -> Iterator[Entity]:
        fields = dict.fromkeys(name for told in draft.things.values() for name in told)
        kept = {
            name: tools for name in fields if (tools := self._trusted(draft, name)) and not _says_the_kind(draft, name)
        }
        listed = self._listed_files() if draft.noun == "file" else frozenset()
        for key, told in draft.things.items():
            if key in draft.ambiguous or (key in self._survey.places and key not in listed):
                continue  # where the server begins, no listing shows
            facts: dict[str, Fact] = {}
            for name, tools in kept.items():
                value = told[name].value(tools) if name in told else None
                if value is not None:
                    facts[name] = Fact(value=value[0], shown_by=tuple(sorted(value[1])))
            if draft.key in facts:
                yield Entity(kind=draft.noun, key=key, facts=facts)

    def _listed_files(self) -> frozenset[Any]:
        """Return the paths of files that listings show among others, though exploring began at some of them."""
        lists = (one.keys for one in self._once.listings if one.noun == "file" and len(one.keys) > 1)
        return frozenset().union(*lists)

    def _on_known_things(self, entities: Sequence[Entity]) -> list[Entity]:
        """Return the things without those rows of tables that stand on none of the others."""
        known = {(one.kind, one.key) for one in entities}
        within = {noun: draft.within for noun, draft in self._once.drafts.items() if draft.within}
        return [
            one
            for one in entities
            if one.kind not in within
            or ((home := within[one.kind]) in one.facts and (home, one.facts[home].value) in known)
        ]

    def _complete_in_parts(self, entities: Sequence[Entity], complete: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Return the nouns of rows of which every one was read, with the calls that read them and that find none."""
        found: dict[str, list[int]] = {}
        for noun, draft in self._once.drafts.items():
            if draft.within not in complete or draft.left_out:
                continue
            rows = sum(one.kind == noun for one in entities)
            homes = {one.key for one in entities if one.kind == draft.within}
            asked = [(thing_asked_about(answer, self._survey.subjects), at) for at, answer in enumerate(self._answers)]
            if rows == len(draft.things) and homes <= {key for key, _ in asked}:
                found[noun] = [at for key, at in asked if key in homes]
        return found

    def _trusted(self, draft: Draft, name: str) -> list[str]:
        """Return the tools whose values of a field agree, with each other and with those of the second time."""
        if _READING_CHANGES.search(words_of(name)):
            return []
        other = self._twice.drafts.get(draft.noun)
        tools = dict.fromkeys(tool for told in draft.things.values() if name in told for tool in told[name].by_tool)
        steady = []
        for tool in tools:
            before = _told_by(draft, name, tool)
            after = _told_by(other, name, tool) if other is not None else {}
            if all(after.get(key) == value for key, value in before.items()):
                steady.append(tool)
        ranked = sorted(steady, key=lambda tool: self._rank(tool, draft, name), reverse=True)
        agreed: list[str] = []
        for tool in ranked:
            best = _told_by(draft, name, agreed[0]) if agreed else {}
            ours = _told_by(draft, name, tool)
            if all(best[key] == value for key, value in ours.items() if key in best):
                agreed.append(tool)
        return agreed

    def _rank(self, tool: str, draft: Draft, name: str) -> tuple[bool, bool, bool, int]:
        """Return how much is to be said for a tool's values: whole, numbers, in a listing, of many things."""
        values = _told_by(draft, name, tool)
        lists = any(self._answers[listing.call].tool == tool for listing in self._once.listings)
        cut = any(isinstance(value, str) and value.rstrip().endswith(("…", "...")) for value in values.values())
        numbers = all(isinstance(value, int | float) for value in values.values())
        return not cut, numbers, lists, len(values)

    def _complete(self, entities: Sequence[Entity]) -> dict[str, list[int]]:
        """Return the kinds of which a listing shows every thing, with the calls that do."""
        keys: dict[str, set[Any]] = {}
        for entity in entities:
            keys.setdefault(entity.kind, set()).add(entity.key)
        found: dict[str, list[int]] = {}
        for listing in self._once.listings:
            draft = self._once.drafts[listing.noun]
            wanted = keys.get(listing.noun)
            if wanted is None or listing.cut or draft.left_out or draft.ambiguous or not wanted <= listing.keys:
                continue
            if self._filters(self._answers[listing.call]):
                continue
            if not self._may_be_cut(listing.call, len(listing.keys)):
                found.setdefault(listing.noun, []).append(listing.call)
        return found

    def _filters(self, answer: Answered) -> bool:
        """Return whether a call asks for some things only: then it is chance that it shows all."""
        parameters = {one.name: one for one in parameters_of(self._survey.reader.tools[answer.tool])}
        given = [slot.parameter for slot in self._survey.accepted if slot.tool == answer.tool]
        return any(
            name in answer.arguments and not (parameters[name].is_place or parameters[name].is_address)
            for name in given
        )

    def _may_be_cut(self, call: int, length: int) -> bool:
        """Return whether a listing may have more pages: it says so, or it is as long as its limit."""
        answer = self._answers[call]
        if _says_more(answer.text, length):
            return True
        parameters = parameters_of(self._survey.reader.tools[answer.tool])
        limits = [one for one in parameters if one.limits]
        given = [answer.arguments[one.name] for one in limits if one.name in answer.arguments]
        if given:
            return any(length >= limit for limit in given if isinstance(limit, int))
        if not limits:
            return length in _ROUND_NUMBERS and any(one.type == "integer" for one in parameters)
        longer = [
            listing
            for listing in self._once.listings
            if self._answers[listing.call].tool == answer.tool
            and any(one.name in self._answers[listing.call].arguments for one in limits)
        ]
        return length in _ROUND_NUMBERS and not any(len(listing.keys) == length for listing in longer)

    def _observed(
        self, entities: Sequence[Entity], complete: Mapping[str, list[int]], in_parts: Mapping[str, list[int]]
    ) -> tuple[list[Entity], list[Observation]]:
        """Return the things and the observations that show them, numbered anew, within the limit."""
        used = {call for entity in entities for fact in entity.facts.values() for call in fact.shown_by}
        used |= {call for calls in in_parts.values() for call in calls}
        lists: dict[int, list[str]] = {}
        for noun, calls in complete.items():
            for call in calls:
                lists.setdefault(call, []).append(noun)
        numbers: dict[tuple[int, str], int] = {}
        observations: list[Observation] = []
        room = _MOST_OBSERVED
        for call in sorted(used | set(lists)):
            answer = self._answers[call]
            room -= len(answer.text)
            if room < 0:
                break
            # One that lists several kinds stands there for each of them.
            for noun in lists.get(call, [""]):
                numbers[call, noun] = len(observations)
                observations.append(
                    Observation(tool=answer.tool, arguments=answer.arguments, text=answer.text, lists=noun or None)
                )
        first = {call: number for (call, _), number in reversed(numbers.items())}
        kept = []
        for entity in entities:
            facts = {}
            for name, fact in entity.facts.items():
                shown = tuple(numbers.get((call, entity.kind), first[call]) for call in fact.shown_by if call in first)
                if shown:
                    facts[name] = Fact(value=fact.value, shown_by=shown)
            if facts:
                kept.append(Entity(kind=entity.kind, key=entity.key, facts=facts))
        return kept, observations

    def _remarks(self, model: WorldModel) -> Iterator[str]:
        if not model.entities:
            yield _why_empty(self._name, self._answers, self._survey)
        for noun, draft in self._once.drafts.items():
            known = model.kinds.get(noun)
            cut = any(listing.noun == noun and listing.cut for listing in self._once.listings)
            if draft.left_out or (cut and not (known is not None and known.complete)):
                yield (
                    f"Of the {plural(noun)} of {self._name}, {min(len(draft.things), MOST_ENTITIES)} are in the model, "
                    "and the server has more."
                )
            if draft.ambiguous:
                one = len(draft.ambiguous) == 1
                yield (
                    f"{len(draft.ambiguous)} {noun if one else plural(noun)} of {self._name} {'is' if one else 'are'} "
                    f"left out, because {'another has' if one else 'others have'} the same {draft.key}, such as "
                    f"{sorted(map(str, draft.ambiguous))[0]!r:.80}."
                )
        if self._spent:
            yield (
                f"{self._name} was asked for {self._spent:.0f} s and not about everything; what it holds beyond is "
                "not in."
            )


def _single_kinds(
    singles: Sequence[Entity], abouts: Mapping[str, str], known: Collection[str]
) -> dict[str, EntityKind]:
    """Return the kinds of records that stand alone."""
    return {
        one.kind: EntityKind(
            name=one.kind,
            plural=plural(one.kind),
            key="",
            fields={
                name: described(name, [fact.value], one.kind, is_key=False, about=abouts.get(name, ""), known=known)
                for name, fact in one.facts.items()
            },
            complete=True,
            single=True,
        )
        for one in singles
    }


def _without_singles(model: WorldModel) -> WorldModel:
    """Return a model without the kinds that have one thing alone, which no listing shows to change."""
    kinds = {name: kind for name, kind in model.kinds.items() if not kind.single}
    entities = tuple(one for one in model.entities if one.kind in kinds)
    return model.model_copy(update={"kinds": kinds, "entities": entities})


def _says_the_kind(draft: Draft, name: str) -> bool:
    """Return whether a field is a flag that is the same for all of several things, such as isFile."""
    told = [fields[name].by_tool for fields in draft.things.values() if name in fields]
    values = {value for by_tool in told for by_value in by_tool.values() for value in by_value}
    return len(told) > 1 and len(values) == 1 and values <= {"true", "false"}


def _told_by(draft: Draft, name: str, tool: str) -> dict[Any, Any]:
    """Return the values of a field that one tool told, by the keys of the things; without contradictions."""
    found = {}
    for key, told in draft.things.items():
        value = told.get(name, Told()).value([tool])
        if value is not None:
            found[key] = value[0]
    return found


def _values(entities: Sequence[Entity], noun: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for entity in entities:
        if entity.kind == noun:
            for name, fact in entity.facts.items():
                found.setdefault(name, []).append(fact.value)
    return found


def _references(kinds: Mapping[str, EntityKind], entities: Sequence[Entity], beyond: set[Any]) -> Iterator[Reference]:
    """Yield the fields whose values are keys of a kind, apart from those `beyond`."""
    keys: dict[str, set[Any]] = {}
    for entity in entities:
        keys.setdefault(entity.kind, set()).add(entity.key)
    for noun, kind in kinds.items():
        values = _values(entities, noun)
        for name, described_field in kind.fields.items():
            if name == kind.key or described_field.kind not in ("text", "list", "number"):
                continue
            single = {one for value in values[name] for one in (value if isinstance(value, list) else [value])} - beyond
            if not single:
                continue
            if all(one.facts[name].value == one.key for one in entities if one.kind == noun and name in one.facts):
                continue  # another name of the thing itself
            said = words_of(name.rpartition(".")[2]).split(" ")
            for other, theirs in sorted(keys.items(), key=lambda one: one[0] not in said):
                unnamed = said[-1] == "id" and not keys.keys() & set(said) and may_be_id_of(name, other, list(single))
                named = other in said or unnamed
                if single <= theirs and (named or all(isinstance(one, str) for one in single)):
                    yield Reference(kind=noun, field=name, to=other)
                    break


def _descriptions(tools: Iterable[Tool]) -> dict[str, str]:
    """Return what the output schemas of tools say of fields, by the fields' names."""
    found: dict[str, str] = {}

    def walk(schema: Any, depth: int) -> None:
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return
        properties = schema.get("properties")
        for name, inner in list(properties.items())[:_MOST_DESCRIBED] if isinstance(properties, dict) else ():
            if isinstance(inner, dict) and isinstance(inner.get("description"), str):
                found.setdefault(str(name), inner["description"][:300])
            walk(inner, depth + 1)
        walk(schema.get("items"), depth + 1)

    for tool in tools:
        walk(tool.output_schema, 0)
    return found


def _with_relations(kinds: Mapping[str, EntityKind], references: Sequence[Reference]) -> dict[str, EntityKind]:
    """Return the kinds with nouns for those fields that a verb names."""
    said = {(one.kind, one.field): one.to for one in references}
    found = {}
    for noun, kind in kinds.items():
        fields: dict[str, EntityField] = {}
        for name, about in kind.fields.items():
            words = words_for_relation(about.words, said[noun, name]) if (noun, name) in said else about.words
            taken = {other.words for other in (*kind.fields.values(), *fields.values())}
            if words not in taken:
                about = about.model_copy(update={"words": words})
            if (noun, name) in said and about.kind == "number":  # a key is no amount
                about = about.model_copy(update={"kind": "text"})
            fields[name] = about
        found[noun] = kind.model_copy(update={"fields": fields})
    return found


_MORE = re.compile(
    r"(?i)\"(?:has_?more|has_?next(?:_?page)?|truncated)\"\s?:\s?true|\"next_?(?:cursor|page|token)\"\s?:\s?[\"1-9]|"
    r"\band \d+ more\b|\bshowing (?:the )?(?:first )?\d+ of \d+"
)
_TOTAL = re.compile(r"(?i)\"(?:total|total_?count|total_?results)\"\s?:\s?(\d{1,9})")


def _says_more(text: str, length: int) -> bool:
    totals = [int(found) for found in _TOTAL.findall(text)]
    return _MORE.search(text) is not None or any(total > length for total in totals)


def _what_they_are(answers: Sequence[Answered]) -> str:
    """Return what all of these results are, in words."""
    texts = [text_inside(answer.text).strip() for answer in answers]
    if all(map(holds_no_text, texts)):
        return "only images and other content that is not text"
    if all(re.fullmatch(r"[-+]?[\d.,]+(?:e[-+]?\d+)?%?", text) for text in texts):
        return "only single numbers"
    return "only prose" if all(len(text.split()) > 3 and text[:1] not in "[{" for text in texts) else "single values"


def _why_empty(name: str, answers: Sequence[Answered], survey: Survey) -> str:
    if answers:
        example = answers[0]
        return (
            f"No things are known of {name}: its results are {_what_they_are(answers)}, not lists or records of things "
            f"with lasting properties; {example.tool} said {shortened(example.text, 100)!r}."
        )
    if survey.answers:
        failed = survey.answers[0]
        return (
            f"No things are known of {name}: no call that was tried told anything that lasts; {failed.tool} said "
            f"{shortened(failed.text, 100)!r}."
        )
    if not survey.reader.tools:
        return f"No things are known of {name}: none of its tools seems to read, or may be called freely."
    example_tool = next(iter(survey.reader.tools.values()))
    required = [one for one in parameters_of(example_tool) if one.required]
    needed = " and ".join(one.name for one in required)
    helps = f": {SAY_START}" if any(one.is_address for one in required) else ""
    return (
        f"No things are known of {name}: its tools need values that nothing shows beforehand, such as {needed} of "
        f"{example_tool.name}{helps}."
    )
