"""Scenarios from executed calls: the request in words, the verifier, and no task twice."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from mcp_rl.config import MOST_STEPS
from mcp_rl.explore import tally
from mcp_rl.explore.actions import Actions
from mcp_rl.explore.answer import SHORT_TEXT, Answer, call_key, read_answer
from mcp_rl.rewards.dates import is_dated
from mcp_rl.scenario import McpScenario, ServerParams, ToolCall, Verifier
from mcp_rl.scenarios.chain import Chain, lookups, together
from mcp_rl.scenarios.duplicates import near_key
from mcp_rl.scenarios.reference import kept, make_verifier, parameter_defaults
from mcp_rl.scenarios.wording import Wording

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_rl.explore.outcome import Outcome
    from mcp_rl.explore.parts import Part, Path
    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool
    from mcp_rl.toolserver.tools.schema import ToolSchemas

_WORDINGS = 4
"""Most requests for one call, where a server has fewer different calls than scenarios are wanted."""
_POOLS, _LEAST_POOLED = 8, 6
"""Pools of calls on a server that has few, and the fewest calls in one."""
_PART_SHARE = 0.5
"""Share of results with several parts of which a single part is asked for."""
_GUESSED_SHARE, _GUESSED_TIMES = 0.2, 3
"""A part of a result is not asked for where more than this share of the tool's results have the same there, and more
than so many: that answer could be guessed."""
STEPS = ("no-step", "one-step", "two-step", "three-step", "four-step", "five-step")


class Composer:
    """Collects scenarios of one server, and refuses those that repeat an earlier task."""

    def __init__(
        self,
        tools: Sequence[Tool],
        schemas: ToolSchemas,
        *,
        server: ToolServer,
        params: ServerParams,
        recipe: Recipe,
        actions: Actions | None = None,
    ) -> None:
        """`tools` and `schemas` are the server's own; calls of `actions` become calls of these."""
        self._server, self._params, self._recipe = server, params, recipe
        self._schema_hash = schemas.hash
        self.random = random.Random(recipe.seed)
        self.wording = Wording(tools, schemas.to_openai, server.phrases)
        self._actions = actions or Actions()
        self._scenarios: dict[str, McpScenario] = {}
        self._requests: set[str] = set()
        self._defaults = parameter_defaults(tools)
        self._pool_of: dict[str, int] = {}
        """The pool of each call. A task has calls of one pool, so that tasks with calls of others can be held out."""
        self._told: dict[tuple[str, Path], Counter[str | int | float]] = defaultdict(Counter)
        """The values at each place of each tool's results."""

    def __len__(self) -> int:
        return len(self._scenarios)

    @property
    def scenarios(self) -> list[McpScenario]:
        return list(self._scenarios.values())

    def add(
        self,
        text: str,
        steps: Sequence[Outcome],
        verifier: Verifier,
        *,
        answer: str | None = None,
        tags: Sequence[str] = (),
    ) -> bool:
        """Add a scenario and return True, unless one has the same task. `answer` becomes the reference answer."""
        calls = tuple(self._call(step) for step in steps)
        scenario = McpScenario(
            task_description=text,
            server_params=self._params,
            server=self._server.name,
            verifier=verifier,
            reference=calls,
            reference_answer=_recorded(steps[-1].text) if steps and answer is None else answer,
            seed=self._recipe.seed,
            tags=tuple(dict.fromkeys([*(call.tool for call in calls), *tags, STEPS[len(calls)]])),
            schema_hash=self._schema_hash,
        )
        key, request = near_key(scenario), text.casefold()
        if key in self._scenarios or request in self._requests:
            return False
        self._scenarios[key] = scenario
        tally.count(scenarios=1)
        self._requests.add(request)
        return True

    def add_chain(self, chain: Chain, answer: Answer, *, ordered: bool = True, parts: bool = True) -> bool:
        """Add a task of the chain's calls. An `answer` of kind "calls" verifies the calls, other kinds the last answer.

        With `parts`, where the last call depends on all others, a part of its result may be asked for instead.
        """
        text = self.said(chain)
        asked = self._part(chain.outcomes[-1]) if answer.kind == "calls" and parts else None
        if asked is not None:
            answer = read_answer(str(asked.value), {})
            text = f"{text.rstrip('.')}{'' if text.endswith('?') else '.'} Tell me {asked.phrase} in the result."
        return self.add(text, chain.outcomes, self.verifier(answer, chain.outcomes, ordered=ordered))

    def said(self, chain: Chain, *, questions: bool = True) -> str:
        """Return a request for the chain's calls."""
        pairs = zip(chain.outcomes, chain.spoken, strict=True)
        steps = [self._actions.served(outcome.tool, spoken) for outcome, spoken in pairs]
        return self.wording.steps(steps, self.random, questions=questions)

    def refused(self, outcome: Outcome) -> tuple[str, ToolCall]:
        """Return a request for a call that the server refused, and the call."""
        call = self._call(outcome)
        return self.wording.one_step(call.tool, call.arguments, self.random), call

    def _call(self, outcome: Outcome) -> ToolCall:
        tool, arguments = self._actions.served(outcome.tool, outcome.arguments)
        return ToolCall(tool=tool, arguments=arguments)

    def _part(self, last: Outcome) -> Part | None:
        """Choose a part of the last result to ask for, every second time that one is new to the request."""
        given = {str(value) for value in last.arguments.values()}
        news = [part for part in last.parts if str(part.value) not in given and len(str(part.value)) <= SHORT_TEXT]
        news = [part for part in news if not self._is_usual(last.tool, part)]
        if not news or is_dated(last.text) or self.random.random() >= _PART_SHARE:
            return None
        return self.random.choice(news)

    def _is_usual(self, tool: str, part: Part) -> bool:
        told = self._told[tool, part.path]
        return told[part.value] > max(_GUESSED_TIMES, _GUESSED_SHARE * told.total())

    def verifier(self, answer: Answer, steps: Sequence[Outcome], *, ordered: bool = True) -> Verifier:
        """Return the verifier of the answer that these calls lead to."""
        calls = [self._call(step) for step in steps]
        return make_verifier(answer, calls, self._defaults, ordered=ordered)

    def compose(self, count: int, singles: Sequence[Outcome], chains: Sequence[Chain]) -> None:
        """Add at most `count` scenarios in the recipe's lengths: lookups, value chains, then unrelated calls together.

        `singles` are in order of preference.
        """
        self._told.clear()
        for outcome in singles:
            for part in outcome.parts:
                self._told[outcome.tool, part.path][part.value] += 1
        most = len(self) + count
        lengths = self._recipe.lengths(count)
        shuffled = self.random.sample(singles, len(singles))
        pools = self._pools(shuffled, count)
        blocks = [pool[start : start + MOST_STEPS] for pool in pools for start in range(0, len(pool), MOST_STEPS)]
        for steps in sorted(lengths, reverse=True):
            if steps > 1:
                room = min(most - len(self), lengths[steps])
                found = filter(self._is_in_one_pool, lookups(singles, self.random) if steps == 2 else ())
                value_chains = [chain for chain in chains if len(chain) == steps and self._is_in_one_pool(chain)]
                self._add_longer(room, found, value_chains, together(blocks, steps, self.random))
        self._add_singles(most, singles)

    def _pools(self, outcomes: Sequence[Outcome], count: int) -> list[list[Outcome]]:
        """Put calls into pools, several where each call is needed for several tasks, and return these."""
        pools = len(set(self._pool_of.values()))
        if not pools:
            pools = max(1, min(_POOLS, len(outcomes) // _LEAST_POOLED)) if len(outcomes) < count else 1
        by_tool = sorted(outcomes, key=lambda outcome: outcome.tool)  # each has calls of each tool
        for number, outcome in enumerate(by_tool):
            self._pool_of.setdefault(outcome.key, number % pools)
        found: list[list[Outcome]] = [[] for _ in range(pools)]
        for outcome in outcomes:
            found[self._pool_of[outcome.key]].append(outcome)
        return found

    def _is_in_one_pool(self, chain: Chain) -> bool:
        return len({self._pool_of[one.key] for one in chain.outcomes if one.key in self._pool_of}) <= 1

    def _add_longer(
        self, room: int, found: Iterator[Chain], chains: Sequence[Chain], unrelated: Iterator[Chain]
    ) -> None:
        least = len(self)

        def take(several: Iterable[Chain], most: int, *, by_calls: bool, ordered: bool = True) -> None:
            for chain in several:
                if len(self) - least >= most:
                    break
                answer = Answer("calls", None) if by_calls else chain.outcomes[-1].answer
                self.add_chain(chain, answer, ordered=ordered, parts=not by_calls)

        take(found, room // 3 if chains else room, by_calls=True)
        take(chains, room, by_calls=False)
        take(found, room, by_calls=True)
        take(unrelated, room, by_calls=True, ordered=False)

    def _add_singles(self, most: int, singles: Sequence[Outcome]) -> None:
        # A call that starts a chain comes last, if its tool has others: the fewer scenarios share a call, the more
        # evenly they can be split.
        used = {call_key(call.tool, dict(call.arguments)) for s in self.scenarios for call in s.reference}
        with_others = {outcome.tool for outcome in singles if outcome.key not in used}
        ordered = sorted(singles, key=lambda outcome: outcome.key in used and outcome.tool in with_others)
        for wording in range(_WORDINGS):
            for outcome in ordered:
                if len(self) >= most:
                    return
                if not wording or outcome.arguments or len(singles) < most:
                    self.add_chain(Chain.of(outcome), outcome.answer)

    def shuffled(self) -> Iterator[McpScenario]:
        """Yield all scenarios in random order."""
        listed = self.scenarios
        self.random.shuffle(listed)
        yield from listed


def _recorded(text: str) -> str | None:
    """Return the result as a scenario stores it, or None for a result that changes with the time of day."""
    return None if is_dated(text) else kept(text)
