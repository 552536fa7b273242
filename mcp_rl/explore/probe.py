"""Single calls to a live server, with arguments that improve by results and errors.

Proposals are drawn in waves, and results are read in the order of their proposals, so that the same seed gives the same
outcomes however many calls are in flight.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.explore import plausible, tally, tried
from mcp_rl.explore.answer import Answer, call_key, holds_no_text, holds_secret, lasting_answer, says_nothing
from mcp_rl.explore.complaint import common_texts, reports_failure
from mcp_rl.explore.fatal import still_answers, suspected
from mcp_rl.explore.fitting import fitted_samplers
from mcp_rl.explore.outcome import Outcome
from mcp_rl.explore.pace import call_deadline, slowest_call
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.explore.words import words_of
from mcp_rl.rewards.dates import is_dated, undated, untimed
from mcp_rl.toolserver.state import calls_in_flight

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.explore.sample import Draw, Sampler
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

_IN_FLIGHT = 16
_WAVE = 16
"""Most proposals for one tool in one wave."""
_PROBES = 4
"""Most proposals for one tool in its first wave, before anything is known about it."""
_FAULTS = 3
"""Number of calls without an answer after which a tool is unfit; one or two may be the machine's fault."""
_FAULTY = 0.1
"""Share of a tool's calls that must be without an answer too: a slow server may be late now and then."""
_ALIKE = 4
"""Limit on equal results of one tool, where its other results are rarer."""
_TWICE_EVERY = 4
"""Each of a tool's first calls is made twice, later every fourth, to find tools that answer equal calls differently."""
DRY_WAVES = 4
"""Number of waves in a row without a new result after which a tool is exhausted."""
CLOCK_TICK = 1.1
"""Seconds after which a result that shows a clock has changed."""
_EDGES, _FEWEST_EDGES = 24, 2
"""Number of calls of a tool that are tried with a value at the edge, and where there is time for few."""
_EDGE_NUMBERS = (0, -1, -7, 10**6)
_FAIR_SHARES = 2
"""Largest multiple of its even share of the results that one tool may give where others are exhausted."""
_LEAST_SHARE = 40
"""Number of results that every tool may give."""
_CONSTANT = 4
"""Calls that worked with one value of a parameter, after which it may be the only one there is."""
_CONSTANT_SHARE = 0.8
"""Least share of that value: another spelling of it may work too."""
_MOST_KINDS = 8
"""Most calls of one tool that are repeated to find a clock."""
_ERRORS_SHARE = 0.1
"""Errors in proportion to other calls, where there is time for few calls."""
_MOST_ERRORS = 40
"""Most errors kept of one tool."""


@dataclass
class ToolProgress:
    """Progress of the exploration of one tool."""

    sampler: Sampler
    random: random.Random
    outcomes: list[Outcome] = field(default_factory=list)
    proposed: int = 0
    texts: Counter[str] = field(default_factory=Counter)
    """Count of each result."""
    dry: int = 0
    found: int = 0
    """Number of new results of the last wave."""
    done: bool = False

    def common(self, text: str) -> float:
        """Return the count of a result that has come at least twice as often as an average one, else 0."""
        fair = len(self.outcomes) / max(1, len(self.texts))
        return self.texts[text] if self.texts[text] >= 2 * fair else 0


@dataclass(frozen=True)
class ProbeResult:
    """The result of a call; not `stable` if the same call, made twice, answered differently."""

    text: str
    stable: bool
    is_error: bool = False


def _fate_by_itself(result: ProbeResult | None, arguments: dict[str, Any]) -> tried.Fate:
    """Return what became of a call."""
    if result is None:
        return "unanswered"
    if result.is_error:
        return "refused"
    if says_nothing(result.text, arguments):
        return "empty"
    if not result.stable:
        return "unsteady"
    return "secret" if holds_secret(result.text) else "worked"


