"""Calls framed by special tokens: gpt-oss (`harmony`), Gemma 4 (`gemma`), DeepSeek (`deepseek`), LFM2 (`lfm`)."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion, parsed_call, read_json, unreadable
from mcp_rl.inference.chat.dialects.dialect import Dialect, Properties

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_HARMONY_ENDS = re.compile(r"<\|(?:end|call|return)\|>")
_TO = re.compile(r"to=functions\.([^\s<]+)")
_GEMMA = re.compile(r"<\|tool_call>(.*?)(?:<tool_call\|>|\Z)", re.DOTALL)
_GEMMA_CALL = re.compile(r"\s*call:([^\s{]+)\s*(\{.*\})\s*", re.DOTALL)
_QUOTE = '<|"|>'
_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:")


def _mark(words: str) -> str:
    """Return one of DeepSeek's special tokens, which use full-width bars and U+2581 for spaces."""
    bar = "\uff5c"
    return f"<{bar}{words.replace(' ', chr(0x2581))}{bar}>"


_ALL_BEGIN, _ALL_END = _mark("tool calls begin"), _mark("tool calls end")
_ONE_BEGIN, _ONE_END, _SEP = _mark("tool call begin"), _mark("tool call end"), _mark("tool sep")
_DEEPSEEK_ALL = re.compile(rf"{_ALL_BEGIN}(.*?)(?:{_ALL_END}|\Z)", re.DOTALL)
_DEEPSEEK = re.compile(rf"{_ONE_BEGIN}(.*?)(?:{_ONE_END}|\Z)", re.DOTALL)
_FENCED = re.compile(r"\s*([^\s`]+)\s*```json\s*(.*?)\s*```\s*", re.DOTALL)
_LFM = re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|\Z)", re.DOTALL)
_LONGEST = 20_000
"""Maximum characters of calls in Python's syntax."""
_WORDS = {"true": True, "false": False, "null": None}


def _harmony(text: str, properties: Properties) -> ParsedCompletion:
    """Parse messages in channels: `analysis` is a thought, `final` the answer, and a message with a recipient a call.

    A preamble (`commentary` without a recipient) is part of the answer's text.
    """
    said: list[str] = []
    thought: list[str] = []
    calls: list[ParsedCall] = []
    for part in text.removeprefix(_START).split(_START):
        header, opened, body = part.partition(_MESSAGE)
        body = _HARMONY_ENDS.sub("", body).strip()
        if not opened:  # a header without a message, or words outside of any channel
            said += [] if _CHANNEL in part else [_HARMONY_ENDS.sub("", part).strip()]
        elif called := _TO.search(header):
            calls.append(parsed_call(called[1], body))
        elif "to=" in header:
            calls.append(unreadable("A tool is called with to=functions.NAME."))
        else:
            channel = header.partition(_CHANNEL)[2].split()
            (thought if channel[:1] == ["analysis"] else said).append(body)
    return ParsedCompletion("\n".join(filter(None, said)), calls, "\n".join(filter(None, thought)))


def _gemma(text: str, properties: Properties) -> ParsedCompletion:
    """Parse `<|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>`."""
    calls = [_gemma_call(body) for body in _GEMMA.findall(text)]
    return ParsedCompletion(_GEMMA.sub("", text).strip(), calls)


def _gemma_call(body: str) -> ParsedCall:
    found = _GEMMA_CALL.fullmatch(body)
    if found is None:
        return unreadable("The tool call must be call:NAME{…}.")
    # texts between quotes are JSON's once escaped; names outside them need quotes
    parts = found[2].split(_QUOTE)
    if len(parts) % 2 == 0:
        return ParsedCall(found[1], None, f"The arguments have a text without its closing {_QUOTE}.")
    written = [
        json.dumps(p) if n % 2 else re.sub(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:", r'\1"\2":', p)
        for n, p in enumerate(parts)
    ]
    return parsed_call(found[1], "".join(written))


def _deepseek(text: str, properties: Properties) -> ParsedCompletion:
    calls = [_deepseek_call(body) for group in _DEEPSEEK_ALL.findall(text) for body in _DEEPSEEK.findall(group)]
    return ParsedCompletion(_DEEPSEEK_ALL.sub("", text).strip(), calls)


def _deepseek_call(body: str) -> ParsedCall:
    """Parse `function<sep>NAME` with fenced JSON (V3 and R1), or `NAME<sep>{…}` (since V3.1)."""
    first, separated, rest = body.partition(_SEP)
    if not separated:
        return unreadable(f"The tool call must be the tool's name, {_SEP}, and its arguments.")
    if fenced := _FENCED.fullmatch(rest):
        return parsed_call(fenced[1], fenced[2])
    return parsed_call(first.strip(), rest.strip())


def _lfm(text: str, properties: Properties) -> ParsedCompletion:
    """Parse `<|tool_call_start|>[name(key='text', n=1), …]<|tool_call_end|>`."""
    calls = [call for body in _LFM.findall(text) for call in _python_calls(body)]
    return ParsedCompletion(_LFM.sub("", text).strip(), calls)


def _python_calls(body: str) -> list[ParsedCall]:
    """Parse a list of calls in Python's syntax, with literals only; nothing is evaluated."""
    try:
        if len(body) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST:,} characters")
        tree = ast.parse(body.strip(), mode="eval").body
        if not isinstance(tree, ast.List):
            raise ValueError("it is not a list of calls")
        return [_python_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "it is nested too deeply"
        return [unreadable(f"The tool calls cannot be read: {reason}.")]


def _python_call(node: ast.expr) -> ParsedCall:
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise ValueError("each must be name(argument=value, …)")
    try:
        arguments = {str(word.arg): _literal(word.value) for word in node.keywords}
    except ValueError as error:
        return ParsedCall(ast.unparse(node.func), None, f"The arguments cannot be read: {error}.")
    return ParsedCall(ast.unparse(node.func), arguments)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_literal(key)): _literal(one) for key, one in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        node, sign = node.operand, -1
    else:
        sign = 1
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | int | float)):
        value = -node.value if sign < 0 and isinstance(node.value, int | float) else node.value
        return read_json(json.dumps(value))
    raise ValueError("a value is not a text, number, list or object")


HARMONY = Dialect(
    "harmony",
    _harmony,
    (_CHANNEL, _START, " to="),
    tags=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, "<|end|>", "<|call|>", "<|return|>"),
    spoken="openai",
)
GEMMA = Dialect(
    "gemma",
    _gemma,
    ("<|tool_call>",),
    "<tool_call|>",
    (_QUOTE, "<|tool_response>", "<tool_response|>", "<|tool>", "<tool|>"),
    spoken="gemma4",
)
DEEPSEEK = Dialect(
    "deepseek",
    _deepseek,
    (_ALL_BEGIN,),
    _ALL_END,
    (_ONE_BEGIN, _ONE_END, _SEP, *map(_mark, ("tool outputs begin", "tool output begin", "tool output end"))),
    spoken="deepseek_v3",
)
LFM = Dialect(
    "lfm",
    _lfm,
    ("<|tool_call_start|>",),
    "<|tool_call_end|>",
    ("<|tool_response_start|>", "<|tool_response_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
    spoken="lfm2",
)
