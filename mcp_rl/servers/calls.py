"""Calls of every tool that may be called, with sampled arguments, and what they say about the server."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import anyio

from mcp_rl.scenario import OneServer
from mcp_rl.scenarios.explorable import reads_only
from mcp_rl.scenarios.probe import CLOCK_TICK
from mcp_rl.servers.caller import Caller, Reply
from mcp_rl.servers.findings import Finding, ToolTrial, note, ok, problem
from mcp_rl.servers.isolation import names
from mcp_rl.servers.visible import count, quoted, shortened
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.validation import validator_of

_MORE_TRIES = 2
"""Times as many calls where none of a tool's has worked yet: what earlier results and errors say may help."""
_LONG = 8000
"""Characters of a result that fill much of a small model's context."""
_MOST_LOOKS = 16
_LOOKS_EACH = 4
"""Calls of one tool that look at the state."""
_LEAKS = 2
"""Processes that one tool's calls left behind, from which on it is no helper that was started once."""


def why_not_called(tool: Tool, caller: Caller, params: OneServer, *, call_all: bool) -> str | None:
    """Why a tool must not be called here; None where it may be."""
    server, hints = caller.server, tool.annotations
    if tool.name == server.reset_tool:
        return "it resets the server, and is called before each episode"
    if call_all or reads_only(tool):
        return None
    if server.isolation is None:
        return "it may change things, and nobody declared how episodes are kept apart"
    if hints.get("destructiveHint") is True and hints.get("openWorldHint") is True:
        return "it may destroy something outside the server"
    if server.isolation == "shared":
        return "it may destroy something on a shared server" if hints.get("destructiveHint") is True else None
    return None if params.ours_to_start else "it may change things on a server that somebody else runs"


