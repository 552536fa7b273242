"""Tasks of several steps that an author thinks up, each with a reference solution that is then really executed.

A task is verified where its solution runs on the live server, gives the same when it runs again, and the author, in
another conversation that sees nothing but the tools and the request, comes to the same answer or the same calls. What
runs and cannot be verified is only for a judge; what does not run is dropped.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import McpScenario, ServerParams, Verifier, normalised_request
from mcp_rl.scenarios.answer import Answer, call_key, is_dated, kept, make_verifier
from mcp_rl.scenarios.author_ask import Author
from mcp_rl.scenarios.author_forms import PLACEHOLDERS, Task, Tasks, fenced, show_calls, show_resources, show_tools
from mcp_rl.scenarios.author_rewrite import read_back
from mcp_rl.scenarios.author_values import tells_answer, unfit
from mcp_rl.scenarios.stage import Play, Played, Stage, Unplayable, agrees, lasting

BATCH = 6
_MOST_PROPOSALS = 3
"""Times as many tasks as are wanted are asked for at most."""
_CLOCK_TICK = 1.1
"""Seconds after which results that show a clock have changed."""
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


class Proposer:
    """Has tasks proposed, and keeps those that hold."""

    def __init__(
        self,
        author: Author,
        stage: Stage,
        server: ToolServer,
        params: ServerParams,
        *,
        known: Sequence[McpScenario],
        defaults: dict[str, dict[str, Any]],
        resources: Sequence[Mapping[str, Any]] = (),
        steps: tuple[int, int] = (2, 4),
        seed: int = 0,
        keep_unverified: bool = False,
    ) -> None:
        """`known` are scenarios of recorded calls, `defaults` those of the tools' parameters, `resources` as listed."""
        self._author, self._stage, self._schemas = author, stage, stage.schemas
        self._server, self._params = server, params
        self._known, self._defaults, self._resources = known, defaults, resources
        self._steps, self._seed, self._keep = steps, seed, keep_unverified
        self._random = random.Random(f"{seed}:propose")
        self._requests = {normalised_request(scenario.task_description) for scenario in known}
        self._solutions = {_solution(scenario) for scenario in known}

    async def propose(self, count: int) -> list[McpScenario]:
        """At most `count` scenarios: verified, or, where unverified ones are kept, without a verifier and tagged."""
        found: list[McpScenario] = []
        asked = 0
        while len(found) < count and asked < _MOST_PROPOSALS * count and not self._author.given_up:
            missing = min(count - len(found), _MOST_PROPOSALS * count - asked)
            sizes = [min(BATCH, missing - start) for start in range(0, missing, BATCH)]
            jobs = [(size, self._question(size, found), self._seed + asked + n) for n, size in enumerate(sizes)]
            asked += sum(sizes)
            replies = await self._author.each(jobs, self._ask)
            found += await self._verified([task for tasks in replies for task in tasks])
        return found[:count]

    def _question(self, count: int, found: Sequence[McpScenario]) -> str:
        low, high = self._steps
        calls = self._random.sample(self._known, min(_SHOWN_CALLS, len(self._known)))
        earlier = [*found, *self._random.sample(self._known, min(4, len(self._known)))][-_SHOWN_REQUESTS:]
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
        """The scenarios of the tasks that hold, and a word in the report on each that does not."""
        report = self._author.report
        report.proposed += len(tasks)
        sound = [task for task in tasks if self._is_sound(task)]
        started = anyio.current_time()
        plays: list[Play] = [(task.calls, task.checks, None) for task in sound]
        first = await self._stage.play_all(plays)
        await anyio.sleep(max(0.0, started + _CLOCK_TICK - anyio.current_time()) if sound else 0)
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
        low, high = self._steps
        if problem is None and not low <= len(task.calls) <= high:
            problem = f"it has another number of calls than asked for: {len(task.calls)}"
        if problem is None and normalised_request(task.request) in self._requests:
            problem = "it is there already"
        if problem is not None:
            self._author.report.refuse(task.request, _DROPPED, problem)
            return False
        self._requests.add(normalised_request(task.request))
        return True

    async def _read_back(self, made: Sequence[tuple[McpScenario, str | None]]) -> list[McpScenario]:
        """Verified ones, and, where they are kept, unverified ones."""
        sure = [scenario for scenario, doubt in made if doubt is None]
        readings = await read_back(self._author, self._stage, [(s, s.task_description) for s in sure], self._seed)
        doubts = {id(scenario): doubt for scenario, doubt in made if doubt is not None}
        for scenario, came in zip(sure, readings, strict=True):
            if came is None:
                doubts[id(scenario)] = "its request could not be read back"
            elif not (isinstance(came, Played) and agrees(came, scenario)):
                doubts[id(scenario)] = "its request was understood differently"
            elif tells_answer(scenario.task_description, scenario):
                doubts[id(scenario)] = "it gives its answer away"
        kept_ones: list[McpScenario] = []
        report = self._author.report
        for scenario, _ in made:
            doubt = doubts.get(id(scenario))
            if doubt is None:
                report.verified += 1
                kept_ones.append(scenario)
            else:
                report.refuse(scenario.task_description, _JUDGED if self._keep else _DROPPED, doubt)
                if self._keep:
                    report.unverified += 1
                    kept_ones.append(_for_a_judge(scenario))
        return kept_ones

    def _scenario(self, task: Task, played: Played) -> McpScenario:
        calls, last = played.calls, played.steps[-1]
        if played.looks:
            verifier = Verifier(kind="state", expected=[look.as_expected() for look in played.looks])
        else:
            answer = Answer("calls", None) if is_dated(last.text) else last.answer
            verifier = make_verifier(answer, calls, self._defaults, ordered=True)
        return McpScenario(
            task_description=task.request.strip(),
            server_params=self._params,
            server=self._server.name,
            verifier=verifier,
            reference=calls,
            reference_answer=kept(last.text),
            seed=self._seed,
            tags=(*dict.fromkeys(call.tool for call in calls), f"{len(calls)}-step", "authored"),
            schema_hash=self._schemas.hash,
        )


def _doubt(task: Task, one: Played, two: Played, untouched: Played | Unplayable) -> str | None:
    """Why a task that was played cannot be verified; None where it may be."""
    if task.answer == "words":
        return "its answer is in words of one's own"
    if not lasting(one, two):
        return "its results change from one time to the next"
    if one.looks and isinstance(untouched, Played) and untouched.looks == one.looks:
        return "its checks look the same before it is done"
    return None


def _solution(scenario: McpScenario) -> tuple[str, ...]:
    """The calls of a scenario, so that the same task in other words is known again."""
    return tuple(call_key(call.tool, dict(call.arguments)) for call in scenario.reference)


def _no_tasks(reply: Tasks) -> str | None:
    """Fewer tasks than asked for are still tasks, and of more the first are taken."""
    return None if reply.tasks else "it has no task"


def _for_a_judge(scenario: McpScenario) -> McpScenario:
    return scenario.model_copy(update={"verifier": None, "tags": (*scenario.tags, RULER_ONLY)})
