"""Single calls to a live server: arguments that work, learned from what worked and from what errors say.

Proposals are drawn in waves and results are read in the order of their proposals, so that the same seed gives the same
outcomes however many calls are in flight.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenarios import plausible
from mcp_rl.scenarios.answer import Answer, call_key, holds_secret, is_dated, read_answer, says_nothing, undated
from mcp_rl.scenarios.chain import Chain, Chains, Link, Outcome, readable
from mcp_rl.scenarios.pool import Pool
from mcp_rl.scenarios.sample import Draw, Sampler
from mcp_rl.toolserver.connection import Tool
from mcp_rl.toolserver.link import Link as ServerLink

_IN_FLIGHT = 16
_WAVE = 16
"""Proposals for one tool in one wave."""
_PROBES = 4
"""Proposals for one tool in the first wave, before anything is known about it."""
_DEADLINE = 4.0
"""Seconds: a tool that takes longer is no use to a learner that calls it thousands of times."""
_FAULTS = 3
"""Calls without an answer after which a tool is given up; one or two may be the machine's fault."""
_ALIKE = 4
"""Calls of one tool that may have the same result, where its other results are rarer."""
_TWICE_EVERY = 4
"""Each of a tool's first calls is made twice, later every fourth: one that answers differently gives the tool away."""
DRY_WAVES = 4
"""Waves without a new result after which a tool is taken to have no more to give."""
CLOCK_TICK = 1.1
"""Seconds after which results that show a clock have changed."""
_EDGES = 24
"""Calls of a tool that are tried with a value at the edge."""
_EDGE_NUMBERS = (0, -1, -7, 10**6)
_FAIR_SHARES = 2
"""How much more than its even share of the results one tool may give where others have no more."""
_LEAST_SHARE = 40
"""Results that every tool may give."""
_MOST_ERRORS = 40
"""Errors kept of one tool."""


@dataclass
class Progress:
    """What is known about one tool."""

    sampler: Sampler
    random: random.Random
    outcomes: list[Outcome] = field(default_factory=list)
    proposed: int = 0
    texts: Counter[str] = field(default_factory=Counter)
    """How often each result has come."""
    dry: int = 0
    done: bool = False

    def common(self, text: str) -> float:
        """How often a result has come, beyond twice its fair share of this tool's results."""
        fair = len(self.outcomes) / max(1, len(self.texts))
        return self.texts[text] if self.texts[text] >= 2 * fair else 0


@dataclass(frozen=True)
class _Result:
    text: str
    stable: bool
    is_error: bool = False