class Trials:
    """Calls tools and keeps what came of it."""

    def __init__(self, caller: Caller, params: OneServer, *, calls: int, call_all: bool) -> None:
        self._caller, self._calls = caller, calls
        self.tools: dict[str, ToolTrial] = {}
        self.replies: dict[str, list[Reply]] = defaultdict(list)
        self.reading: list[Tool] = []
        self.changing: list[Tool] = []
        self.unsteady: set[str] = set()
        """Tools whose equal calls have different results."""
        self.looks: list[Reply] = []
        """Calls that show the state, and what they said before anything was changed."""
        self.sneaky: set[str] = set()
        """Tools that are said to look things up, and change something."""
        self._listed = list(caller.link.tools)
        for tool in self._listed:
            reason = why_not_called(tool, caller, params, call_all=call_all)
            resets = tool.name == caller.server.reset_tool
            self.tools[tool.name] = ToolTrial(tool.name, not_called=reason, resets=resets)
            if reason is None:
                (self.reading if reads_only(tool) else self.changing).append(tool)

    async def run(self, tools: Sequence[Tool]) -> None:
        """Call each of `tools` so many times, and more often where nothing worked."""
        for number in range(self._calls * (1 + _MORE_TRIES)):
            for tool in tools:
                if number < self._calls or not self.worked(tool.name):
                    await self._call(tool)

    def worked(self, tool: str) -> list[Reply]:
        """The calls that gave a result."""
        return [reply for reply in self.replies[tool] if reply.worked]

    async def _call(self, tool: Tool) -> None:
        faults = [reply for reply in self.replies[tool.name] if reply.fault]
        if len(faults) >= 2 or self._caller.out_of_time:
            return
        arguments = self._caller.draw(tool)
        if arguments is None:
            return
        reply = await self._caller.call(tool.name, arguments)
        self.replies[tool.name].append(reply)
        if reply.worked:
            self._caller.pool.observe(arguments, reply.text)
        elif reply.fault is None:
            self._caller.pool.observe_error(tool.name, arguments, reply.text)

    # What is found out on the way

    async def steadiness(self, started: float) -> list[Finding]:
        """Call what has worked again, later than a second after `started`: is it the same?"""
        calls = [self.worked(tool.name)[0] for tool in self.reading if self.worked(tool.name)]
        if not calls:
            return []
        await anyio.sleep(max(0.0, started + CLOCK_TICK - anyio.current_time()))
        found: list[Finding] = []
        changed = []
        for first in calls:
            second = await self._caller.call(first.tool, first.arguments)
            if second.fault is None and second.said != first.said:
                await anyio.sleep(CLOCK_TICK)
                third = await self._caller.call(first.tool, first.arguments)
                if third.said == second.said:
                    changed.append(second)
                self.unsteady.add(first.tool)
        for reply in changed:
            if culprits := await self._culprits(reply, calls):
                self.unsteady.discard(reply.tool)
                self.sneaky.update(culprits)
                found.append(
                    problem(
                        "annotations",
                        f"{names(culprits)} only looks things up, as far as its annotations and name tell, and yet "
                        f"its calls change the result of {reply.tool}.",
                        "Episodes see what others did, and nobody resets it.",
                        "Set readOnlyHint to false, and declare how episodes are kept apart.",
                        culprits,
                    )
                )
        if self.unsteady:
            found.append(
                note(
                    "determinism",
                    f"{names(sorted(self.unsteady))}: two equal calls had different results.",
                    "An answer that was right when the task was written may be wrong later; generate leaves such "
                    "tools out. That is how clocks are.",
                    "Write scenarios for it with a verifier of their own, or leave it out (tools.exclude).",
                    sorted(self.unsteady),
                )
            )
        if not found:
            found.append(ok("determinism", f"Equal calls agree ({count(len(calls), 'tool')} that look things up)."))
        return found

    async def look(self) -> None:
        """See the state as it is before anything is changed."""
        for tool in self.reading:
            if tool.name in self.unsteady | self.sneaky or len(self.looks) >= _MOST_LOOKS:
                continue
            worked = {shown(reply.arguments): reply for reply in self.worked(tool.name)}
            telling = list(worked.values())[:_LOOKS_EACH]
            if worked and not tool.input_schema.get("required"):
                telling = [Reply(tool.name, {})]
            for reply in telling:
                self.looks.append(await self._caller.call(reply.tool, reply.arguments))

    async def _culprits(self, seen: Reply, calls: Sequence[Reply]) -> list[str]:
        culprits, before = [], seen
        for other in calls:
            if other.tool != seen.tool:
                await self._caller.call(other.tool, other.arguments)
            after = await self._caller.call(seen.tool, seen.arguments)
            if after.said != before.said:
                culprits.append(other.tool)
            before = after
        return culprits

    def judged(self) -> list[Finding]:
        """What the calls say, tool by tool, after all of them."""
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
            *self._other_tools(),
            *self._unanswered(),
            *self._never_worked(),
            *self._results(),
            *self._left_out(),
            *self._leaks(),
        ]
        called = [trial for trial in self.tools.values() if trial.calls]
        calls, worked = (sum(getattr(trial, what) for trial in called) for what in ("calls", "worked"))
        if called and not worked:
            found.append(
                problem(
                    "calls",
                    f"No call of any tool gave a result ({calls} were tried).",
                    "generate would find nothing to make tasks of.",
                    "See the errors above: what does the server need (a network, a program, a key in its environment)?",
                )
            )
        elif called and not any(finding.check == "calls" and finding.level == "problem" for finding in found):
            found.insert(0, ok("calls", f"{worked} of {calls} calls of {count(len(called), 'tool')} gave a result."))
        return found

    def _other_tools(self) -> Iterator[Finding]:
        before, now = ({tool.name for tool in tools} for tools in (self._listed, self._caller.link.tools))
        if self._listed != self._caller.link.tools:
            changed = names(sorted(before ^ now)) or "the schemas"
            yield problem(
                "schemas",
                f"It lists other tools after some calls than before ({changed}).",
                "A run stops where the listing changes, since what was learned may not fit.",
                "Let the listing stay the same, or train with --allow-schema-change.",
            )

    def _unanswered(self) -> Iterator[Finding]:
        for name, replies in self.replies.items():
            if fault := next((reply for reply in replies if reply.fault), None):
                yield problem(
                    "calls",
                    f"{name} gave no answer to {shown(fault.arguments)}: {shortened(fault.fault or '', 300)}",
                    "The episode is a fault: it is thrown away and played again.",
                    f"Let it answer within {self._caller.seconds_for(name):g} s, or raise tool_deadlines in the "
                    "plugin; tools.exclude leaves it out.",
                    [name],
                )

    def _never_worked(self) -> Iterator[Finding]:
        """A finding for all tools that were never called, and one for each way in which all calls were refused."""
        never: list[str] = []
        refused: dict[str, list[Reply]] = defaultdict(list)
        for tool in (*self.reading, *self.changing):
            replies = self.replies[tool.name]
            if not replies:
                never.append(tool.name)
            elif all(reply.is_error for reply in replies):
                refused[_gist(replies[-1].text)].append(replies[-1])
        if never:
            why = "there was no time left" if self._caller.out_of_time else "no arguments fit their schemas"
            yield note(
                "calls",
                f"Not called: {names(never)}, since {why}.",
                "Nothing is known about them, and generate writes no task for them.",
                "Give their plugin argument_samplers, or put examples into the schemas.",
                never,
            )
        for replies in refused.values():
            tools = [reply.tool for reply in replies]
            tried = sum(len(self.replies[tool]) for tool in tools)
            yield note(
                "calls",
                f"{names(tools)} refused all {tried} sampled calls, for example {shown(replies[0].arguments)}: "
                f"{quoted(replies[0].text)}.",
                "generate may find no task for it either.",
                "Say in the schema what it takes (enum, pattern, examples), or give its plugin an argument_samplers "
                "entry.",
                tools,
            )

    def _left_out(self) -> Iterator[Finding]:
        reasons: dict[str, list[str]] = defaultdict(list)
        for trial in self.tools.values():
            if trial.not_called and trial.name != self._caller.server.reset_tool:
                reasons[trial.not_called].append(trial.name)
        for reason, tools in reasons.items():
            yield note(
                "calls",
                f"Not called: {names(tools)}. {'It' if len(tools) == 1 else 'Each'}: {reason}.",
                "Nothing is known about what they do; generate leaves them out too.",
                "Declare the isolation (in a plugin, or --isolation per-rollout), or try them here with --call-all.",
                tools,
            )

    def _results(self) -> Iterator[Finding]:
        by_name = {tool.name: tool for tool in self._listed}
        typed, bad = 0, False
        for name in self.replies:
            schema, worked = by_name[name].output_schema, self.worked(name)
            typed += bool(schema and worked)
            wrong = next(((reply, why) for reply in worked if (why := _mismatch(schema, reply.structured))), None)
            if wrong:
                bad = True
                yield problem(
                    "results",
                    f"A result of {name} does not match its outputSchema: {wrong[1]}",
                    "Many clients refuse it, so that the model gets an error for a right call.",
                    "Mend the schema or the result.",
                    [name],
                )
            longest = max((len(reply.text) for reply in worked), default=0)
            if longest > _LONG:
                yield note(
                    "results",
                    f"A result of {name} has {longest:,} characters.",
                    "Long results are cut in the middle, and fill the context.",
                    "Let the tool give pages, or take a model with more context (rollout.max_result_tokens).",
                    [name],
                )
            if any(not reply.text.strip() and reply.structured is None for reply in worked):
                yield note(
                    "results",
                    f"{name} gave an empty result.",
                    "A model cannot tell whether anything happened.",
                    "Say in a word what was done.",
                    [name],
                )
        if typed and not bad:
            yield ok("results", f"Results match the outputSchema ({count(typed, 'tool')}).")

    def _leaks(self) -> Iterator[Finding]:
        for tool, left in self._caller.left_by_calls().items():
            if left >= _LEAKS:
                yield problem(
                    "processes",
                    f"Calls of {tool} left {left} processes running.",
                    "A run makes thousands of calls: the machine fills up until it stands still.",
                    "Wait for what the tool starts, or end it before the answer.",
                    [tool],
                )


def _gist(text: str) -> str:
    """What refusals of one kind have in common: the words before any value."""
    return re.split(r"['\"`/\d]", text, maxsplit=1)[0][:60]


def _mismatch(schema: dict[str, Any] | None, structured: Any) -> str | None:
    if schema is None:
        return None
    if structured is None:
        return "it has no structured content, which a tool with an outputSchema must give."
    try:
        errors = validator_of(schema).iter_errors(structured)
        error = next(iter(errors), None)
    except Exception:  # no schema: told already
        return None
    if error is None:
        return None
    where = error.json_path.removeprefix("$").lstrip(".")
    return f"{where + ': ' if where else ''}{shortened(error.message)}."


def shown(arguments: dict[str, Any]) -> str:
    """Arguments in a few visible characters."""
    import json

    return shortened(json.dumps(arguments, ensure_ascii=False), 80)
