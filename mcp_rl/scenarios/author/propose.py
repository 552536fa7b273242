"""Tasks of several steps that an author proposes, each with a reference solution that is then executed.

A task is verified where its solution runs on the live server, gives the same results again, and the author, in another
conversation that shows only the tools and the request, finds the same answer or the same calls. A task that runs and
cannot be verified is only for a judge; a task that does not run is dropped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.explore.answer import Answer, call_key
from mcp_rl.explore.probe import CLOCK_TICK
from mcp_rl.rewards.dates import is_dated
from mcp_rl.scenario import McpScenario, ServerParams, normalised_request
from mcp_rl.scenarios.author.forms import PLACEHOLDERS, Task, Tasks, fenced, show_calls, show_resources, show_tools
from mcp_rl.scenarios.author.rewrite import read_back
from mcp_rl.scenarios.author.values import tells_answer, unfit
from mcp_rl.scenarios.reference import kept, make_verifier, parameter_defaults
from mcp_rl.scenarios.stage import Play, Played, Stage, Unplayable, agrees, lasting, state_verifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.scenarios.author.ask import Author
    from mcp_rl.toolserver.tool_server import ToolServer

BATCH = 6
_MOST_PROPOSALS = 3
"""Limit on the tasks asked for, as a multiple of those wanted."""
_SHOWN_CALLS = 24
_SHOWN_REQUESTS = 12
RULER_ONLY = "ruler-only"
_DROPPED, _JUDGED = "dropped", "for a judge only"
_PROPOSE = """Propose {count} tasks that a user of these tools could really have, each of {steps} calls that build on
one another.

Write each request as that user would, without naming tools or steps, with every value that is needed in it and nothing
that gives the answer away. Give the calls that solve it, with arguments that work: take names, ids and paths from what
is shown below, never from your imagination. {placeholders} `answer` is "result" where the result of the last call is
what the user wants to hear, and "words" where it takes words of one's own. {checks} Make the tasks differ from one
another and from those under <requests>.

{tools}

{resources}

{calls}

{requests}

Reply with {{"tasks": [{{"request": "…", "calls": [{{"tool": "…", "arguments": "{{\\"a\\": 3}}"}}, …],
"answer": "result", "checks": []}}, …]}}; `arguments` is a JSON object as text."""
_CHECKS = (
    "Where a task changes something, `checks` holds calls that only read and whose results then tell that it was done."
)
_NO_CHECKS = "`checks` is an empty list."


@dataclass(frozen=True)
class Assignment:
    """An author's work on the scenarios of one server."""

    server: ToolServer
    params: ServerParams
    explored: Sequence[McpScenario]
    """Scenarios of recorded calls."""
    tasks: int
    """Most tasks to propose."""
    steps: tuple[int, int] = (2, 4)
    """Fewest and most calls of a proposed task."""
    keep_unverified: bool = False
    """True to keep tasks that run and cannot be verified, without a verifier, for a judge to score."""
    seed: int = 0


