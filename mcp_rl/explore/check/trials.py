"""Sampled calls of every tool that may be called, and findings from their results."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.explore.check import catalogue
from mcp_rl.explore.check.caller import CallReply, ServerCaller
from mcp_rl.explore.check.findings import Finding, Level, ToolTrial
from mcp_rl.explore.explorable import explorable, reads_only
from mcp_rl.explore.probe import CLOCK_TICK
from mcp_rl.system.visible import count, quoted, shortened
from mcp_rl.toolserver.isolation import names
from mcp_rl.toolserver.tools.validation import Checker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.tools.listing import Tool

_MORE_TRIES = 2
"""Factor of further calls of a tool without a result so far: earlier results and errors may help."""
_LONG = 8000
"""Characters of a result that fill much of a small model's context."""
_MOST_LOOKS = 16
_LOOKS_EACH = 4
"""Number of calls of one tool that look at the state."""
_LEAKS = 2
"""Number of processes left by one tool's calls that counts as a leak; a single one may be a helper."""


def why_not_called(tool: Tool, caller: ServerCaller, params: OneServer, *, call_all: bool) -> str | None:
    """Return why a tool must not be called here, or None where it may be."""
    server, hints = caller.server, tool.annotations
    if tool.name == server.reset_tool:
        return "it resets the server, and is called before each episode"
    if server.measured is not None and any(call.tool == tool.name for call in server.measured.fatal):
        return "it ends the server, and no model gets it"
    if call_all or reads_only(tool) or (server.measured is not None and explorable([tool], server)):
        return None
    if server.measured is not None:
        return "it may change things that are kept out of reach"
    if server.isolation is None:
        return "it may change things, and no isolation is declared"
    if hints.get("destructiveHint") is True and hints.get("openWorldHint") is True:
        return "it may destroy something outside the server"
    if server.isolation == "shared":
        return "it may destroy something on a shared server" if hints.get("destructiveHint") is True else None
    return None if params.ours_to_start else "it may change things on a server that mcp-rl did not start"


