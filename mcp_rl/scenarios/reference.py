"""Reference solutions: their calls, the verifiers that they lead to, and their results as a scenario stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.explore.answer import Answer, call_key
from mcp_rl.scenario import McpScenario, ToolCall, Verifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.toolserver.tools.listing import Tool

_KEPT_TEXT = 2000


def make_verifier(answer: Answer, calls: Sequence[ToolCall], defaults: dict[str, Any], *, ordered: bool) -> Verifier:
    """Return the verifier for an answer; `defaults` maps tool names to their parameters' defaults."""
    if answer.kind in ("number", "text"):
        return Verifier(kind=answer.kind, expected=answer.value)
    options: dict[str, Any] = {} if ordered else {"ordered": False}
    used = {call.tool: defaults[call.tool] for call in calls if defaults.get(call.tool)}
    if used:
        options["defaults"] = used
    return Verifier(kind="calls", expected=[call.model_dump(mode="json") for call in calls], options=options)


def parameter_defaults(tools: Sequence[Tool]) -> dict[str, dict[str, Any]]:
    """Map tool names to the defaults of their parameters."""
    return {
        tool.name: {
            name: inner["default"]
            for name, inner in (tool.input_schema.get("properties") or {}).items()
            if isinstance(inner, dict) and "default" in inner
        }
        for tool in tools
    }


def kept(text: str) -> str:
    """Return a result as a scenario stores it: at most 2,000 characters."""
    return text if len(text) <= _KEPT_TEXT else text[:_KEPT_TEXT] + " […]"


def scenario_calls(scenario: McpScenario) -> set[str]:
    """Return the keys of the reference solution's calls, and of the refused calls of an unsolvable scenario."""
    return {call_key(call.tool, dict(call.arguments)) for call in (*scenario.reference, *refused_calls(scenario))}


def scenario_tools(scenario: McpScenario) -> set[str]:
    """Return the tools of these calls."""
    return {call.tool for call in (*scenario.reference, *refused_calls(scenario))}


def refused_calls(scenario: McpScenario) -> list[ToolCall]:
    """Return the refused calls that make a task unsolvable, as its verifier of kind "none" lists them."""
    verifier = scenario.verifier
    expected = verifier.expected if verifier is not None and verifier.kind == "none" else None
    listed = expected if isinstance(expected, list) else []
    return [ToolCall.model_validate({k: c[k] for k in ("tool", "arguments")}) for c in listed if isinstance(c, dict)]