class Probe:
    """Calls the tools of one server, alone and in chains, and keeps what they gave."""

    def __init__(
        self, connection: ServerLink, tools: Sequence[Tool], server: ToolServer, seed: int, dropped: set[str]
    ) -> None:
        self._connection, self._random = connection, random.Random(seed)
        self.tools = [tool for tool in tools if tool.name not in dropped]
        self.pool = Pool()
        self.progress = {
            tool.name: Progress(
                Sampler(tool.name, tool.input_schema, self.pool, server.argument_samplers.get(tool.name)),
                random.Random(f"{seed}:{tool.name}"),
            )
            for tool in self.tools
        }
        self._seen: set[str] = set()
        self._called: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._errors: dict[str, list[Outcome]] = {tool.name: [] for tool in self.tools}
        self.unfit: set[str] = set()
        """Tools that turned out to be slow, or to answer the same call in different ways."""
        self._limiter = anyio.CapacityLimiter(_IN_FLIGHT)
        self.fault: ServerFault | None = None
        self._started = anyio.current_time()

    async def run(self, count: int, lengths: Counter[int]) -> list[Chain]:
        """Single calls until there are `count` outcomes or no more; then chains, by the number of their steps.

        Whatever it found is worth nothing where `unfit` names a tool afterwards.
        """
        await self._single_calls(count)
        chains = [] if self.unfit else await self._grow_chains(lengths)
        if not self.unfit:
            await self._find_clocks()
        return chains

    @property
    def outcomes(self) -> list[Outcome]:
        """What the single calls gave, tool by tool."""
        return [outcome for progress in self.progress.values() for outcome in progress.outcomes]

    async def lasting_errors(self, count: int) -> list[Outcome]:
        """At most `count` calls that fit their schemas and are refused, again and in the same words; tools in turn.

        Beside those that were met on the way, calls that worked are tried with one value at the edge of what makes
        sense: zero, a negative or a huge number, a name that nobody knows.
        """
        if not count:
            return []
        met, self._errors = self._errors, {name: [] for name in self.progress}
        edges = [call for name, progress in self.progress.items() for call in self._edges(name, progress)]
        for (name, arguments), result in zip(edges, await self._call_all(edges), strict=True):
            if result is not None and result.is_error:
                self._failed(name, arguments, result)
        # Those at the edge first: what was met by chance may be wrong in several ways.
        queues = [[*self._errors[name], *met[name]] for name in self.progress]
        in_turn = [error for some in zip_longest(*queues) for error in some if error is not None][:count]
        results = await self._call_all([(error.tool, error.arguments) for error in in_turn])
        return [
            error
            for error, result in zip(in_turn, results, strict=True)
            if result is not None and result.is_error and result.text == error.text
        ]

    def _edges(self, name: str, progress: Progress) -> Iterator[tuple[str, dict[str, Any]]]:
        known = self._random.sample(progress.outcomes, min(_EDGES, len(progress.outcomes)))
        for outcome in known:
            free = [key for key, value in outcome.arguments.items() if type(value) in (int, float, str)]
            if not free:
                continue
            parameter = self._random.choice(free)
            value = outcome.arguments[parameter]
            edge = plausible.word(self._random) if isinstance(value, str) else self._random.choice(_EDGE_NUMBERS)
            arguments = {**outcome.arguments, parameter: edge}
            key = call_key(name, arguments)
            if key not in self._seen and progress.sampler.valid(arguments):
                self._seen.add(key)
                yield name, arguments

    # Single calls

    async def _single_calls(self, target: int) -> None:
        """Calls until there are `target` outcomes, the tools in balance, or none has more to give."""
        while True:
            active = [name for name in self.progress if not self.progress[name].done]
            total = sum(len(progress.outcomes) for progress in self.progress.values())
            if not active or total >= target or self.unfit:
                return
            # A tool is asked for its even share of what is missing; tools with few results so far come first.
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
        """Results per active tool with which the target is reached."""
        finished = sum(len(self.progress[name].outcomes) for name in self.progress if name not in active)
        return -(-(target - finished) // len(active))

    def _most(self, target: int) -> int:
        """Results of one tool at most, so that a tool which takes anything does not drown the others."""
        useful = sum(bool(progress.outcomes) for progress in self.progress.values())
        return max(_LEAST_SHARE, -(-_FAIR_SHARES * target // max(1, useful)))

    def _proposals(self, name: str, missing: int) -> list[Draw]:
        progress = self.progress[name]
        if missing <= 0:
            return []
        draws: list[Draw] = []
        for _ in range(3 * _WAVE):
            if len(draws) >= min(_WAVE if progress.proposed else _PROBES, max(_PROBES, missing)):
                break
            draw = progress.sampler.draw(progress.random)
            if draw is None:
                break
            key = call_key(name, draw.arguments)
            if key not in self._seen:
                self._seen.add(key)
                draws.append(draw)
        progress.proposed += len(draws)
        if not draws:
            self._dry(progress)
        return draws

    def _dry(self, progress: Progress) -> None:
        progress.dry += 1
        progress.done = progress.dry >= DRY_WAVES

    async def _wave(self, proposals: list[tuple[str, Draw]]) -> None:
        results = await self._call_all([(name, draw.arguments) for name, draw in proposals])
        found: Counter[str] = Counter()
        for (name, draw), result in zip(proposals, results, strict=True):
            useful = result is not None and not result.is_error and not says_nothing(result.text)
            self.pool.credit(draw.choices, useful)
            if result is not None and result.is_error:
                self._failed(name, draw.arguments, result)
            if result is None or not useful:
                continue
            if not result.stable:
                self.unfit.add(name)
            progress = self.progress[name]
            self.pool.observe(draw.arguments, result.text)
            answer = self._answer(result.text, draw.arguments)
            if not holds_secret(result.text) and progress.common(undated(result.text)) < _ALIKE:
                found[name] += 1
                progress.texts[undated(result.text)] += 1
                progress.outcomes.append(Outcome(name, draw.arguments, result.text, answer))
        for name in dict.fromkeys(name for name, _ in proposals):
            progress = self.progress[name]
            if found[name]:
                progress.dry = 0
            else:
                self._dry(progress)

    def _failed(self, name: str, arguments: dict[str, Any], result: _Result) -> None:
        self.pool.observe_error(name, arguments, result.text)
        kept = self._errors[name]
        if result.stable and not holds_secret(result.text) and not is_dated(result.text) and len(kept) < _MOST_ERRORS:
            self._errors[name].append(Outcome(name, arguments, result.text, Answer("none", None)))

    async def _call_all(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[_Result | None]:
        results: list[_Result | None] = [None] * len(calls)

        async def one(index: int, name: str, arguments: dict[str, Any], twice: bool) -> None:
            async with self._limiter:
                results[index] = await self._call(name, arguments, twice)

        async with anyio.create_task_group() as tasks:
            for index, (name, arguments) in enumerate(calls):
                called = self._called[name]
                self._called[name] += 1
                tasks.start_soon(one, index, name, arguments, called < _WAVE or called % _TWICE_EVERY == 0)
        return results

    async def _call(self, name: str, arguments: dict[str, Any], twice: bool) -> _Result | None:
        """What the tool said, and whether it says so `twice`; None where it did not answer."""
        try:
            first = await self._connection.call(name, arguments, deadline=_DEADLINE)
            if not twice:
                return _Result(first.text, True, first.is_error)
            second = await self._connection.call(name, arguments, deadline=_DEADLINE)
        except ServerFault as fault:
            self.fault = fault
            self._faults[name] += 1
            if self._faults[name] >= _FAULTS:
                self.unfit.add(name)
            return None
        same = second.is_error == first.is_error and undated(second.text) == undated(first.text)
        return _Result(first.text, same, first.is_error)

    async def _find_clocks(self) -> None:
        """Ask each tool once more after the clock has moved on; what then answers otherwise is unfit."""
        probes = [(name, progress.outcomes[0]) for name, progress in self.progress.items() if progress.outcomes]
        await anyio.sleep(max(0.0, self._started + CLOCK_TICK - anyio.current_time()))
        results = await self._call_all([(name, outcome.arguments) for name, outcome in probes])
        for (name, outcome), result in zip(probes, results, strict=True):
            if result is None or not result.stable or undated(result.text) != undated(outcome.text):
                self.unfit.add(name)

    # Chains

    async def _grow_chains(self, wanted: Counter[int]) -> list[Chain]:
        """Value chains of two steps and more, as many of each length as are wanted, or as can be found."""
        useful = {name: progress for name, progress in self.progress.items() if progress.outcomes}
        links = Chains(
            {name: progress.sampler for name, progress in useful.items()},
            {tool.name: tool.input_schema for tool in self.tools if tool.name in useful},
            self.pool,
        )
        found: list[Chain] = []
        for _ in range(DRY_WAVES):
            missing = wanted - Counter(len(chain) for chain in found)
            if not missing:
                break
            goals = [steps for steps in sorted(missing, reverse=True) for _ in range(2 * missing[steps])]
            begun = [(Chain.of(first), goal) for first, goal in zip(self.spread(len(goals)), goals, strict=False)]
            while begun:
                begun = await self._extend(links, begun)
                found += [chain for chain, goal in begun if len(chain) == goal]
                begun = [(chain, goal) for chain, goal in begun if len(chain) < goal]
        return found

    async def _extend(self, links: Chains, begun: list[tuple[Chain, int]]) -> list[tuple[Chain, int]]:
        """Those that could be made a step longer."""
        goals = {id(chain): goal for chain, goal in begun}
        proposed = [
            link
            for link in links.links([chain for chain, _ in begun], self._random)
            if call_key(link.tool, link.arguments) not in self._seen
        ]
        self._seen.update(call_key(link.tool, link.arguments) for link in proposed)
        results = await self._call_all([(link.tool, link.arguments) for link in proposed])
        longer: list[tuple[Chain, int]] = []
        for link, result in zip(proposed, results, strict=True):
            if (outcome := self._outcome(link, result)) is not None:
                longer.append((link.before.then(outcome, link.spoken), goals[id(link.before)]))
        return longer

    def _outcome(self, link: Link, result: _Result | None) -> Outcome | None:
        if result is None or result.is_error or not result.stable or holds_secret(result.text):
            return None
        answer = self._answer(result.text, link.arguments)
        if says_nothing(result.text) or (answer.value is not None and not readable(answer.value)):
            return None
        return Outcome(link.tool, link.arguments, result.text, answer)

    def spread(self, count: int) -> list[Outcome]:
        """Outcomes of all tools in turn, a random choice of each, at most `count`."""
        shuffled = [self._random.sample(p.outcomes, len(p.outcomes)) for p in self.progress.values() if p.outcomes]
        rounds = [[queue[i] for queue in shuffled if i < len(queue)] for i in range(max(map(len, shuffled), default=0))]
        return [outcome for one_round in rounds for outcome in one_round][:count]

    def _answer(self, text: str, arguments: dict[str, Any]) -> Answer:
        return Answer("calls", None) if is_dated(text) else read_answer(text, arguments)
