"""Verified scenarios in an author's words: the values stay, and the new words must lead to the same result.

The author reads each new wording back, in another conversation that shows only the tools and the request. The calls
that it understands are played on the live server. The new wording is used only if they lead to what the scenario
expects.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from mcp_rl.scenario import McpScenario, normalised_request
from mcp_rl.scenarios.author.forms import PLACEHOLDERS, Reading, Readings, Rewrites, fenced, ids_problem, show_tools
from mcp_rl.scenarios.author.values import tells_answer, unfit, values_lost
from mcp_rl.scenarios.stage import Played, ProposedCall, Stage, Unplayable, agrees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.scenarios.author.ask import Author

BATCH = 10
_ROUNDS = 2
_KEPT = "kept its wording"
_MANNERS = (
    "short, as typed into a chat in a hurry",
    "polite, as to a colleague",
    "a question",
    "with one sentence about why it is needed",
    "plain and exact",
    "chatty",
    "indirect: what is wanted, not what is to be done",
    "as a line of a to-do list",
    "for somebody who does not know that there are tools",
    "the values first, then what to do with them",
)
_REWRITE = """Give each request another wording, in the manner that stands beside it.

It must ask for exactly the same as before. Every value stays as it is, letter for letter and digit for digit, in a
place that leaves no doubt what it is for; no number is added. Do not solve it and do not hint at the answer. Vary words
and sentences from one to the next, and name a tool only where nothing else says what is meant.

{tools}

{requests}

Reply with {{"rewrites": [{{"id": "…", "request": "…"}}, …]}}, one for each request."""
_READ = """Say which calls each request asks for, in their order. Go by the words of the request alone; where it can be
done without any call, or by none of these tools, its list of calls is empty. {placeholders}

{tools}

{requests}

Reply with {{"readings": [{{"id": "…", "calls": [{{"tool": "…", "arguments": "{{\\"a\\": 3}}"}}, …]}}, …]}}, one for
each request; `arguments` is a JSON object as text."""


class Rewriter:
    """Has requests reworded, in batches."""

    def __init__(self, author: Author, stage: Stage, seed: int) -> None:
        self._author, self._stage, self._seed = author, stage, seed
        self._random = random.Random(f"{seed}:rewrite")

    async def rewrite(self, scenarios: Sequence[McpScenario]) -> list[McpScenario]:
        """Return the scenarios in order, with new requests and the tag "rewritten" where rewriting succeeded."""
        words = await self._new_words(scenarios)
        asked = [(scenario, words[scenario.id]) for scenario in scenarios if scenario.id in words]
        readings = await read_back(self._author, self._stage, asked, self._seed)
        new: dict[str, McpScenario] = {}
        for (scenario, request), came in zip(asked, readings, strict=True):
            if isinstance(came, Played) and agrees(came, scenario):
                new[scenario.id] = reworded(scenario, request)
            elif came is not None:
                self._author.report.refuse(request, _KEPT, "its new words were understood differently")
        self._author.report.rewritten += len(new)
        return [new.get(scenario.id, scenario) for scenario in scenarios]

    async def _new_words(self, scenarios: Sequence[McpScenario]) -> dict[str, str]:
        """Return new requests by scenario id; one that loses or adds values is asked for once more."""
        words: dict[str, str] = {}
        left = list(scenarios)
        for number in range(_ROUNDS):
            batches = [left[start : start + BATCH] for start in range(0, len(left), BATCH)]
            manners = [[self._random.choice(_MANNERS) for _ in batch] for batch in batches]
            jobs = list(zip(range(len(batches)), batches, manners, strict=True))
            refused: list[McpScenario] = []
            for batch, reply in zip(batches, await self._author.each(jobs, partial(self._ask, number)), strict=True):
                if reply is None:
                    continue
                for scenario in batch:
                    request = reply[scenario.id].strip()
                    problem = self._problem(request, scenario)
                    if problem is None:
                        words[scenario.id] = request
                    elif number + 1 < _ROUNDS:
                        refused.append(scenario)
                    else:
                        self._author.report.refuse(request, _KEPT, problem)
            left = refused
        return words

    async def _ask(self, number: int, job: tuple[int, list[McpScenario], list[str]]) -> dict[str, str] | None:
        index, batch, manners = job
        ids = [f"r{position + 1}" for position in range(len(batch))]
        entries = [
            {"id": id, "manner": manner, "request": scenario.task_description}
            for id, manner, scenario in zip(ids, manners, batch, strict=True)
        ]
        tools = {call.tool for scenario in batch for call in scenario.reference}
        question = _REWRITE.format(tools=show_tools(self._stage.schemas, tools), requests=fenced("requests", entries))
        reply = await self._author.ask(
            question,
            Rewrites,
            lambda reply: ids_problem((rewrite.id for rewrite in reply.rewrites), ids),
            seed=self._seed + 1000 * number + index,
        )
        if reply is None:
            return None
        given = {rewrite.id: rewrite.request for rewrite in reply.rewrites}
        return {scenario.id: given[id] for id, scenario in zip(ids, batch, strict=True)}

    @staticmethod
    def _problem(request: str, scenario: McpScenario) -> str | None:
        problem = unfit(request) or values_lost(request, scenario)
        if normalised_request(request) == normalised_request(scenario.task_description):
            problem = "it is the old wording"
        if problem is None and tells_answer(request, scenario):
            problem = "it gives the answer away"
        return problem


async def read_back(
    author: Author, stage: Stage, asked: Sequence[tuple[McpScenario, str]], seed: int
) -> list[Played | Unplayable | None]:
    """Play the calls that the author understands from each request alone; None for a request without a reading."""
    batches = [asked[start : start + BATCH] for start in range(0, len(asked), BATCH)]

    async def one(batch: Sequence[tuple[McpScenario, str]]) -> list[Sequence[ProposedCall] | None]:
        ids = [f"r{position + 1}" for position in range(len(batch))]
        entries = [{"id": id, "request": request} for id, (_, request) in zip(ids, batch, strict=True)]
        question = _READ.format(
            placeholders=PLACEHOLDERS,
            tools=show_tools(stage.schemas, [tool.name for tool in stage.tools]),
            requests=fenced("requests", entries),
        )
        reply = await author.ask(
            question,
            Readings,
            lambda reply: ids_problem((reading.id for reading in reply.readings), ids),
            seed=seed,
            temperature=0.0,
        )
        by_id: dict[str, Reading] = {reading.id: reading for reading in reply.readings} if reply else {}
        return [by_id[id].calls if id in by_id else None for id in ids]

    readings = [calls for batch in await author.each(batches, one) for calls in batch]
    given = [(index, calls) for index, calls in enumerate(readings) if calls is not None]
    plays = [(calls, stage.reads(asked[index][0]), asked[index][0].initial_state) for index, calls in given]
    played = await stage.play_all(plays)
    results: list[Played | Unplayable | None] = [None] * len(asked)
    for (index, _), came in zip(given, played, strict=True):
        results[index] = came
    return results


def reworded(scenario: McpScenario, request: str) -> McpScenario:
    """Return the scenario with another request, and thus another id."""
    fields = {name: getattr(scenario, name) for name in McpScenario.model_fields}
    tags = (*scenario.tags, "rewritten")
    return McpScenario.model_validate({**fields, "task_description": request, "id": "", "tags": tags})
