"""Tasks that change a state: calls from the initial state of an episode, and the final state that they lead to.

Each proposal is played on its own lease, then reading calls look at the result. A look tells something where it differs
from the same look at the beginning. Played again, after the clock has moved on, the proposal must give the same looks;
these are what the verifier of kind "state" expects. Every step counts: without any one of the changing calls, the looks
differ.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.explore import tried
from mcp_rl.explore.answer import Answer, call_key, read_answer
from mcp_rl.explore.fitting import fitted_samplers
from mcp_rl.explore.pace import calls_within, episodes_within
from mcp_rl.explore.parts import Part, fits, parts_of
from mcp_rl.explore.probe import CLOCK_TICK, DRY_WAVES, Probe
from mcp_rl.explore.values_seen import handle_nouns
from mcp_rl.explore.words import noun_of, words_of
from mcp_rl.rewards.dates import is_dated
from mcp_rl.scenarios.chain import Chain
from mcp_rl.scenarios.stage import Look, Play, Played, ProposedCall, Stage, Unplayable, state_verifier
from mcp_rl.scenarios.wording import Spoken
from mcp_rl.toolserver.tool_server import BETWEEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.explore.outcome import Outcome
    from mcp_rl.scenario import ServerParams
    from mcp_rl.scenarios.compose import Composer
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_WAVE = 8
"""Proposals for one tool, or of one length, in one wave."""
_MOST_LOOKS = 8
"""Looks of one task before it is known which of them tell something."""
_KEPT_LOOKS = 3
_KNOWN_LOOKS = 3
"""Calls of one tool with several required arguments that are made again as looks."""
_LINKED, _COPIED = 0.8, 0.3
"""Probability of taking a fitting value from an earlier call: for parameters by which things are looked up, such as
ids, and for all others."""
_READS_LAST = 0.3
"""Share of the longer tasks that end with a question about the new state."""
_MOST_PROPOSALS = 6
"""Maximum proposals of one length for each task that is wanted; if they fail, the server offers no more."""
_SECONDS, _LEAST_CALLS = 60.0, 400
"""Seconds for finding tasks on a server that answers one call at a time, and the calls that are made in any case."""
_START_SECONDS, _LEAST_PLAYS = 40.0, 40
"""Seconds for starting processes, where each play takes one that nobody asked for, and the plays that are made in any
case."""
_TRIES = 12
_LEAST_PLAYED = 4
"""Fewest proposals to play at once."""
_SILENT, _MOST_PLAYS = 3, 10**6
"""Looks after calls of the same tools, none of which shows a change, after which such looks are spared; a number larger
than that of all plays."""
_FRUITLESS = 12
"""Proposals of one length with a tool, none of which became a task, after which the tool is left out of others."""
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True)
class _Move:
    """A call of a proposal, with `<result N.path>` for values of earlier results."""

    tool: str
    arguments: dict[str, Any]
    spoken: dict[str, Any]
    choices: tuple[tuple[str, str], ...] = ()


Proposal = tuple[_Move, ...]


@dataclass(frozen=True)
class _Draft:
    """A proposal that changed the state when it was played."""

    proposal: Proposal
    played: Played
    looks: tuple[Look, ...]
    """The looks that show the change; empty where the answer shows it."""
    answer: Answer | None = None
    """The answer of a last call that reads the new state."""


class Walks:
    """Makes tasks that change something, on a server that gives every episode its own state."""

    def __init__(
        self,
        sessions: Sessions,
        session: Session,
        server: ToolServer,
        params: ServerParams,
        probe: Probe,
        changing: Sequence[Tool],
        seed: int,
    ) -> None:
        self._stage = Stage(sessions, session, server, params)
        self._names = session.schemas.to_openai
        self._most_calls = max(_LEAST_CALLS, calls_within(server, _SECONDS))
        self._most_plays = max(_LEAST_PLAYS, episodes_within(server, _START_SECONDS))
        self._probe, self._random = probe, random.Random(f"{seed}:walks")
        self._changing = {tool.name: tool for tool in changing}
        self._reading = {tool.name: tool for tool in probe.tools if probe.progress[tool.name].outcomes}
        self._showing = {
            f"{one.name}{BETWEEN}{tool}" if server.members else tool
            for one in server.members or (server,)
            for tool in (one.measured.shown_by if one.measured else ())
        }
        probe.learn_constants()
        self._samplers = fitted_samplers(changing, probe.pool, server)
        self._samplers |= {name: probe.progress[name].sampler for name in self._reading}
        self._shapes: dict[str, list[Part]] = {
            name: max((outcome.parts for outcome in probe.progress[name].outcomes), key=len) for name in self._reading
        }
        self._handles = {name for tool in self._reading.values() for name in tool.input_schema.get("required") or ()}
        """Names of parameters by which reading calls find things."""
        self._nouns: dict[str, list[str]] = {}
        """Nouns of the tools that return a bare handle."""
        self._before: dict[str, Look] = {}
        """Looks at the initial state of an episode."""
        self._ids_shown: dict[str, tuple[str, ...]] = {}
        """The places of ids that differ in such looks from episode to episode."""
        self._ids_made: dict[str, tuple[str, ...]] = {}
        """The places of ids that a tool makes anew at each call."""
        self._seen: set[str] = set()
        self._filled_anew = server.filled_anew
        self._measured = any(one.measured is not None for one in server.members or (server,))
        self._proposed: Counter[tuple[int, str]] = Counter()
        """Proposals that were played, by their length and each tool in them; `_drafted` counts the drafts of them."""
        self._drafted: Counter[tuple[int, str]] = Counter()
        self._alike: Counter[tuple[int, tuple[str, ...]]] = Counter()
        """Drafts that were taken, by `_kind`."""
        self._silent: Counter[tuple[tuple[str, ...], str]] = Counter()
        """Times that a look showed no change after calls of these tools; far below 0 once it showed one."""

    async def compose(self, composer: Composer, lengths: Counter[int], most_alike: Mapping[int, int]) -> None:
        """Add tasks to the composer.

        `lengths` counts the wanted tasks by their number of calls, `most_alike` the most of these that change something
        by the same tools; a length that it does not name has no limit.
        """
        drafts: list[_Draft] = []
        for number, steps in enumerate(sorted(lengths), 1):
            most_plays = self._most_plays * number / len(lengths)
            drafts += await self._drafts(steps, lengths[steps], most_plays, most_alike.get(steps, math.inf))
        await anyio.sleep(CLOCK_TICK if drafts else 0)
        again = await self._stage.play_all([self._play(draft.proposal, draft.looks) for draft in drafts])
        for draft, second in zip(drafts, again, strict=True):
            lasting = None if isinstance(second, Unplayable) else _lasting(draft, second)
            if lasting is not None and (draft.answer is not None or self._differ_from_before(lasting)):
                self._add(composer, draft, lasting)

    def _differ_from_before(self, looks: Sequence[tuple[Look, Sequence[str]]]) -> bool:
        """Return whether the verifier of these looks, with their places of new ids, refuses the initial state."""
        places = {place for _, found in looks for place in found}
        return any(self._before[call_key(one.tool, one.arguments)].shows_another(one, places) for one, _ in looks)

    def _add(self, composer: Composer, draft: _Draft, looks: Sequence[tuple[Look, Sequence[str]]]) -> None:
        steps = draft.played.steps
        chain = Chain(steps, tuple(move.spoken for move in draft.proposal))
        if draft.answer is not None:
            composer.add_chain(chain, draft.answer)
            return
        text = composer.said(chain, questions=False)
        verifier = state_verifier([look for look, _ in looks], {place for _, places in looks for place in places})
        composer.add(text, steps, verifier, tags=("changes",))

    async def _drafts(self, steps: int, count: int, most_plays: float, most_alike: float) -> list[_Draft]:
        """Return at most `count` drafts of this length, with the changing tools in turn."""
        found: list[_Draft] = []
        dry = made = 0
        while len(found) < count and dry < DRY_WAVES and made < _MOST_PROPOSALS * (count + _WAVE):
            affordable = (self._most_calls - self._stage.calls) / (steps + _MOST_LOOKS)
            affordable = min(affordable, most_plays - self._stage.plays)
            if affordable < 1:
                break
            drawing = self._proposals(steps, 2 * (count - len(found)), most_alike)
            proposals = await anyio.to_thread.run_sync(list, drawing)  # takes seconds
            proposals = proposals[: int(min(affordable, len(proposals)))]
            drafts = await self._wave(proposals, count - len(found))
            dry, made = 0 if drafts else dry + 1, made + len(proposals)
            for draft in drafts:
                if self._alike[kind := self._kind([move.tool for move in draft.proposal])] < most_alike:
                    self._alike[kind] += 1
                    found.append(draft)
        return found[:count]

    def _proposals(self, steps: int, count: int, most_alike: float) -> Iterator[Proposal]:
        tools = self._fruitful(steps)
        wave = min(_WAVE * len(tools), max(count, len(tools)))
        for number in range(wave):
            for _ in range(_TRIES):
                proposal = self._proposal(steps, tools[number % len(tools)], most_alike)
                key = " ; ".join(call_key(move.tool, move.arguments) for move in proposal or ())
                if proposal and key not in self._seen:
                    self._seen.add(key)
                    yield proposal
                    break

    def _proposal(self, steps: int, tool: str, most_alike: float) -> Proposal | None:
        """Propose `steps` calls, `tool` among them; None where there are as many as `most_alike` by the same tools, or
        a reading call in them would serve nothing."""
        others = self._fruitful(steps)
        tools = [tool, *(self._random.choice(others) for _ in range(steps - 1))]
        self._random.shuffle(tools)
        # A call other than `tool` may give way to a last one that reads the new state …
        asks = steps > 1 and bool(self._reading) and self._random.random() < _READS_LAST
        if asks:
            tools.remove(next(other for other in reversed(tools) if other != tool or tools.count(tool) > 1))
            tools.append(self._random.choice(list(self._reading)))
        # … and another one to a first one that looks up what the later calls need.
        looks_up = len(tools) > (2 if asks else 1) and bool(self._reading) and self._random.random() < _READS_LAST
        if looks_up:
            at = next((i for i, other in enumerate(tools[:-1]) if other != tool or tools.count(tool) > 1), None)
            looks_up = at is not None
            if at is not None:
                tools.pop(at)
                tools.insert(0, self._random.choice(list(self._reading)))
        if self._alike[self._kind(tools)] >= most_alike:
            return None
        moves: list[_Move] = []
        for name in tools:
            move = self._move(name, moves)
            if move is None:
                return None
            moves.append(move)
        linked = any("<result 1." in json.dumps(move.arguments) for move in moves[1:])
        return None if looks_up and not linked else tuple(moves)

    def _fruitful(self, steps: int) -> list[str]:
        """Return the changing tools, without those that make no task of this length, where the state was measured."""
        tools = list(self._changing)
        if not self._measured:
            return tools
        fruitful = [tool for tool in tools if self._drafted[steps, tool] or self._proposed[steps, tool] < _FRUITLESS]
        return fruitful or tools

    def _kind(self, tools: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """Return the length of a proposal with calls of these tools, and those that change something."""
        return len(tools), tuple(sorted(set(tools) & self._changing.keys()))

    def _move(self, name: str, earlier: Sequence[_Move]) -> _Move | None:
        drawn = self._drawn(name)
        if drawn is None:
            return None
        arguments, spoken = dict(drawn.arguments), dict(drawn.arguments)
        choices = list(drawn.choices)
        for parameter, value in drawn.arguments.items():
            fitting = list(self._values(parameter, value, earlier))
            if fitting and self._random.random() < (_LINKED if parameter in self._handles else _COPIED):
                arguments[parameter], spoken[parameter] = self._random.choice(fitting)
                choices = [choice for choice in choices if choice[0] != f"{name}.{parameter}"]
        return _Move(name, arguments, spoken, tuple(choices))

    def _drawn(self, name: str) -> _Move | None:
        draw = self._samplers[name].draw(self._random)
        return None if draw is None else _Move(name, dict(draw.arguments), {}, tuple(draw.choices))

    def _values(self, parameter: str, value: Any, earlier: Sequence[_Move]) -> Iterator[tuple[Any, Any]]:
        """Yield values of earlier calls that fit a parameter: the argument, and its wording."""
        for number, move in enumerate(earlier, 1):
            result = "that result" if number == len(earlier) else f"the result of the {_ORDINALS[number - 1]} step"
            for part in self._shapes.get(move.tool, ()):
                if fits(part, parameter) and type(part.value) is type(value):
                    yield _placeholder(number, part), Spoken(f"{part.phrase} in {result}")
            if isinstance(value, str) and (noun := noun_of(words_of(parameter))) in self._nouns.get(move.tool, ()):
                yield f"<result {number}>", Spoken(f"the {noun} in {result}")
            same = move.arguments.get(parameter)
            if parameter in self._handles and type(same) is type(value) and not _is_placeholder(same):
                yield same, same

    # Playing

    async def _wave(self, proposals: Sequence[Proposal], wanted: int) -> list[_Draft]:
        """Play proposals, and return no more drafts than are wanted, unless later proposals learn from single calls."""
        if not self._measured and all(len(proposal) == 1 for proposal in proposals):
            return await self._drafts_of(proposals)
        drafts: list[_Draft] = []
        at = 0
        while at < len(proposals) and len(drafts) < wanted:
            some = proposals[at : at + max(_LEAST_PLAYED, wanted - len(drafts))]
            drafts += await self._drafts_of(some)
            at += len(some)
        return drafts

    async def _drafts_of(self, proposals: Sequence[Proposal]) -> list[_Draft]:
        results = await self._stage.play_all([self._play(p, tuple(self._telling_looks(p))) for p in proposals])
        played: list[tuple[Proposal, Played]] = []
        for proposal, result in zip(proposals, results, strict=True):
            if len(proposal) == 1:
                self._learn(proposal[0], result)
            if not isinstance(result, Unplayable):
                played.append((proposal, result))
        await self._look_before([look for _, one in played for look in self._wanted_looks(one)])
        drafts = [draft for proposal, one in played if (draft := self._draft(proposal, one)) is not None]
        for proposal, one in played:
            for look in one.looks:
                key = _changed_by(proposal), call_key(look.tool, look.arguments)
                self._silent[key] = -_MOST_PLAYS if self._tells(look) else self._silent[key] + 1
        await self._find_new_ids(drafts)
        drafts = await self._without_idle_steps(drafts)
        self._proposed.update(at for proposal in proposals for at in _tools_of(proposal))
        self._drafted.update(at for draft in drafts for at in _tools_of(draft.proposal))
        return drafts

    async def _find_new_ids(self, drafts: Sequence[_Draft]) -> None:
        """Play one change by each new tool again, to see which ids it makes anew."""
        new = {draft.proposal[0].tool: draft for draft in drafts if len(draft.proposal) == 1 and draft.looks}
        first = [draft for tool, draft in new.items() if tool not in self._ids_made]
        again = await self._stage.play_all([self._play(draft.proposal, draft.looks) for draft in first])
        for draft, second in zip(first, again, strict=True):
            pairs = [] if isinstance(second, Unplayable) else list(zip(draft.looks, second.looks, strict=True))
            places = {place for look, other in pairs for place in look.new_ids(other) or ()}
            self._ids_made[draft.proposal[0].tool] = tuple(places)

    def _new_ids_of(self, draft: _Draft) -> set[str]:
        """Return the places of ids that are others each time that a draft is played."""
        looked = [self._ids_shown.get(call_key(look.tool, look.arguments), ()) for look in draft.looks]
        made = [self._ids_made.get(move.tool, ()) for move in draft.proposal]
        return {place for places in (*looked, *made) for place in places}

    def _leads_to_the_same(self, draft: _Draft, other: Played) -> bool:
        """Return whether other calls lead to what the draft's verifier would accept."""
        if draft.answer is not None:
            return read_answer(other.steps[-1].text, other.steps[-1].arguments).value == draft.answer.value
        places = self._new_ids_of(draft)
        pairs = zip(draft.looks, other.looks, strict=True)
        return not any(look.shows_another(again, places) for look, again in pairs)

    async def _without_idle_steps(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Return the drafts in which every changing call matters. A draft is played no more once one does not."""
        idle: set[int] = set()
        for step in range(max((len(draft.proposal) for draft in drafts), default=0)):
            asked = [
                index
                for index, draft in enumerate(drafts)
                if 1 < len(draft.proposal) > step
                and index not in idle
                and draft.played.calls[step].tool in self._changing
            ]
            plays = [self._play_without(drafts[index], step) for index in asked]
            idle |= {
                index
                for index, without in zip(asked, await self._stage.play_all(plays), strict=True)
                if not isinstance(without, Unplayable) and self._leads_to_the_same(drafts[index], without)
            }
        return [draft for index, draft in enumerate(drafts) if index not in idle]

    def _play_without(self, draft: _Draft, step: int) -> Play:
        moves = [
            _Move(call.tool, dict(call.arguments), {}) for index, call in enumerate(draft.played.calls) if index != step
        ]
        return self._play(moves, draft.looks)

    def _learn(self, move: _Move, result: Played | Unplayable) -> None:
        self._probe.pool.credit(list(move.choices), not isinstance(result, Unplayable))
        if isinstance(result, Unplayable):
            tried.note(move.tool, "refused", move.arguments, str(result).removeprefix("a call is an error: "))
            self._probe.pool.observe_error(move.tool, move.arguments, str(result))
            return
        tried.note(move.tool, "unseen", move.arguments, result.steps[0].text)
        self._nouns.setdefault(move.tool, handle_nouns(move.tool, result.steps[0].text))
        parts = parts_of(result.steps[0].text)
        if len(parts) > len(self._shapes.get(move.tool, ())):
            self._shapes[move.tool] = parts

    def _play(self, proposal: Sequence[_Move], looks: Sequence[Look]) -> Play:
        calls = [ProposedCall(tool=self._names[m.tool], arguments=json.dumps(m.arguments)) for m in proposal]
        checks = [ProposedCall(tool=self._names[look.tool], arguments=json.dumps(look.arguments)) for look in looks]
        return calls, checks, None

    def _telling_looks(self, proposal: Proposal) -> Iterator[Look]:
        """Yield the looks at the end of a proposal, without those that never showed what its tools change."""
        tools = _changed_by(proposal)
        for look in self._looks(proposal):
            if not self._measured or self._silent[tools, call_key(look.tool, look.arguments)] < _SILENT:
                yield look

    def _looks(self, proposal: Proposal) -> Iterator[Look]:
        """Yield reading calls that may show the change, without their results."""
        made: dict[str, Look] = {}
        showing = sorted(self._reading.items(), key=lambda item: item[0] not in self._showing)
        for name, tool in showing:
            required = tool.input_schema.get("required") or []
            if len(required) > 1:
                outcomes = self._probe.progress[name].outcomes
                for outcome in _different(outcomes)[:_KNOWN_LOOKS] if self._measured else outcomes[:1]:
                    made.setdefault(outcome.key, Look(name, outcome.arguments, "", False))
            if not required:
                made.setdefault(call_key(name, {}), Look(name, {}, "", False))
            elif len(required) == 1:
                for value in self._lookup_values(required[0], proposal):
                    arguments = {required[0]: value}
                    made.setdefault(call_key(name, arguments), Look(name, arguments, "", False))
        # Looks without arguments first: they also show other changes. Then those of all tools in turn.
        counts: Counter[str] = Counter()
        ranked: list[tuple[bool, int, int, Look]] = []
        for look in made.values():
            counts[look.tool] += 1
            ranked.append((bool(look.arguments), counts[look.tool], len(ranked), look))
        yield from [look for *_, look in sorted(ranked, key=lambda rank: rank[:3])][:_MOST_LOOKS]

    def _lookup_values(self, parameter: str, proposal: Proposal) -> Iterator[Any]:
        for number, move in enumerate(proposal, 1):
            for name, value in move.arguments.items():
                if fits(Part((name,), "", ""), parameter) and isinstance(value, str | int | float):
                    yield value
            if move.tool in self._changing:
                for part in self._shapes.get(move.tool, ()):
                    if fits(part, parameter):
                        yield _placeholder(number, part)
                if noun_of(words_of(parameter)) in self._nouns.get(move.tool, ()):
                    yield f"<result {number}>"

    def _wanted_looks(self, played: Played) -> Iterator[Look]:
        yield from played.looks
        last = played.steps[-1]
        if last.tool in self._reading:
            yield Look(last.tool, last.arguments, last.text, False)

    async def _look_before(self, looks: Sequence[Look]) -> None:
        """Make these looks at the initial state, unless they were made before."""
        by_key = {call_key(look.tool, look.arguments): look for look in looks}
        new = [(key, look) for key, look in by_key.items() if key not in self._before]
        batches = [new[start : start + _MOST_LOOKS] for start in range(0, len(new), _MOST_LOOKS)]
        seen = await self._stage.play_all([self._play((), [look for _, look in batch]) for batch in batches])
        for batch, played in zip(batches, seen, strict=True):
            if not isinstance(played, Unplayable):
                self._before.update(zip((key for key, _ in batch), played.looks, strict=True))
        if self._filled_anew:
            again = await self._stage.play_all([self._play((), [look for _, look in batch]) for batch in batches])
            for batch, played in zip(batches, again, strict=True):
                for (key, _), look in zip(batch, () if isinstance(played, Unplayable) else played.looks, strict=False):
                    if key in self._before:
                        self._ids_shown[key] = self._before[key].new_ids(look) or ()

    def _draft(self, proposal: Proposal, played: Played) -> _Draft | None:
        if proposal[-1].tool in self._reading:
            last = played.steps[-1]
            before = self._before.get(last.key)
            answer = read_answer(last.text, last.arguments)
            if before is None or answer.value is None or is_dated(last.text):
                return None
            changed = before.is_error or read_answer(before.text, last.arguments).value != answer.value
            return _Draft(proposal, played, (), answer) if changed else None
        looks = {call_key(look.tool, look.arguments): look for look in played.looks if self._tells(look)}
        return _Draft(proposal, played, tuple(looks.values())[:_KEPT_LOOKS]) if looks else None

    def _tells(self, look: Look) -> bool:
        key = call_key(look.tool, look.arguments)
        before = self._before.get(key)
        return before is not None and before.shows_another(look, self._ids_shown.get(key, ()))


def _different(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return one outcome of each result: one that lists a part only may not show what another one shows."""
    return list({outcome.text: outcome for outcome in reversed(outcomes)}.values())[::-1]


def _changed_by(proposal: Proposal) -> tuple[str, ...]:
    return tuple(sorted({move.tool for move in proposal}))


def _tools_of(proposal: Proposal) -> set[tuple[int, str]]:
    return {(len(proposal), move.tool) for move in proposal}


def _lasting(draft: _Draft, second: Played) -> list[tuple[Look, tuple[str, ...]]] | None:
    """Return the looks with equal results in both plays, with the places of new ids; None where the task does not give
    the same again."""
    if draft.played.calls != second.calls:
        return None
    if draft.answer is not None:
        return [] if draft.played.steps[-1].text == second.steps[-1].text else None
    pairs = zip(draft.looks, second.looks, strict=True)
    return [(look, places) for look, again in pairs if (places := look.new_ids(again)) is not None] or None


def _placeholder(number: int, part: Part) -> str:
    return f"<result {number}.{'.'.join(map(str, part.path))}>"


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"<result \d", value) is not None