class Proposer:
    """Asks for tasks, and keeps those that hold."""

    def __init__(
        self, author: Author, stage: Stage, work: Assignment, resources: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """`resources` are as the server lists them."""
        self._author, self._stage, self._schemas, self._work = author, stage, stage.schemas, work
        self._resources, self._defaults = resources, parameter_defaults(stage.tools)
        self._random = random.Random(f"{work.seed}:propose")
        self._requests = {normalised_request(scenario.task_description) for scenario in work.explored}
        self._solutions = {_solution(scenario) for scenario in work.explored}

    async def propose(self, count: int) -> list[McpScenario]:
        """Return at most `count` scenarios: verified ones, and tagged unverified ones where those are kept."""
        found: list[McpScenario] = []
        asked = 0
        while len(found) < count and asked < _MOST_PROPOSALS * count and not self._author.given_up:
            missing = min(count - len(found), _MOST_PROPOSALS * count - asked)
            sizes = [min(BATCH, missing - start) for start in range(0, missing, BATCH)]
            jobs = [(size, self._question(size, found), self._work.seed + asked + n) for n, size in enumerate(sizes)]
            asked += sum(sizes)
            replies = await self._author.each(jobs, self._ask)
            found += await self._verified([task for tasks in replies for task in tasks])
        return found[:count]

    def _question(self, count: int, found: Sequence[McpScenario]) -> str:
        low, high = self._work.steps
        known = self._work.explored
        calls = self._random.sample(known, min(_SHOWN_CALLS, len(known)))
        earlier = [*found, *self._random.sample(known, min(4, len(known)))][-_SHOWN_REQUESTS:]
        return _PROPOSE.format(
            count=count,
            steps=str(low) if low == high else f"{low} to {high}",
            placeholders=PLACEHOLDERS,
            checks=_CHECKS if self._stage.stateful else _NO_CHECKS,
            tools=show_tools(self._schemas, [tool.name for tool in self._stage.tools]),
            resources=show_resources(self._resources),
            calls=show_calls(calls, self._schemas),
            requests=fenced("requests", [scenario.task_description for scenario in earlier]),
        )

    async def _ask(self, job: tuple[int, str, int]) -> list[Task]:
        count, question, seed = job
        reply = await self._author.ask(question, Tasks, _no_tasks, seed=seed)
        return list(reply.tasks[:count]) if reply else []

    async def _verified(self, tasks: Sequence[Task]) -> list[McpScenario]:
        """Return the scenarios of the tasks that hold, and report the reason for each that does not."""
        report = self._author.report
        report.proposed += len(tasks)
        sound = [task for task in tasks if self._is_sound(task)]
        started = anyio.current_time()
        plays: list[Play] = [(task.calls, task.checks, None) for task in sound]
        first = await self._stage.play_all(plays)
        await anyio.sleep(max(0.0, started + CLOCK_TICK - anyio.current_time()) if sound else 0)
        second = await self._stage.play_all(plays)
        held: list[tuple[Task, Played, Played, McpScenario]] = []
        for task, one, two in zip(sound, first, second, strict=True):
            if isinstance(one, Unplayable) or isinstance(two, Unplayable):
                report.refuse(task.request, _DROPPED, str(one if isinstance(one, Unplayable) else two))
            else:
                scenario = self._scenario(task, one)
                if _solution(scenario) in self._solutions:
                    report.refuse(task.request, _DROPPED, "it is solved by the same calls as another one")
                    continue
                self._solutions.add(_solution(scenario))
                held.append((task, one, two, scenario))
        before = await self._stage.play_all([((), self._stage.reads(scenario), None) for *_, scenario in held])
        doubts = [_doubt(task, one, two, seen) for (task, one, two, _), seen in zip(held, before, strict=True)]
        return await self._read_back([(scenario, doubt) for (*_, scenario), doubt in zip(held, doubts, strict=True)])

    def _is_sound(self, task: Task) -> bool:
        problem = unfit(task.request)
        low, high = self._work.steps
        if problem is None and not low <= len(task.calls) <= high:
            problem = f"it has a different number of calls than asked for: {len(task.calls)}"
        if problem is None and normalised_request(task.request) in self._requests:
            problem = "it repeats an existing request"
        if problem is not None:
            self._author.report.refuse(task.request, _DROPPED, problem)
            return False
        self._requests.add(normalised_request(task.request))
        return True

    async def _read_back(self, made: Sequence[tuple[McpScenario, str | None]]) -> list[McpScenario]:
        """Return the verified scenarios, and the unverified ones where those are kept."""
        sure = [scenario for scenario, doubt in made if doubt is None]
        readings = await read_back(self._author, self._stage, [(s, s.task_description) for s in sure], self._work.seed)
        doubts = {id(scenario): doubt for scenario, doubt in made if doubt is not None}
        for scenario, came in zip(sure, readings, strict=True):
            if came is None:
                doubts[id(scenario)] = "its request could not be read back"
            elif not (isinstance(came, Played) and agrees(came, scenario)):
                doubts[id(scenario)] = "its request was understood differently"
            elif tells_answer(scenario.task_description, scenario):
                doubts[id(scenario)] = "it gives its answer away"
        kept_scenarios: list[McpScenario] = []
        report = self._author.report
        for scenario, _ in made:
            doubt = doubts.get(id(scenario))
            if doubt is None:
                report.verified += 1
                kept_scenarios.append(scenario)
            else:
                report.refuse(scenario.task_description, _JUDGED if self._work.keep_unverified else _DROPPED, doubt)
                if self._work.keep_unverified:
                    report.unverified += 1
                    kept_scenarios.append(_for_a_judge(scenario))
        return kept_scenarios

    def _scenario(self, task: Task, played: Played) -> McpScenario:
        calls, last = played.calls, played.steps[-1]
        if played.looks:
            verifier = state_verifier(played.looks)
        else:
            answer = Answer("calls", None) if is_dated(last.text) else last.answer
            verifier = make_verifier(answer, calls, self._defaults, ordered=True)
        return McpScenario(
            task_description=task.request.strip(),
            server_params=self._work.params,
            server=self._work.server.name,
            verifier=verifier,
            reference=calls,
            reference_answer=kept(last.text),
            seed=self._work.seed,
            tags=(*dict.fromkeys(call.tool for call in calls), f"{len(calls)}-step", "authored"),
            schema_hash=self._schemas.hash,
        )


def _doubt(task: Task, one: Played, two: Played, untouched: Played | Unplayable) -> str | None:
    """Return why a task that was played cannot be verified, or None where it may be."""
    if task.answer == "words":
        return "its answer is in words of one's own"
    if not lasting(one, two):
        return "its results change from one time to the next"
    if one.looks and isinstance(untouched, Played) and untouched.looks == one.looks:
        return "its checks look the same before it is done"
    return None


def _solution(scenario: McpScenario) -> tuple[str, ...]:
    """Return the calls of a scenario as a key, which the same task in other words has too."""
    return tuple(call_key(call.tool, dict(call.arguments)) for call in scenario.reference)


def _no_tasks(reply: Tasks) -> str | None:
    """Refuse an empty reply only: fewer tasks than asked for are used, and of more the first."""
    return None if reply.tasks else "it has no task"


def _for_a_judge(scenario: McpScenario) -> McpScenario:
    return scenario.model_copy(update={"verifier": None, "tags": (*scenario.tags, RULER_ONLY)})
