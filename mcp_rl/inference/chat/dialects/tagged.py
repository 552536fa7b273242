"""Calls with a tag for each argument: Qwen3-Coder, Qwen3.5 and newer, Nemotron 3 (`xml`), and GLM (`glm`).

Texts have no quotes there, so a tool's schema decides what is a number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion, unreadable
from mcp_rl.inference.chat.dialects.dialect import Dialect, Properties, typed

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^\n>]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^\n>]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_NAME = re.compile(r"\s*([^\s<]+)\s*")
_PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def _xml_call(body: str, properties: Properties) -> ParsedCall:
    function = _FUNCTION.fullmatch(body)
    if function is None:
        return unreadable("The tool call must be <function=NAME>, a <parameter=NAME> for each argument, </function>.")
    return _filled(function[1], function[2], _PARAMETER, properties)


def _glm_call(body: str, properties: Properties) -> ParsedCall:
    name = _NAME.match(body)
    if name is None:
        return unreadable("The tool call must begin with the tool's name.")
    return _filled(name[1], body[name.end() :], _PAIR, properties)


def _filled(name: str, body: str, pattern: re.Pattern[str], properties: Properties) -> ParsedCall:
    """Parse the arguments; anything between or after them is an error."""
    arguments, at = {}, 0
    schemas = properties.get(name, {})
    while found := pattern.match(body, at):
        arguments[found[1]] = typed(found[2], schemas.get(found[1]))
        at = found.end()
    if rest := body[at:].strip():
        return ParsedCall(name, None, f"The arguments cannot be read from {rest[:40]!r} on.")
    return ParsedCall(name, arguments)


def _reader(call: Callable[[str, Properties], ParsedCall]) -> Callable[[str, Properties], ParsedCompletion]:
    def read(text: str, properties: Properties) -> ParsedCompletion:
        calls = [call(body, properties) for body in _CALL.findall(text)]
        return ParsedCompletion(_CALL.sub("", text).strip(), calls)

    return read


_RESPONSES = ("<tool_response>", "</tool_response>", "<tools>", "</tools>")
XML = Dialect(
    "xml",
    _reader(_xml_call),
    (OPEN,),
    CLOSE,
    (*_RESPONSES, "<function=", "</function>", "<parameter=", "</parameter>"),
    spoken="qwen3_coder",
)
GLM = Dialect(
    "glm",
    _reader(_glm_call),
    (OPEN,),
    CLOSE,
    (*_RESPONSES, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    spoken="glm45",
)