class Probe:
    """Calls the tools of one server and keeps the outcomes, which are void once `unfit` names a tool."""

    def __init__(
        self,
        connection: Link,
        tools: Sequence[Tool],
        server: ToolServer,
        seed: int,
        dropped: set[str],
        *,
        patient: bool = False,
        most_calls: float = math.inf,
    ) -> None:
        """`dropped` tools are not called. The first unfit one ends the single calls, unless they are `patient`: then
        all are found. About `most_calls` are made in search of results, and a few more to see which last."""
        self._connection, self.random = connection, random.Random(seed)
        self.tools = [tool for tool in tools if tool.name not in dropped]
        self.pool = ValuePool()
        self._patient, self._most_calls = patient, most_calls
        self._measured = any(one.measured is not None for one in server.members or (server,))
        self.progress = {
            name: ToolProgress(sampler, random.Random(f"{seed}:{name}"))
            for name, sampler in fitted_samplers(self.tools, self.pool, server).items()
        }
        self.seen: set[str] = set()
        self._called: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._errors: dict[str, list[Outcome]] = {tool.name: [] for tool in self.tools}
        self.unfit: set[str] = set()
        """Tools that are too slow, or answer equal calls differently."""
        self._needs = {tool.name: set(tool.input_schema.get("required") or ()) for tool in self.tools}
        self._monotonous: set[str] = set()
        """Texts that answer nothing, since they come whatever is asked."""
        self.cut_short = False
        """True if there was no time for more calls."""
        self._deadline = call_deadline(server)
        self._limiter = anyio.CapacityLimiter(calls_in_flight(slowest_call(server), _IN_FLIGHT, self._deadline))
        self._fault: ServerFault | None = None
        """The first fault of the calls in flight."""
        self._started = anyio.current_time()

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of the single calls, tool by tool."""
        return [outcome for progress in self.progress.values() for outcome in progress.outcomes]

    def learn_constants(self) -> None:
        """Learn the arguments that nearly all calls that worked had in common: they mean the same for other tools."""
        worked: dict[str, Counter[str]] = defaultdict(Counter)
        for outcome in self.outcomes:
            for name, value in outcome.arguments.items():
                if isinstance(value, str):
                    worked[name][value] += 1
        for name, values in worked.items():
            value, count = values.most_common(1)[0]
            if count >= max(_CONSTANT, _CONSTANT_SHARE * values.total()):
                self.pool.observe_worked(words_of(name), value)

    async def lasting_errors(self, count: int) -> list[Outcome]:
        """Return at most `count` calls that fit their schemas and are refused twice in the same words, tools in turn.

        Beside the errors met so far, calls that worked are tried with one edge value: zero, a negative or a huge
        number, an unknown name.
        """
        count = min(count, int(self._most_calls * _ERRORS_SHARE)) if self.cut_short else count
        if not count:
            return []
        met, self._errors = self._errors, {name: [] for name in self.progress}
        most = max(_FEWEST_EDGES, count // len(self.progress)) if self.cut_short else _EDGES
        edges = [call for name, progress in self.progress.items() for call in self._edges(name, progress, most)]
        for (name, arguments), result in zip(edges, await self.call_all(edges), strict=True):
            if result is not None and result.is_error:
                self._failed(name, arguments, result)
        # Edge values first: arguments that were refused by chance may be wrong in several ways.
        queues = [[*self._errors[name], *met[name]] for name in self.progress]
        in_turn = [error for some in zip_longest(*queues) for error in some if error is not None][:count]
        results = await self.call_all([(error.tool, error.arguments) for error in in_turn])
        return [
            error
            for error, result in zip(in_turn, results, strict=True)
            if result is not None and result.is_error and result.text == error.text
        ]

    def _edges(self, name: str, progress: ToolProgress, most: int) -> Iterator[tuple[str, dict[str, Any]]]:
        known = self.random.sample(progress.outcomes, min(most, len(progress.outcomes)))
        for outcome in known:
            free = [key for key, value in outcome.arguments.items() if type(value) in (int, float, str)]
            if not free:
                continue
            parameter = self.random.choice(free)
            value = outcome.arguments[parameter]
            edge = plausible.word(self.random) if isinstance(value, str) else self.random.choice(_EDGE_NUMBERS)
            arguments = {**outcome.arguments, parameter: edge}
            key = call_key(name, arguments)
            if key not in self.seen and progress.sampler.valid(arguments):
                self.seen.add(key)
                yield name, arguments

    async def compare(self, other: Link) -> None:
        """Repeat the calls that gave outcomes in another process; what is answered otherwise, or not, does not last."""
        for progress in self.progress.values():
            for at, outcome in enumerate(progress.outcomes):
                try:
                    result = await other.call(outcome.tool, outcome.arguments, deadline=self._deadline)
                    lasts = undated(result.text) == undated(outcome.text)
                except ServerFault:
                    lasts = False
                if not lasts:
                    progress.outcomes[at] = replace(outcome, answer=Answer("calls", None), lasts=False)

    # Single calls

    async def single_calls(self, target: int) -> None:
        """Make calls until there are `target` outcomes, with tools in balance, or every tool is exhausted."""
        while True:
            active = [name for name in self.progress if not self.progress[name].done]
            total = sum(len(progress.outcomes) for progress in self.progress.values())
            if not active or total >= target or (self.unfit and not self._patient):
                return
            if self._called.total() >= self._most_calls:
                self.cut_short = True
                return
            # Each tool is asked for its even share of the missing outcomes.
            level = min(self._level(active, target), self._most(target))
            if all(len(self.progress[name].outcomes) >= level for name in active):
                return
            proposals = [
                (name, draw)
                for name in active
                for draw in self._proposals(name, level - len(self.progress[name].outcomes))
            ]
            await self._wave(proposals)

    def _level(self, active: list[str], target: int) -> int:
        """Return the number of results per active tool that reaches the target."""
        finished = sum(len(self.progress[name].outcomes) for name in self.progress if name not in active)
        return -(-(target - finished) // len(active))

    def _most(self, target: int) -> int:
        """Return the limit on one tool's results, so that a tool that accepts anything does not drown the others."""
        useful = sum(bool(progress.outcomes) for progress in self.progress.values())
        return max(_LEAST_SHARE, -(-_FAIR_SHARES * target // max(1, useful)))

    def _proposals(self, name: str, missing: int) -> list[Draw]:
        progress = self.progress[name]
        if missing <= 0:
            return []
        draws: list[Draw] = []
        most = _WAVE if progress.proposed else _PROBES
        if self._measured and progress.outcomes:  # little is left where the last calls found little
            most = min(_WAVE, max(_PROBES, 2 * progress.found))
        for _ in range(3 * _WAVE):
            if len(draws) >= min(most, max(_PROBES, missing)):
                break
            draw = progress.sampler.draw(progress.random)
            if draw is None:
                tried.note_kept_out(name, f"was not called, since {progress.sampler.problem}")
                break
            key = call_key(name, draw.arguments)
            if key not in self.seen:
                self.seen.add(key)
                draws.append(draw)
        progress.proposed += len(draws)
        if not draws:
            self._dry(progress)
        return draws

    def _dry(self, progress: ToolProgress) -> None:
        progress.dry += 1
        progress.done = progress.dry >= DRY_WAVES

    async def _wave(self, proposals: list[tuple[str, Draw]]) -> None:
        results = await self.call_all([(name, draw.arguments) for name, draw in proposals])
        found: Counter[str] = Counter()
        for (name, draw), result in zip(proposals, results, strict=True):
            fate = self._fate(result, draw.arguments)
            useful = fate in ("worked", "unsteady", "secret")
            tried.note(name, fate, draw.arguments, result.text if result is not None else "")
            self.pool.credit(draw.choices, useful)
            if self._measured and result is not None:
                self.pool.observe_attempt(name, draw.arguments, not result.is_error)
            if result is not None and result.is_error:
                self._failed(name, draw.arguments, result)
            if result is None or not useful:
                if result is not None and not result.is_error and reports_failure(result.text, draw.arguments):
                    self.pool.observe_error(name, draw.arguments, result.text)
                continue
            if not result.stable:
                self.unfit.add(name)
            progress = self.progress[name]
            self.pool.observe(draw.arguments, result.text, tool=name)
            answer = lasting_answer(result.text, draw.arguments)
            if not holds_secret(result.text) and progress.common(undated(result.text)) < _ALIKE:
                found[name] += 1
                progress.texts[undated(result.text)] += 1
                tally.count(results=1)
                progress.outcomes.append(Outcome(name, draw.arguments, result.text, answer))
        for name in dict.fromkeys(name for name, _ in proposals):
            progress = self.progress[name]
            progress.found = found[name]
            if found[name]:
                progress.dry = 0
            else:
                self._dry(progress)
            progress.done = progress.done or name in self.unfit
        self._forget_common_texts()

    def _fate(self, result: ProbeResult | None, arguments: dict[str, Any]) -> tried.Fate:
        """Return what became of a call, as far as is known by now."""
        fate = _fate_by_itself(result, arguments)
        same = fate == "worked" and result is not None and self.is_monotonous(result.text)
        return "same" if same else fate

    def is_monotonous(self, text: str) -> bool:
        """Return whether a result comes whatever is asked, so that it answers nothing."""
        return undated(text) in self._monotonous

    def _forget_common_texts(self) -> None:
        """Drop the outcomes whose text comes whatever is asked."""
        said = {name: progress.texts for name, progress in self.progress.items() if progress.texts}
        asked = {name: self._ways_of_asking(name) for name in said}
        self._monotonous |= {text for text in common_texts(said, asked) if not holds_no_text(text)}
        for name, progress in self.progress.items() if self._monotonous else ():
            for outcome in progress.outcomes:
                if self.is_monotonous(outcome.text):
                    tried.note_same(name, outcome.arguments, outcome.text)
            progress.outcomes = [one for one in progress.outcomes if not self.is_monotonous(one.text)]

    def _ways_of_asking(self, name: str) -> int:
        """Return how many different values a tool was given for what it needs; 0 for a tool that needs nothing."""
        needed = self._needs[name]
        calls = (outcome.arguments for outcome in self.progress[name].outcomes)
        return len({call_key(name, {k: v for k, v in call.items() if k in needed}) for call in calls}) if needed else 0

    def _failed(self, name: str, arguments: dict[str, Any], result: ProbeResult) -> None:
        self.pool.observe_error(name, arguments, result.text)
        kept = self._errors[name]
        if result.stable and not holds_secret(result.text) and not is_dated(result.text) and len(kept) < _MOST_ERRORS:
            self._errors[name].append(Outcome(name, arguments, result.text, Answer("none", None)))

    async def call_all(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[ProbeResult | None]:
        """Make calls, and those again that gave something, to see if their results last. None: no answer.

        Calls are sent in one order however long each takes, so that a recorded exploration can be replayed. Raises
        ServerFault where the server is lost.
        """
        again: list[int] = []
        for index, (name, _) in enumerate(calls):
            if self._called[name] < _WAVE or self._called[name] % _TWICE_EVERY == 0:
                again.append(index)
            self._called[name] += 1
        results = await self._call_each(calls)
        # errors that are to last are called again at the end
        again = [index for index in again if (first := results[index]) is not None and not first.is_error]
        for index, second in zip(again, await self._call_each([calls[index] for index in again]), strict=True):
            first = results[index]
            if first is None or second is None:
                results[index] = None
            else:
                same = not second.is_error and undated(second.text) == undated(first.text)
                results[index] = ProbeResult(first.text, same)
        return results

    async def _call_each(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[ProbeResult | None]:
        results: list[ProbeResult | None] = [None] * len(calls)

        async def one(index: int, name: str, arguments: dict[str, Any]) -> None:
            async with self._limiter:
                results[index] = await self._call(name, arguments)

        async with anyio.create_task_group() as tasks:
            for index, (name, arguments) in enumerate(calls):
                tasks.start_soon(one, index, name, arguments)
        if (fault := self._fault) is not None:
            self._fault = None
            if not await still_answers(self._connection):
                raise fault
        return results

    async def _call(self, name: str, arguments: dict[str, Any]) -> ProbeResult | None:
        """Call a tool and return its result, or None where it did not answer."""
        try:
            tally.count(calls=1)
            with suspected(name, arguments):
                result = await self._connection.call(name, arguments, deadline=self._deadline)
        except ServerFault as fault:
            self._fault = self._fault or fault
            self._faults[name] += 1
            if self._faults[name] >= max(_FAULTS, _FAULTY * self._called[name]):
                self.unfit.add(name)
                tried.note_late(name)
            return None
        return ProbeResult(untimed(result.text), True, result.is_error)

    async def find_clocks(self) -> None:
        """Repeat calls of each tool after the clock has moved on; a tool whose answer changed is unfit.

        One call is repeated for each choice of the arguments that a schema lists: one action of a tool may be a clock.
        """
        probes = [(name, outcome) for name, progress in self.progress.items() for outcome in _kinds(progress)]
        await anyio.sleep(max(0.0, self._started + CLOCK_TICK - anyio.current_time()))
        results = await self.call_all([(name, outcome.arguments) for name, outcome in probes])
        for (name, outcome), result in zip(probes, results, strict=True):
            if result is None or not result.stable or undated(result.text) != undated(outcome.text):
                tried.note(name, "unsteady" if result is not None else "unanswered", outcome.arguments, outcome.text)
                self.unfit.add(name)

    def spread(self, count: int) -> list[Outcome]:
        """Return at most `count` outcomes, tools in turn, in random order for each tool."""
        shuffled = [self.random.sample(p.outcomes, len(p.outcomes)) for p in self.progress.values() if p.outcomes]
        rounds = [[queue[i] for queue in shuffled if i < len(queue)] for i in range(max(map(len, shuffled), default=0))]
        return [outcome for one_round in rounds for outcome in one_round][:count]


def _kinds(progress: ToolProgress) -> list[Outcome]:
    """Return one outcome for each choice of the arguments that the tool's schema lists, a few at most."""
    found: dict[str, Outcome] = {}
    for outcome in progress.outcomes:
        chosen = {name: value for name, value in outcome.arguments.items() if progress.sampler.lists(name)}
        found.setdefault(call_key("", chosen), outcome)
    return list(found.values())[:_MOST_KINDS]
