"""Scenarios from a live server, without any language model.

Arguments are drawn from the tools' schemas, the server is called, and what succeeds, and gives the same again, becomes
a request whose answer is the recorded result. Proposals are drawn in waves and results are read in the order of their
proposals, so that the same seed gives the same list however many calls are in flight.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcp_rl.errors import ScenarioError, ServerFault
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import McpScenario, ServerParams, ToolCall
from mcp_rl.scenarios.answer import (
    Answer,
    call_key,
    holds_secret,
    is_dated,
    kept,
    make_verifier,
    read_answer,
    says_nothing,
)
from mcp_rl.scenarios.chain import Chains, Outcome, both, lookups, readable
from mcp_rl.scenarios.pool import Pool
from mcp_rl.scenarios.sample import Draw, Sampler
from mcp_rl.scenarios.wording import Wording, words_of
from mcp_rl.toolserver.connection import Connection, Tool
from mcp_rl.toolserver.schema import ToolSchemas

TWO_STEP_SHARE = 0.4
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
_DRY_WAVES = 4
"""Waves without a new result after which a tool is taken to have no more to give."""
_CLOCK_TICK = 1.1
"""Seconds after which results that show a clock have changed."""
_WORDINGS = 4
"""Requests at most for one call, where a server has fewer different calls than scenarios are wanted."""


async def explore(
    connection: Connection,
    schemas: ToolSchemas,
    *,
    server: ToolServer,
    params: ServerParams,
    count: int,
    seed: int,
) -> list[McpScenario]:
    """Up to `count` distinct scenarios, each with a reference solution that was executed just now.

    Fewer are returned where the server has no more to offer. Raises ScenarioError where no tool may be called or no
    call gives a lasting result, ServerFault where the server is lost.
    """
    dropped: set[str] = set()
    while True:
        exploration = _Exploration(connection, schemas, server, params, seed, dropped)
        scenarios = await exploration.run(count)
        if not exploration.unfit:
            return scenarios
        if exploration.fault and not connection.alive:
            raise exploration.fault
        # Whether a clock is caught out early or late is chance. Starting again without that tool is not.
        dropped |= exploration.unfit


def explorable(tools: Sequence[Tool], isolation: str) -> list[Tool]:
    """Tools that may be called freely, by their annotations and, where there are none, by their names.

    On a shared server nothing may be changed; where every rollout has a state of its own, only tools that are said to
    destroy are left out. (MCP specification 2025-06-18, ToolAnnotations; these are hints.)
    """
    return [tool for tool in tools if _harmless(tool, isolation)]


_CHANGING_VERBS = re.compile(
    "append|clear|close|commit|create|delete|destroy|drop|edit|execute|insert|kill|merge|move|overwrite|patch|post|"
    "publish|purge|push|put|remove|rename|reset|revoke|save|send|set|shutdown|stop|toggle|truncate|unlink|update|"
    "upload|write"
)


def _harmless(tool: Tool, isolation: str) -> bool:
    hints = tool.annotations or {}
    if hints.get("readOnlyHint") is True:
        return True
    if hints.get("destructiveHint") is True:
        return False
    if isolation != "shared":
        return True
    if hints.get("readOnlyHint") is False:
        return False
    return _CHANGING_VERBS.fullmatch(words_of(tool.name).split(" ")[0]) is None


@dataclass
class _Progress:
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


class _Exploration:
    def __init__(
        self,
        connection: Connection,
        schemas: ToolSchemas,
        server: ToolServer,
        params: ServerParams,
        seed: int,
        dropped: set[str],
    ) -> None:
        self._connection, self._schemas = connection, schemas
        self._server, self._params, self._seed = server, params, seed
        self._random = random.Random(seed)
        self._dropped = dropped
        free = explorable(connection.tools, server.isolation)
        self._tools = [tool for tool in free if tool.name not in dropped]
        if not free:
            raise ScenarioError(
                f"The server {server.name!r} offers no tool that may be called freely on a shared server "
                "(all are annotated or named as changing something); write scenarios for it yourself."
            )
        self._pool = Pool()
        own = server.argument_samplers
        self._progress = {
            tool.name: _Progress(
                Sampler(tool.name, tool.input_schema, self._pool, own.get(tool.name)),
                random.Random(f"{seed}:{tool.name}"),
            )
            for tool in self._tools
        }
        self._seen: set[str] = set()
        self._called: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self.unfit: set[str] = set()
        """Tools that turned out to be slow, or to answer the same call in different ways."""
        self._limiter = anyio.CapacityLimiter(_IN_FLIGHT)
        self.fault: ServerFault | None = None
        self._started = anyio.current_time()
        self._wording = Wording(connection.tools, schemas.to_openai, server.phrases)

    async def run(self, count: int) -> list[McpScenario]:
        two = int(count * TWO_STEP_SHARE)
        await self._one_step(count)
        if self.unfit:
            return []
        links = await self._value_chains(two)
        await self._find_clocks()
        if self.unfit:
            return []
        outcomes = [o for progress in self._progress.values() for o in progress.outcomes]
        if not outcomes:
            raise ScenarioError(self._why_nothing())
        return self._compose(count, two, outcomes, links)

    def _why_nothing(self) -> str:
        problem = f"Nothing can be asked of the server {self._server.name!r}: "
        if self._dropped:
            problem += f"{', '.join(sorted(self._dropped))} fail, take too long or answer the same call differently; "
        return problem + "no other call that was tried gave a result. Write scenarios for it yourself."

    # Calling

    async def _one_step(self, target: int) -> None:
        """Calls until there are `target` outcomes, the tools in balance, or none has more to give."""
        while True:
            active = [name for name in self._progress if not self._progress[name].done]
            total = sum(len(progress.outcomes) for progress in self._progress.values())
            if not active or total >= target or self.unfit:
                return
            # A tool is asked for its even share of what is missing; tools with few results so far come first.
            level = self._level(active, target)
            proposals = [
                (name, draw)
                for name in active
                for draw in self._proposals(name, level - len(self._progress[name].outcomes))
            ]
            await self._wave(proposals)

    def _level(self, active: list[str], target: int) -> int:
        """Results per active tool with which the target is reached."""
        finished = sum(len(self._progress[name].outcomes) for name in self._progress if name not in active)
        return -(-(target - finished) // len(active))

    def _proposals(self, name: str, missing: int) -> list[Draw]:
        progress = self._progress[name]
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

    def _dry(self, progress: _Progress) -> None:
        progress.dry += 1
        progress.done = progress.dry >= _DRY_WAVES

    async def _wave(self, proposals: list[tuple[str, Draw]]) -> None:
        results = await self._call_all([(name, draw.arguments) for name, draw in proposals])
        found: Counter[str] = Counter()
        for (name, draw), result in zip(proposals, results, strict=True):
            useful = result is not None and not says_nothing(result.text)
            self._pool.credit(draw.choices, useful)
            if result is None or not useful:
                continue
            if not result.stable:
                self.unfit.add(name)
            progress = self._progress[name]
            self._pool.observe(draw.arguments, result.text)
            answer = self._answer(result.text, draw.arguments)
            if not holds_secret(result.text) and progress.common(result.text) < _ALIKE:
                found[name] += 1
                progress.texts[result.text] += 1
                progress.outcomes.append(Outcome(name, draw.arguments, result.text, answer))
        for name in dict.fromkeys(name for name, _ in proposals):
            progress = self._progress[name]
            if found[name]:
                progress.dry = 0
            else:
                self._dry(progress)

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
        """What the tool said, and whether it says so `twice`; None where it reported an error or failed."""
        try:
            first = await self._connection.call(name, arguments, deadline=_DEADLINE)
            if first.is_error:
                return None
            if not twice:
                return _Result(first.text, True)
            second = await self._connection.call(name, arguments, deadline=_DEADLINE)
        except ServerFault as fault:
            self.fault = fault
            self._faults[name] += 1
            if self._faults[name] >= _FAULTS:
                self.unfit.add(name)
            return None
        return _Result(first.text, not second.is_error and second.text == first.text)

    async def _value_chains(self, count: int) -> list[tuple[Outcome, Outcome, dict[str, Any]]]:
        """(first, second, second's arguments as spoken): calls whose argument is the answer of another call."""
        chains = Chains(
            {name: progress.sampler for name, progress in self._progress.items() if progress.outcomes},
            {tool.name: tool.input_schema for tool in self._tools if self._progress[tool.name].outcomes},
            self._pool,
        )
        found: list[tuple[Outcome, Outcome, dict[str, Any]]] = []
        for _ in range(_DRY_WAVES):
            firsts = self._spread(2 * (count - len(found)))
            links = [
                link
                for link in chains.value_links(firsts, self._random)
                if call_key(link.tool, link.arguments) not in self._seen
            ]
            self._seen.update(call_key(link.tool, link.arguments) for link in links)
            results = await self._call_all([(link.tool, link.arguments) for link in links])
            for link, result in zip(links, results, strict=True):
                if result is None or not result.stable or holds_secret(result.text):
                    continue
                answer = self._answer(result.text, link.arguments)
                if answer.value is None or readable(answer.value):
                    second = Outcome(link.tool, link.arguments, result.text, answer)
                    found.append((link.first, second, link.spoken))
            if len(found) >= count:
                break
        return found[:count]

    def _spread(self, count: int) -> list[Outcome]:
        """Outcomes of all tools in turn, a random choice of each, at most `count`."""
        shuffled = [self._random.sample(p.outcomes, len(p.outcomes)) for p in self._progress.values() if p.outcomes]
        rounds = [[queue[i] for queue in shuffled if i < len(queue)] for i in range(max(map(len, shuffled), default=0))]
        return [outcome for one_round in rounds for outcome in one_round][:count]

    async def _find_clocks(self) -> None:
        """Ask each tool once more after the clock has moved on; what then answers otherwise is unfit."""
        probes = [(name, progress.outcomes[0]) for name, progress in self._progress.items() if progress.outcomes]
        await anyio.sleep(max(0.0, self._started + _CLOCK_TICK - anyio.current_time()))
        results = await self._call_all([(name, outcome.arguments) for name, outcome in probes])
        for (name, outcome), result in zip(probes, results, strict=True):
            if result is None or not result.stable or result.text != outcome.text:
                self.unfit.add(name)

    def _answer(self, text: str, arguments: dict[str, Any]) -> Answer:
        return Answer("calls", None) if is_dated(text) else read_answer(text, arguments)

    # Composing

    def _compose(
        self,
        count: int,
        two: int,
        outcomes: list[Outcome],
        links: list[tuple[Outcome, Outcome, dict[str, Any]]],
    ) -> list[McpScenario]:
        pick = self._random
        scenarios: dict[str, McpScenario] = {}

        def add(text: str, steps: Sequence[Outcome], answer: Answer, ordered: bool = True) -> None:
            scenario = self._scenario(text, steps, answer, ordered)
            scenarios.setdefault(scenario.task_description.casefold(), scenario)

        def add_pairs(pairs: Iterable[tuple[Outcome, Outcome]], most: int, ordered: bool) -> None:
            for first, second in pairs:
                if len(scenarios) >= most:
                    break
                text = self._wording.two_steps((first.tool, first.arguments), (second.tool, second.arguments), pick)
                add(text, (first, second), Answer("calls", None), ordered)

        found = lookups(outcomes, pick)
        add_pairs(found, two // 3 if links else two, ordered=True)
        for first, second, spoken in links[: two - len(scenarios)]:
            text = self._wording.two_steps((first.tool, first.arguments), (second.tool, spoken), pick)
            add(text, (first, second), second.answer)
        add_pairs(found, two, ordered=True)
        add_pairs(both(outcomes, pick), two, ordered=False)
        # A call that starts a chain is no task of its own, where there are enough others: the fewer scenarios share a
        # call, the more evenly they can be split.
        starts = {call_key(c.tool, dict(c.arguments)) for s in scenarios.values() for c in s.reference}
        singles = sorted(self._spread(len(outcomes)), key=lambda outcome: outcome.key in starts)
        for wording in range(_WORDINGS):
            for outcome in singles:
                if len(scenarios) >= count:
                    break
                if not wording or outcome.arguments or len(outcomes) < count:
                    add(self._wording.one_step(outcome.tool, outcome.arguments, pick), (outcome,), outcome.answer)
        listed = list(scenarios.values())[:count]
        pick.shuffle(listed)
        return listed

    def _scenario(self, text: str, steps: Sequence[Outcome], answer: Answer, ordered: bool) -> McpScenario:
        calls = tuple(ToolCall(tool=step.tool, arguments=step.arguments) for step in steps)
        return McpScenario(
            task_description=text,
            server_params=self._params,
            server=self._server.name,
            verifier=make_verifier(answer, calls, self._defaults(), ordered=ordered),
            reference=calls,
            reference_answer=kept(steps[-1].text),
            seed=self._seed,
            tags=(*dict.fromkeys(call.tool for call in calls), "one-step" if len(calls) == 1 else "two-step"),
            schema_hash=self._schemas.hash,
        )

    def _defaults(self) -> dict[str, dict[str, Any]]:
        return {
            tool.name: {
                name: inner["default"]
                for name, inner in (tool.input_schema.get("properties") or {}).items()
                if isinstance(inner, dict) and "default" in inner
            }
            for tool in self._tools
        }
