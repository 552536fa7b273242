"""Proofs of changes on the live server.

A change is played twice from the state that an episode begins in. Then all listings are made again, and the details of
some things: what they show is what the verifier expects, so that any way to this state is right, and changing anything
more is not. The same calls in another order must lead there; doing nothing, too little or too much must not.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from mcp_rl.explore.answer import call_key
from mcp_rl.explore.probe import CLOCK_TICK
from mcp_rl.scenario import GoalProof, Level, ToolCall, Verifier
from mcp_rl.scenarios.goals.changes.changes import Changes
from mcp_rl.scenarios.goals.task import GoalTask, accepted, longest, records_of, refutes, results_hash
from mcp_rl.scenarios.stage import MOST_CALLS, Look, Play, ProposedCall, Refutes, Stage, Unplayable, state_verifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import Observation, WorldModel
    from mcp_rl.scenarios.goals.changes.calls import StateChange
    from mcp_rl.scenarios.goals.twice import ReadingCall, Twice

_DRAWN = 4
"""Changes drawn for one that is tried, so that there are some of each tool."""
_EXTRA = 1.25
"""Most changes tried for one that is wanted, since some do not hold."""
_LISTINGS, _DETAILS, _OTHERS = 5, 3, 1
"""Most listings, details of what changed, and details of other things that are looked at in the end."""
_MOST_AT_ONCE = 60
"""Maximum number of things that one call looks at."""
_DONE = "It is done."


@dataclass(frozen=True)
class _Draft:
    """A change that was played, and the looks that stayed the same when it was played again."""

    change: StateChange
    looks: tuple[Look, ...]
    new_ids: tuple[str, ...] = ()
    """The places of ids that are others each time."""

    @property
    def verifier(self) -> Verifier:
        return state_verifier(self.looks, self.new_ids)


class BroughtAbout:
    """Draws changes over a world and proves them on the live server."""

    def __init__(self, world: WorldModel, tools: Sequence[str], stage: Stage, twice: Twice, seed: int) -> None:
        self._world, self._stage, self._twice = world, stage, twice
        self._changes = Changes(world, tools, seed)
        self._random = random.Random(f"{seed}:brought")
        self._names = stage.schemas.to_openai
        listings = [seen for seen in reversed(world.observations) if seen.lists]
        self._listings = {call_key(seen.tool, dict(seen.arguments)): seen for seen in listings}

    async def tasks(self, wanted: Mapping[Level, int], told_of: Mapping[str, int] | None = None) -> list[GoalTask]:
        """Return up to so many proven tasks of the levels "told" and "brought-about", and of each tool at most
        `told_of` told ones."""
        total = wanted.get("told", 0) + wanted.get("brought-about", 0)
        drawn = await anyio.to_thread.run_sync(self._drawn, total, wanted, told_of or {})
        if any(drawn.values()):
            await self._twice.make([(seen.tool, seen.arguments) for seen in self._world.observations])
        made: list[GoalTask] = []
        missing = dict(wanted)
        while tried := [drawn[level].pop(0) for level, count in missing.items() for _ in drawn[level][:count]]:
            made += await self._judged(await self._lasting(tried))
            found = Counter(task.level for task in made)
            missing = {level: count - found[level] for level, count in wanted.items()}
        return made

    def _drawn(
        self, total: int, wanted: Mapping[Level, int], told_of: Mapping[str, int]
    ) -> dict[Level, list[StateChange]]:
        """Draw changes for so many tasks; takes seconds."""
        drawn = list(self._changes.draw(_DRAWN * round(_EXTRA * total + 2))) if total else []
        return self._in_turn(drawn, wanted, told_of)

    def _in_turn(
        self, changes: Sequence[StateChange], wanted: Mapping[Level, int], told_of: Mapping[str, int]
    ) -> dict[Level, list[StateChange]]:
        """Return as many changes of each level as may be needed, with the tools that bring them about in turn."""
        chosen: dict[Level, list[StateChange]] = {}
        for level, count in wanted.items():
            by_tool: dict[str, list[StateChange]] = {}
            for change in changes:
                if change.level == level:
                    by_tool.setdefault(change.calls[0][0], []).append(change)
            if level == "told":
                by_tool = {tool: some[: told_of.get(tool, len(some))] for tool, some in by_tool.items()}
            in_turn = [change for some in zip_longest(*by_tool.values()) for change in some if change is not None]
            chosen[level] = in_turn[: math.ceil(_EXTRA * count)]
        return chosen

    async def _lasting(self, changes: Sequence[StateChange]) -> list[_Draft]:
        stable = [seen for seen in self._world.observations if self._twice.repeats(seen)]
        reads = [self._reads(change, stable) for change in changes]
        first = await self._stage.play_all(list(map(self._play, [change.calls for change in changes], reads)))
        await anyio.sleep(CLOCK_TICK if changes else 0)
        second = await self._stage.play_all(list(map(self._play, map(_after_lookups, changes), reads)))
        drafts = []
        for change, one, again in zip(changes, first, second, strict=True):
            await checkpoint()
            if isinstance(one, Unplayable) or isinstance(again, Unplayable):
                continue
            pairs = zip(one.looks, again.looks, strict=True)
            lasting = [(look, places) for look, other in pairs if (places := look.new_ids(other)) is not None]
            looks = tuple(look for look, _ in lasting)
            listed = [look for look in looks if self._observation(look) is not None]
            seen = "\n".join(look.text for look in looks if not look.is_error)
            if not all(_is_in(value, seen) for value in change.values):
                continue
            same = one.calls == again.calls[-len(one.calls) :]
            if listed and any(self._differs(look) for look in looks) and same:
                drafts.append(_Draft(change, looks, tuple({place for _, places in lasting for place in places})))
        return drafts

    async def _judged(self, drafts: Sequence[_Draft]) -> list[GoalTask]:
        """Play other ways and wrong endings, and return the tasks whose verifier judges all of them rightly."""
        plays: list[Play] = []
        refuting: list[Refutes | None] = []
        places: list[tuple[int, bool]] = []
        ways, refused, wrong = Counter[int](), Counter[int](), set[int]()
        for index, draft in enumerate(drafts):
            refuted = partial(refutes, draft.verifier)
            endings = self._endings(draft.change)
            if self._twice.refute(draft.verifier):
                refused[index] += 1
            else:
                endings.append(([], False))
            ways[index] += 1  # the calls after its lookups, which were played
            for calls, right in endings:
                plays.append(self._play(calls, [(look.tool, look.arguments) for look in draft.looks]))
                refuting.append(None if right else refuted)
                places.append((index, right))
        played = await self._stage.play_all(plays, refuting)
        for (index, right), one in zip(places, played, strict=True):
            await checkpoint()
            if isinstance(one, Unplayable):
                continue  # the server itself refuses that ending
            draft = drafts[index]
            reached = not one.refuted and accepted(draft.verifier, _DONE, one.calls, records_of(one.looks))
            if reached == right:
                (ways if right else refused)[index] += 1
            else:
                wrong.add(index)
        return [
            self._task(draft, ways[index], refused[index])
            for index, draft in enumerate(drafts)
            if index not in wrong and refused[index]
        ]

    def _endings(self, change: StateChange) -> list[tuple[Sequence[ReadingCall], bool]]:
        """Return sequences of calls, each with whether it brings the state about. Doing nothing is not among them."""
        right = [change.otherwise] if list(change.otherwise) != list(change.calls) else []
        wrong: list[Sequence[ReadingCall]] = list(change.near)
        if len(change.calls) > 1:
            wrong.append(change.calls[1:])
        if change.too_much:
            wrong.append([*change.calls, *change.too_much])
        return [*((calls, True) for calls in right), *((calls, False) for calls in wrong)]

    def _task(self, draft: _Draft, ways: int, refused: int) -> GoalTask:
        change = draft.change
        calls = tuple(ToolCall(tool=t, arguments=dict(a)) for t, a in (*change.lookups, *change.calls))
        texts = [text for call in change.lookups if (text := self._twice[call]) is not None]
        proof = GoalProof(
            program=f"{change.does} {change.program!r}",
            executed=2,
            results=results_hash(texts),
            longest_result=longest(texts),
            ways=ways,
            refused=refused,
            apart=change.apart,
        )
        tags = (change.level, "changes", change.does)
        return GoalTask(change.text, change.level, calls, _DONE, draft.verifier, proof, tags)

    # Looking

    def _reads(self, change: StateChange, stable: Sequence[Observation]) -> list[ReadingCall]:
        """Return the calls that look at the end state, of those whose results are `stable`: at what is new, all
        listings, and details of each thing that can be seen in one call; then of things that changed and of others."""
        details = [seen for seen in stable if seen.lists is None]
        touched = [(seen.tool, seen.arguments) for seen in details if self._is_about(seen, change.touched)]
        others = [(seen.tool, seen.arguments) for seen in details if not self._is_about(seen, change.touched)]
        first_of = {seen.lists: (seen.tool, seen.arguments) for seen in reversed(stable) if seen.lists is not None}
        # Listings come first, as they refute most wrong endings.
        looks = [*list(first_of.values())[:_LISTINGS], *change.looks, *self._all_in_one(change, stable)]
        # Another detail of a thing by each tool says more than the same one of many things by one tool.
        by_tool = {tool: (tool, arguments) for tool, arguments in reversed(touched)}
        looks += [*list(by_tool.values()), *touched][:_DETAILS]
        looks += self._random.sample(others, min(len(others), _OTHERS))
        return list({call_key(tool, dict(arguments)): (tool, arguments) for tool, arguments in looks}.values())[
            :MOST_CALLS
        ]

    def _all_in_one(self, change: StateChange, stable: Sequence[Observation]) -> list[ReadingCall]:
        """Return calls each of which shows details of all things that stay, by tools that take lists of keys."""
        found: list[ReadingCall] = []
        for slot in self._world.slots:
            seen = next((one for one in stable if one.tool == slot.tool and slot.parameter in one.arguments), None)
            is_key = slot.kind in self._world.kinds and slot.field == self._world.kinds[slot.kind].key
            if seen is None or not is_key or not isinstance(seen.arguments[slot.parameter], list):
                continue
            keys: list[JsonValue] = [o.key for o in self._world.of_kind(slot.kind) if str(o.key) not in change.touched]
            if 0 < len(keys) <= _MOST_AT_ONCE:
                found.append((slot.tool, {**seen.arguments, slot.parameter: keys}))
        return found[:2]

    def _is_about(self, seen: Observation, keys: Sequence[str]) -> bool:
        return any(str(value) in keys for value in seen.arguments.values())

    def _observation(self, look: Look) -> Observation | None:
        """Return the complete listing that a look repeats, or None."""
        return self._listings.get(call_key(look.tool, look.arguments))

    def _differs(self, look: Look) -> bool:
        return self._twice[look.tool, look.arguments] != self._twice.settled(look.text) or look.is_error

    def _play(self, calls: Sequence[ReadingCall], reads: Sequence[ReadingCall]) -> Play:
        return [self._proposed(call) for call in calls], [self._proposed(call) for call in reads], None

    def _proposed(self, call: ReadingCall) -> ProposedCall:
        return ProposedCall(tool=self._names[call[0]], arguments=json.dumps(dict(call[1])))


def _after_lookups(change: StateChange) -> list[ReadingCall]:
    """Return the calls that solve a task: its lookups, then the change."""
    return [*change.lookups[: MOST_CALLS - len(change.calls)], *change.calls]


def _is_in(value: str, text: str) -> bool:
    return value in text or json.dumps(value, ensure_ascii=False)[1:-1] in text
