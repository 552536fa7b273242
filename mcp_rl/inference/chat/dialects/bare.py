"""JSON calls without a tag around each: Llama 3.1 and 3.2 (`llama`), Mistral (`mistral`), Phi-4-mini (`phi`)."""

from __future__ import annotations

import re
from typing import Any

from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion, parsed_call, read_json_at, unreadable
from mcp_rl.inference.chat.dialects.dialect import Dialect, Properties

PYTHON_TAG, TOOL_CALLS, ARGS = "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"
_PHI_OPEN, _PHI_CLOSE = "<|tool_call|>", "<|/tool_call|>"
_BETWEEN = re.compile(r"[\s;]*")
_NAMED = re.compile(r"\s*([^\s\[{]+?)(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*")
_PHI = re.compile(r"<\|tool_call\|>(.*?)(?:<\|/tool_call\|>|\Z)", re.DOTALL)


def _llama(text: str, properties: Properties) -> ParsedCompletion:
    """Parse a turn: as calls if it consists of JSON objects with a name and parameters and nothing else, otherwise as
    an answer."""
    said, tagged, body = text.partition(PYTHON_TAG)
    if not tagged:
        said, body = "", text
    calls: list[ParsedCall] = []
    at = _after(body, 0)
    while at < len(body):
        try:
            found, at = read_json_at(body, at)
        except (ValueError, RecursionError) as error:
            if not tagged and not (calls or re.match(r'\s*\{\s*"name"\s*:', body)):
                return ParsedCompletion(text.strip())
            return ParsedCompletion(said.strip(), [*calls, unreadable(f"The tool call is not valid JSON: {error}.")])
        if not _is_call(found, "parameters"):
            if not tagged:
                return ParsedCompletion(text.strip())
            found = {"name": ""}
        calls.append(_called(found, "parameters"))
        at = _after(body, at)
    return ParsedCompletion(said.strip(), calls)


def _after(body: str, at: int) -> int:
    found = _BETWEEN.match(body, at)
    return found.end() if found else at


def _mistral(text: str, properties: Properties) -> ParsedCompletion:
    """Parse `[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call, as newer models write it."""
    said, *parts = text.split(TOOL_CALLS)
    calls: list[ParsedCall] = []
    for part in parts:
        named = _NAMED.match(part)
        try:
            found, end = read_json_at(part, named.end() if named else len(part) - len(part.lstrip()))
        except (ValueError, RecursionError) as error:
            calls.append(ParsedCall(named[1] if named else "", None, f"The tool call is not valid JSON: {error}."))
            continue
        if rest := part[end:].strip():
            calls.append(unreadable(f"The tool call is followed by {rest[:40]!r}, which is none."))
        elif named:
            calls.append(parsed_call(named[1], found))
        else:
            calls += [_called(one, "arguments") for one in (found if isinstance(found, list) else [found])]
    return ParsedCompletion(said.strip(), calls)


def _phi(text: str, properties: Properties) -> ParsedCompletion:
    """Parse `<|tool_call|>[{"name": …, "arguments": {…}}, …]<|/tool_call|>`."""
    calls: list[ParsedCall] = []
    for body in _PHI.findall(text):
        try:
            found, end = read_json_at(body, len(body) - len(body.lstrip()))
            if rest := body[end:].strip():
                raise ValueError(f"{rest[:40]!r} follows it")
        except (ValueError, RecursionError) as error:
            calls.append(unreadable(f"The tool call is not valid JSON: {error}."))
            continue
        calls += [_called(one, "arguments") for one in (found if isinstance(found, list) else [found])]
    return ParsedCompletion(_PHI.sub("", text).strip(), calls)


def _is_call(found: Any, key: str) -> bool:
    return isinstance(found, dict) and isinstance(found.get("name"), str) and key in found


def _called(found: Any, key: str) -> ParsedCall:
    if not _is_call(found, key):
        return unreadable(f'The tool call must be a JSON object with a "name" and "{key}".')
    return parsed_call(found["name"], found[key])


LLAMA = Dialect("llama", _llama, (PYTHON_TAG, "{"), tags=(PYTHON_TAG,), spoken="llama3_json")
MISTRAL = Dialect(
    "mistral",
    _mistral,
    (TOOL_CALLS,),
    tags=(
        TOOL_CALLS,
        ARGS,
        "[CALL_ID]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
    ),
    spoken="mistral",
)
PHI = Dialect("phi", _phi, (_PHI_OPEN,), _PHI_CLOSE, spoken="phi4_mini_json")
