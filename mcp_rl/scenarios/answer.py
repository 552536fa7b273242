"""What the recorded result of a call says: a number, a short text, or something to be checked by the calls alone."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mcp_rl.scenario import McpScenario, ToolCall, Verifier
from mcp_rl.toolserver.connection import Tool

SHORT_TEXT = 60
"""Characters up to which a result is something that a final message can repeat."""
_KEPT_TEXT = 2000
_RESULT_KEYS = ("result", "value", "answer", "output")
_CLOSING_NUMBER = re.compile(r"(?:\bis|=|:|\bequals)\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*\.?$")
_SECRET_LINE = re.compile(r"(?i)(?:token|secret|passw|api_?key|credential)\w{0,40}\W{0,3}[=:]\W{0,3}[^\s\"']{6}")
_NOTHING = re.compile(
    r"(?i)^\W*(?:error|null|none|undefined)\b|\bno (?:matches|results|such)\b|\bnot found\b|\berror\W+[A-Z]{4,}\b"
)
_SYSTEM_ERROR = re.compile(r"\b[Ee]rror\W{1,4}E[A-Z]{3,}\b")
_READ = 20_000
"""Characters of a result that are searched."""
_DATED = re.compile(
    r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
)


@dataclass(frozen=True)
class Answer:
    """`value` is a float or an int for kind "number", text for "text", None for "calls"."""

    kind: str
    value: int | float | str | None


def read_answer(text: str, arguments: dict[str, Any]) -> Answer:
    """The answer that a result's text holds."""
    value = _scalar(text.strip())
    if isinstance(value, bool):
        value = json.dumps(value)
    if isinstance(value, int | float):
        return Answer("number", value) if math.isfinite(value) else Answer("calls", None)
    closing = _CLOSING_NUMBER.search(value or "")
    # A number that ends an argument's own text is an echo, and the whole text is the answer then.
    if closing and len(value or "") <= 2 * SHORT_TEXT and not any(t.endswith(closing[1]) for t in _texts(arguments)):
        return Answer("number", _number(closing[1]))
    if value and value.strip() and len(value) <= SHORT_TEXT and "\n" not in value:
        return Answer("text", value)
    return Answer("calls", None)


def make_verifier(answer: Answer, calls: Sequence[ToolCall], defaults: dict[str, Any], *, ordered: bool) -> Verifier:
    """The verifier for an answer; `defaults` maps tool names to their parameters' defaults."""
    if answer.kind in ("number", "text"):
        return Verifier(kind=answer.kind, expected=answer.value)
    options: dict[str, Any] = {} if ordered else {"ordered": False}
    used = {call.tool: defaults[call.tool] for call in calls if defaults.get(call.tool)}
    if used:
        options["defaults"] = used
    return Verifier(kind="calls", expected=[call.model_dump(mode="json") for call in calls], options=options)


def parameter_defaults(tools: Sequence[Tool]) -> dict[str, dict[str, Any]]:
    """Tool names to the defaults of their parameters."""
    return {
        tool.name: {
            name: inner["default"]
            for name, inner in (tool.input_schema.get("properties") or {}).items()
            if isinstance(inner, dict) and "default" in inner
        }
        for tool in tools
    }


def kept(text: str) -> str:
    """The recorded text as a scenario stores it: cut where it is long."""
    return text if len(text) <= _KEPT_TEXT else text[:_KEPT_TEXT] + " […]"


def holds_secret(text: str) -> bool:
    """Whether a result seems to hold a password or key, which must not be written to a scenarios file."""
    return _SECRET_LINE.search(text) is not None


def says_nothing(text: str) -> bool:
    """Whether a result that was no error is still none: nothing found, nothing at all, or an error in its text."""
    failed = _NOTHING.search(text[:300]) or _SYSTEM_ERROR.search(text[:_READ])
    return not text.strip("[]{} \n") or failed is not None or _is_hollow(text)


def _is_hollow(text: str) -> bool:
    """Whether a JSON result has an empty list or object and else nothing but zeros, nulls and empty texts."""
    if text[:1] not in "[{" or not re.search(r"\[\s*\]|\{\s*\}", text):
        return False
    try:
        return not _holds_something(json.loads(text))
    except (ValueError, RecursionError):
        return False


def _holds_something(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_holds_something, value.values() if isinstance(value, dict) else value))
    return bool(value)


def is_dated(text: str) -> bool:
    """Whether a result holds a time of day, with a date or to the second, and so may be another one next time."""
    return _DATED.search(text) is not None


def undated(text: str) -> str:
    """The text with a mark for each such time: two results are the same where they differ in these alone."""
    return _DATED.sub("<time>", text)


def call_key(tool: str, arguments: dict[str, Any]) -> str:
    """One text for all spellings of the same call: keys sorted, 3.0 equal to 3."""
    return f"{tool} {json.dumps(_canonical(arguments), sort_keys=True, ensure_ascii=False)}"


def scenario_calls(scenario: McpScenario) -> set[str]:
    """Keys of the calls that the reference solution executes, or that the server refused where there is none."""
    return {call_key(call.tool, dict(call.arguments)) for call in (*scenario.reference, *refused_calls(scenario))}


def scenario_tools(scenario: McpScenario) -> set[str]:
    """The tools of these calls."""
    return {call.tool for call in (*scenario.reference, *refused_calls(scenario))}


def refused_calls(scenario: McpScenario) -> list[ToolCall]:
    """Calls that show why a task cannot be done: what a verifier of kind "none" expects."""
    verifier = scenario.verifier
    expected = verifier.expected if verifier is not None and verifier.kind == "none" else None
    listed = expected if isinstance(expected, list) else []
    return [ToolCall.model_validate({k: c[k] for k in ("tool", "arguments")}) for c in listed if isinstance(c, dict)]


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _scalar(text: str) -> int | float | str | None:
    """The one value that a result consists of; None for a structure of several."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        named = [value[key] for key in _RESULT_KEYS if key in value]
        value = named[0] if named else next(iter(value.values())) if len(value) == 1 else None
    return value if isinstance(value, str | int | float) else None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [value.rstrip(". ")] if isinstance(value, str) else []
