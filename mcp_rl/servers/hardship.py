"""What a model's mistakes, odd characters and many calls at once do to a server."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

from mcp_rl.config import Isolation
from mcp_rl.scenarios.answer import undated
from mcp_rl.servers.caller import Caller, Reply
from mcp_rl.servers.calls import Trials, shown
from mcp_rl.servers.findings import Finding, note, ok, problem
from mcp_rl.servers.isolation import names
from mcp_rl.servers.visible import quoted, shortened
from mcp_rl.toolserver.listing import Tool

IN_FLIGHT = 8
_MOST_TOOLS = 30
"""Tools that are called wrongly."""
_ODD_TEXT = "Grüße, Ωmega 東京 🦉 'quoted' \"twice\" \\back"
_UNHARMED = re.compile(r"Grüße|Gr\\u00fc\\u00dfe", re.IGNORECASE)
"""As it is, or as JSON may have it."""
_NO_SUCH_TOOL = "mcp_rl_no_such_tool"
_SLOW = 0.05
"""Seconds of a call from which it matters whether others wait for it."""


async def mistakes(caller: Caller, tools: Sequence[Tool]) -> list[Finding]:
    """Call `tools` with arguments that do not fit: is it told, and does the server live on?"""
    found: list[Finding] = []
    taken: list[str] = []
    unanswered: list[tuple[str, str, str]] = []
    calls = 0
    wrong = [(tool.name, arguments) for tool in tools[:_MOST_TOOLS] for arguments in _wrong_arguments(tool)]
    for name, arguments in (*wrong, (_NO_SUCH_TOOL, {})):
        reply = await caller.call(name, arguments)
        calls += 1
        if caller.out_of_time:
            break
        if reply.fault is not None:
            what = f"{name} {shown(arguments)}" if name != _NO_SUCH_TOOL else "a tool that does not exist"
            unanswered.append((name, what, reply.fault))
        elif reply.worked:
            taken.append(name if name != _NO_SUCH_TOOL else "a tool that does not exist")
    if unanswered:
        _, what, fault = unanswered[0]
        found.append(
            problem(
                "mistakes",
                f"{len(unanswered)} of {calls} wrong calls got no answer, the first: {what}: {shortened(fault, 300)}",
                "Models make such mistakes all the time; each one spoils the episodes on this server.",
                "Answer wrong arguments with a tool error (isError) in words.",
                sorted({name for name, _, _ in unanswered}),
            )
        )
    if taken:
        told = sorted(set(taken))
        found.append(
            note(
                "mistakes",
                f"{names(told)}: a wrong call got a result and no error.",
                "We check arguments before they are sent, so the model is told all the same; other clients may not.",
                "Check arguments against the schema in the server too.",
                told,
            )
        )
    if not found:
        found.append(ok("mistakes", f"{calls} wrong calls were answered with an error, and the server lives on."))
    return found


def _wrong_arguments(tool: Tool) -> Iterator[dict[str, Any]]:
    """Without what is required, and with a value of another type."""
    required = tool.input_schema.get("required")
    if isinstance(required, list) and required:
        yield {}
    properties = tool.input_schema.get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind in ("string", "number", "integer", "boolean", "array", "object"):
            yield {name: 17 if kind in ("array", "object") else ["not", {"a": kind}]}
            return


async def odd_text(caller: Caller, trials: Trials) -> list[Finding]:
    """Put letters of several scripts, an emoji and quotes into a text: an echo must give them back unharmed."""
    for tool in (*trials.reading, *trials.changing):
        properties = tool.input_schema.get("properties")
        for reply in trials.worked(tool.name):
            for name, value in reply.arguments.items():
                schema = properties.get(name) if isinstance(properties, dict) else None
                free = isinstance(schema, dict) and not {"enum", "const", "pattern", "format"} & schema.keys()
                if not (free and isinstance(value, str) and len(value) > 2 and value in reply.text):
                    continue
                odd = await caller.call(tool.name, {**reply.arguments, name: _ODD_TEXT})
                return list(_echo(tool.name, odd))
    return []


def _echo(tool: str, reply: Reply) -> Iterator[Finding]:
    do = "Read and write UTF-8 everywhere (PYTHONUTF8=1, encoding='utf-8')."
    if reply.fault is not None:
        yield problem(
            "unicode",
            f"{tool} gave no answer to text with letters of other scripts: {shortened(reply.fault, 300)}",
            "Requests and names hold such letters; the episode is a fault.",
            do,
            [tool],
        )
    elif _UNHARMED.search(reply.text):
        yield ok("unicode", f"Letters of other scripts survive ({tool}).")
    elif reply.worked and "Gr" in reply.text:
        yield problem(
            "unicode",
            f"{tool} gives back {quoted(reply.text)} for {quoted(_ODD_TEXT)}.",
            "What the model reads is not what there is, so right answers count as wrong.",
            do,
            [tool],
        )


async def side_by_side(caller: Caller, trials: Trials, isolation: Isolation) -> list[Finding]:
    """Calls that look things up, eight at once: the same results as one after another?"""
    steady = [
        reply
        for tool in trials.reading
        if tool.name not in trials.unsteady | trials.sneaky
        for reply in trials.worked(tool.name)[:IN_FLIGHT]
    ]
    if not steady:
        return []
    chosen = [steady[number % len(steady)] for number in range(IN_FLIGHT)]
    alone = [await caller.call(reply.tool, reply.arguments) for reply in chosen]
    started = asyncio.get_running_loop().time()
    together = await asyncio.gather(*(caller.call(reply.tool, reply.arguments) for reply in chosen))
    took = asyncio.get_running_loop().time() - started
    other = [two for one, two in zip(alone, together, strict=True) if _differ(one, two)]
    if other:
        seen = other[0].fault or other[0].text
        return [
            problem(
                "concurrency",
                f"With {IN_FLIGHT} calls in flight at once, {len(other)} had other results than one after another; "
                f"{other[0].tool} {shown(other[0].arguments)}: {quoted(seen)}.",
                "Rollouts that share the server get each other's results.",
                "Keep nothing of one call where another one sees it; until then --isolation per-rollout."
                if isolation == "shared"
                else "Keep nothing of one call where another one sees it.",
                sorted({reply.tool for reply in other}),
            )
        ]
    longest, total = (max(reply.seconds for reply in alone), sum(reply.seconds for reply in alone))
    if longest > _SLOW and took > 0.8 * total:
        return [
            note(
                "concurrency",
                f"{IN_FLIGHT} calls at once take as long as one after another ({took:.2g} s).",
                "Rollouts wait for each other's calls.",
                "Answer calls side by side (async functions, threads), or use several servers: "
                "--isolation per-rollout.",
            )
        ]
    return [ok("concurrency", f"{IN_FLIGHT} calls in flight at once have the same results as one after another.")]


def _differ(one: Reply, two: Reply) -> bool:
    return two.fault is not None or (one.is_error, undated(one.text)) != (two.is_error, undated(two.text))
