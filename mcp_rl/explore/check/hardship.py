"""A server under hardship: a model's mistakes, odd characters, and many calls at once."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.check import catalogue
from mcp_rl.explore.check.trials import Trials, shown
from mcp_rl.rewards.dates import undated
from mcp_rl.system.visible import quoted, shortened
from mcp_rl.toolserver.isolation import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.config import Isolation
    from mcp_rl.explore.check.caller import CallReply, ServerCaller
    from mcp_rl.explore.check.findings import Finding
    from mcp_rl.toolserver.tools.listing import Tool

IN_FLIGHT = 8
_MOST_TOOLS = 30
"""Number of tools that are called wrongly."""
_ODD_TEXT = "Grüße, Ωmega 東京 🦉 'quoted' \"twice\" \\back"
_UNHARMED = re.compile(r"Grüße|Gr\\u00fc\\u00dfe", re.IGNORECASE)
"""The beginning of the odd text, plain or escaped as in JSON."""
_NO_SUCH_TOOL = "mcp_rl_no_such_tool"
_SLOW = 0.05
"""Seconds of a call from which it matters whether others wait for it."""


async def mistakes(caller: ServerCaller, tools: Sequence[Tool]) -> list[Finding]:
    """Call `tools` with arguments that do not fit: does the server answer with an error, and live on?"""
    accepted: set[str] = set()
    unanswered: list[tuple[str, str, str]] = []
    calls = 0
    wrong = [(tool.name, arguments) for tool in tools[:_MOST_TOOLS] for arguments in _wrong_arguments(tool)]
    for name, arguments in (*wrong, (_NO_SUCH_TOOL, {})):
        reply = await caller.call(name, arguments)
        calls += 1
        if caller.out_of_time:
            break
        known = name != _NO_SUCH_TOOL
        if reply.fault is not None:
            unanswered.append((name, f"{name} {shown(arguments)}" if known else "a missing tool", reply.fault))
        elif reply.worked:
            accepted.add(name if known else "a missing tool")
    found = []
    if unanswered:
        _, call, fault = unanswered[0]
        found.append(
            catalogue.MISTAKES_UNANSWERED.found(
                sorted({name for name, _, _ in unanswered}),
                number=len(unanswered), calls=calls, call=call, why=shortened(fault, 300),
            )
        )  # fmt: skip
    if accepted:
        found.append(catalogue.MISTAKES_ACCEPTED.found(sorted(accepted), names=names(sorted(accepted))))
    return found or [catalogue.MISTAKES_REFUSED.found(calls=calls)]


def _wrong_arguments(tool: Tool) -> Iterator[dict[str, Any]]:
    """Yield arguments without the required ones, and with a value of another type."""
    required = tool.input_schema.get("required")
    if isinstance(required, list) and required:
        yield {}
    properties = tool.input_schema.get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind in ("string", "number", "integer", "boolean", "array", "object"):
            yield {name: 17 if kind in ("array", "object") else ["not", {"a": kind}]}
            return


async def odd_text(caller: ServerCaller, trials: Trials) -> list[Finding]:
    """Send letters of several scripts, an emoji and quotes to a tool that echoes: they must come back unharmed."""
    for tool in (*trials.reading, *trials.changing):
        properties = tool.input_schema.get("properties")
        for reply in trials.worked(tool.name):
            for name, value in reply.arguments.items():
                schema = properties.get(name) if isinstance(properties, dict) else None
                free = isinstance(schema, dict) and not {"enum", "const", "pattern", "format"} & schema.keys()
                if free and isinstance(value, str) and len(value) > 2 and value in reply.text:
                    return _echo(await caller.call(tool.name, {**reply.arguments, name: _ODD_TEXT}))
    return []


def _echo(reply: CallReply) -> list[Finding]:
    tool = reply.tool
    if reply.fault is not None:
        return [catalogue.UNICODE_UNANSWERED.found([tool], tool=tool, why=shortened(reply.fault, 300))]
    if _UNHARMED.search(reply.text):
        return [catalogue.UNICODE_KEPT.found(tool=tool)]
    if reply.worked and "Gr" in reply.text:
        return [catalogue.UNICODE_GARBLED.found([tool], tool=tool, said=quoted(reply.text), sent=quoted(_ODD_TEXT))]
    return []


async def side_by_side(caller: ServerCaller, trials: Trials, isolation: Isolation) -> list[Finding]:
    """Make eight reading calls at once: are the results the same as one after another?"""
    steady = [reply for tool in trials.steady_tools for reply in trials.worked(tool.name)[:IN_FLIGHT]]
    if not steady:
        return []
    chosen = [steady[number % len(steady)] for number in range(IN_FLIGHT)]
    alone = [await caller.call(reply.tool, reply.arguments) for reply in chosen]
    started = asyncio.get_running_loop().time()
    together = await asyncio.gather(*(caller.call(reply.tool, reply.arguments) for reply in chosen))
    took = asyncio.get_running_loop().time() - started
    other = [two for one, two in zip(alone, together, strict=True) if _differ(one, two)]
    if other:
        first = other[0]
        return [
            catalogue.RESULTS_MIXED_UP.found(
                sorted({reply.tool for reply in other}),
                in_flight=IN_FLIGHT, number=len(other), tool=first.tool, arguments=shown(first.arguments),
                said=quoted(first.fault or first.text),
                until="; until then --isolation per-rollout" if isolation == "shared" else "",
            )
        ]  # fmt: skip
    longest, total = max(reply.seconds for reply in alone), sum(reply.seconds for reply in alone)
    if longest > _SLOW and took > 0.8 * total:
        return [catalogue.CALLS_QUEUE.found(in_flight=IN_FLIGHT, seconds=took)]
    return [catalogue.CONCURRENT.found(in_flight=IN_FLIGHT)]


def _differ(one: CallReply, two: CallReply) -> bool:
    return two.fault is not None or (one.is_error, undated(one.text)) != (two.is_error, undated(two.text))
