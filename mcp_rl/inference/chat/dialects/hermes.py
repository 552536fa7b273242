"""Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Qwen2.5, Qwen3 and many others)."""

from __future__ import annotations

import re

from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion, parsed_call, read_json, unreadable
from mcp_rl.inference.chat.dialects.dialect import Dialect, Properties

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def parse_completion(text: str) -> ParsedCompletion:
    """Parse `<tool_call>` blocks of JSON. Never raises.

    A malformed call has an error, one sentence that is returned to the model. An unclosed block extends to the end.
    """
    return ParsedCompletion(_CALL.sub("", text).strip(), [_parse_call(body) for body in _CALL.findall(text)])


def _parse_call(body: str) -> ParsedCall:
    try:
        call = read_json(body)
    except (ValueError, RecursionError) as error:
        return unreadable(f"The tool call is not valid JSON: {error}.")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return unreadable('The tool call must be a JSON object with a "name" and "arguments".')
    return parsed_call(call["name"], call.get("arguments", {}))  # some models encode the arguments twice


def _read(text: str, properties: Properties) -> ParsedCompletion:
    return parse_completion(text)


HERMES = Dialect(
    "hermes",
    _read,
    (OPEN,),
    CLOSE,
    ("<tool_response>", "</tool_response>", "<tools>", "</tools>"),
    spoken="hermes",
)