class Trials:
    """Calls tools and keeps the replies."""

    def __init__(self, caller: ServerCaller, params: OneServer, *, calls: int, call_all: bool) -> None:
        """`calls` is the number of calls of each tool."""
        self._caller, self._calls = caller, calls
        self.tools: dict[str, ToolTrial] = {}
        self.replies: dict[str, list[CallReply]] = defaultdict(list)
        self.reading: list[Tool] = []
        self.changing: list[Tool] = []
        self.unsteady: set[str] = set()
        """Tools whose equal calls have different results."""
        self.sneaky: set[str] = set()
        """Tools that claim to look things up and change something."""
        self.looks: list[CallReply] = []
        """Calls that show the state, with their replies from before any change."""
        self._listed = list(caller.link.tools)
        for tool in self._listed:
            reason = why_not_called(tool, caller, params, call_all=call_all)
            resets = tool.name == caller.server.reset_tool
            self.tools[tool.name] = ToolTrial(tool.name, not_called=reason, resets=resets)
            if reason is None:
                (self.reading if reads_only(tool) else self.changing).append(tool)

    @property
    def steady_tools(self) -> list[Tool]:
        """The reading tools that neither change something nor answer equal calls differently."""
        return [tool for tool in self.reading if tool.name not in self.unsteady | self.sneaky]

    def worked(self, tool: str) -> list[CallReply]:
        """Return the replies of calls that gave a result."""
        return [reply for reply in self.replies[tool] if reply.worked]

    async def run(self, tools: Sequence[Tool]) -> None:
        """Call each of `tools`, more often where no call has given a result."""
        for number in range(self._calls * (1 + _MORE_TRIES)):
            for tool in tools:
                if number < self._calls or not self.worked(tool.name):
                    await self._call(tool)

    async def _call(self, tool: Tool) -> None:
        faults = sum(reply.fault is not None for reply in self.replies[tool.name])
        if faults >= 2 or self._caller.out_of_time or (arguments := self._caller.draw(tool)) is None:
            return
        reply = await self._caller.call(tool.name, arguments)
        self.replies[tool.name].append(reply)
        if reply.worked:
            self._caller.pool.observe(arguments, reply.text)
        elif reply.fault is None:
            self._caller.pool.observe_error(tool.name, arguments, reply.text)

    # Findings between the calls

    async def steadiness(self, started: float) -> list[Finding]:
        """Repeat a call of each reading tool, over a second after `started`, and compare the results."""
        calls = [self.worked(tool.name)[0] for tool in self.reading if self.worked(tool.name)]
        if not calls:
            return []
        await anyio.sleep(max(0.0, started + CLOCK_TICK - anyio.current_time()))
        changed = []
        for first in calls:
            second = await self._caller.call(first.tool, first.arguments)
            if second.fault is None and second.content != first.content:
                await anyio.sleep(CLOCK_TICK)
                third = await self._caller.call(first.tool, first.arguments)
                if third.content == second.content:
                    changed.append(second)
                self.unsteady.add(first.tool)
        found: list[Finding] = []
        for reply in changed:
            if culprits := await self._culprits(reply, calls):
                self.unsteady.discard(reply.tool)
                self.sneaky.update(culprits)
                found.append(catalogue.SNEAKY.found(culprits, names=names(culprits), other=reply.tool))
        if self.unsteady:
            unsteady = sorted(self.unsteady)
            found.append(catalogue.CHANGEABLE_RESULT.found(unsteady, names=names(unsteady)))
        return found or [catalogue.EQUAL_RESULTS.found(tools=count(len(calls), "tool"))]

    async def _culprits(self, seen: CallReply, calls: Sequence[CallReply]) -> list[str]:
        """Return the tools whose calls change the result of the call `seen`."""
        culprits, before = [], seen
        for other in calls:
            if other.tool != seen.tool:
                await self._caller.call(other.tool, other.arguments)
            after = await self._caller.call(seen.tool, seen.arguments)
            if after.content != before.content:
                culprits.append(other.tool)
            before = after
        return culprits

    async def look(self) -> None:
        """Look at the state before anything is changed."""
        for tool in self.steady_tools:
            if len(self.looks) >= _MOST_LOOKS:
                return
            worked = {shown(reply.arguments): reply for reply in self.worked(tool.name)}
            telling = list(worked.values())[:_LOOKS_EACH]
            if worked and not tool.input_schema.get("required"):
                telling = [CallReply(tool.name, {})]
            for reply in telling:
                self.looks.append(await self._caller.call(reply.tool, reply.arguments))

    # Findings after all calls

    def findings(self) -> list[Finding]:
        """Fill in the statistics of each tool and return the findings of all calls."""
        for name, trial in self.tools.items():
            replies = self.replies[name]
            seconds = sorted(reply.seconds for reply in replies if reply.fault is None)
            trial.calls, trial.worked = len(replies), len(self.worked(name))
            trial.faults = sum(reply.fault is not None for reply in replies)
            trial.refused = trial.calls - trial.worked - trial.faults
            if seconds:
                trial.median_seconds = statistics.median(seconds)
                trial.p95_seconds = seconds[min(len(seconds) - 1, round(0.95 * (len(seconds) - 1)))]
        found = [
            *self._listing_changes(),
            *self._unanswered(),
            *self._without_results(),
            *self._results(),
            *self._held_back(),
            *(
                catalogue.LEFT_PROCESSES.found([tool], tool=tool, number=left)
                for tool, left in self._caller.left_by_calls().items()
                if left >= _LEAKS
            ),
        ]
        called = [trial for trial in self.tools.values() if trial.calls]
        calls, worked = sum(trial.calls for trial in called), sum(trial.worked for trial in called)
        if called and not worked:
            found.append(catalogue.NO_RESULT_AT_ALL.found(calls=calls))
        elif called and not any(finding.check == "calls" and finding.level is Level.PROBLEM for finding in found):
            tools = count(len(called), "tool")
            found.insert(0, catalogue.RESULTS_COME.found(worked=worked, calls=calls, tools=tools))
        return found

    def _listing_changes(self) -> Iterator[Finding]:
        if self._listed != self._caller.link.tools:
            before, now = ({tool.name for tool in tools} for tools in (self._listed, self._caller.link.tools))
            yield catalogue.LISTING_CHANGED.found(changed=names(sorted(before ^ now)) or "the schemas")

    def _unanswered(self) -> Iterator[Finding]:
        for name, replies in self.replies.items():
            if reply := next((reply for reply in replies if reply.fault), None):
                why, seconds = shortened(reply.fault or "", 300), self._caller.seconds_for(name)
                yield catalogue.NO_ANSWER.found(
                    [name], tool=name, arguments=shown(reply.arguments), why=why, seconds=seconds
                )

    def _without_results(self) -> Iterator[Finding]:
        """Yield a finding for all tools that were never called, and one for each wording of total refusal."""
        never: list[str] = []
        refused: dict[str, list[CallReply]] = defaultdict(list)
        for tool in (*self.reading, *self.changing):
            replies = self.replies[tool.name]
            if not replies:
                never.append(tool.name)
            elif all(reply.is_error for reply in replies):
                refused[_gist(replies[-1].text)].append(replies[-1])
        if never:
            why = "there was no time left" if self._caller.out_of_time else "no arguments fit their schemas"
            yield catalogue.NEVER_CALLED.found(never, names=names(never), why=why)
        for replies in refused.values():
            tools, first = [reply.tool for reply in replies], replies[0]
            calls = sum(len(self.replies[tool]) for tool in tools)
            yield catalogue.ALWAYS_REFUSED.found(
                tools, names=names(tools), calls=calls, arguments=shown(first.arguments), said=quoted(first.text)
            )

    def _held_back(self) -> Iterator[Finding]:
        reasons: dict[str, list[str]] = defaultdict(list)
        for trial in self.tools.values():
            if trial.not_called and not trial.resets:
                reasons[trial.not_called].append(trial.name)
        for why, tools in reasons.items():
            yield catalogue.HELD_BACK.found(tools, names=names(tools), why=why)

    def _results(self) -> Iterator[Finding]:
        schemas = {tool.name: tool.output_schema for tool in self._listed}
        typed, matching = 0, True
        for name in self.replies:
            worked = self.worked(name)
            typed += bool(schemas[name] and worked)
            errors = (_mismatch(schemas[name], reply.structured) for reply in worked)
            if why := next(filter(None, errors), None):
                matching = False
                yield catalogue.MISMATCHED_RESULT.found([name], tool=name, why=why)
            longest = max((len(reply.text) for reply in worked), default=0)
            if longest > _LONG:
                yield catalogue.LONG_RESULT.found([name], tool=name, characters=longest)
            if any(not reply.text.strip() and reply.structured is None for reply in worked):
                yield catalogue.EMPTY_RESULT.found([name], tool=name)
        if typed and matching:
            yield catalogue.MATCHING_RESULTS.found(tools=count(typed, "tool"))


def _gist(text: str) -> str:
    """Return the words before any value, which refusals of one kind have in common."""
    return re.split(r"['\"`/\d]", text, maxsplit=1)[0][:60]


def _mismatch(schema: dict[str, Any] | None, structured: Any) -> str | None:
    if schema is None:
        return None
    if structured is None:
        return "it has no structured content, which a tool with an outputSchema must give."
    error = next(iter(Checker(schema).errors(structured)), None)  # none for an invalid schema, a finding of its own
    if error is None:
        return None
    where = error.json_path.removeprefix("$").lstrip(".")
    return f"{where + ': ' if where else ''}{shortened(error.message)}."


def shown(arguments: dict[str, Any]) -> str:
    """Return arguments as JSON in at most 80 visible characters."""
    return shortened(json.dumps(arguments, ensure_ascii=False), 80)
