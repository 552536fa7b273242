"""Reads a turn while it is being sampled: text, and tool calls in the Hermes format, as OpenAI's deltas.

Invariant: whatever pieces a turn comes in, the deltas put together are the same, and say what `parse_completion` says:
the text outside calls, stripped, and every call with its name and arguments. What cannot be read of a call is handed on
as the model wrote it, so that its user can tell it so.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcp_rl.chat.hermes import ParsedCall, parse_completion, read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


@dataclass(frozen=True)
class TextDelta:
    text: str


@dataclass(frozen=True)
class CallBegins:
    index: int
    name: str


@dataclass(frozen=True)
class ArgumentsDelta:
    index: int
    text: str


Delta = TextDelta | CallBegins | ArgumentsDelta


class TurnReader:
    """`feed` it what was sampled, `end` it, and take the deltas.

    calls: whether calls are read; else everything is text. one_call: nothing after the first call counts.
    """

    def __init__(self, *, calls: bool = True, one_call: bool = False) -> None:
        self._reads_calls, self._one_call = calls, one_call
        self._buffer = ""
        self._said_anything = False
        self._space = ""
        """After what was said: it counts where text follows, the calls cut out between them."""
        self._call: _CallReader | None = None
        self.calls = 0
        """Calls that were begun."""

    @property
    def over(self) -> bool:
        """Whether nothing that comes can count any more."""
        return self._one_call and self.calls > 0 and self._call is None

    def feed(self, text: str) -> Iterator[Delta]:
        """The deltas that are certain now."""
        self._buffer += text
        while not self.over:
            if self._call is not None:
                body, closed, rest = self._buffer.partition(CLOSE)
                if not closed:
                    body, rest = _hold_back(self._buffer, CLOSE)
                yield from self._call.feed(body)
                self._buffer = rest
                if not closed:
                    return
                yield from self._closed()
            else:
                text, opened, rest = self._buffer.partition(OPEN) if self._reads_calls else (self._buffer, "", "")
                if not opened:
                    text, rest = _hold_back(self._buffer, OPEN) if self._reads_calls else (self._buffer, "")
                    yield from self._text(text)
                    self._buffer = rest
                    return
                yield from self._text(text)
                self._buffer = rest
                self._call = _CallReader(self.calls)
                self.calls += 1

    def end(self) -> Iterator[Delta]:
        """What was held back; a call that is not closed counts to the end."""
        if self.over:
            return
        if self._call is not None:
            yield from self._call.feed(self._buffer)
            yield from self._closed()
        else:
            yield from self._text(self._buffer)
        self._buffer = ""

    def _closed(self) -> Iterator[Delta]:
        assert self._call is not None
        yield from self._call.end()
        self._call = None

    def _text(self, text: str) -> Iterator[Delta]:
        text = self._space + text
        if not self._said_anything:
            text = text.lstrip()
        kept = text.rstrip()
        if not kept:
            self._space = text
            return
        self._space = text[len(kept) :]
        self._said_anything = True
        yield TextDelta(kept)


class _CallReader:
    """What is between the tags of one call. Its arguments are handed on as they come where they come last."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._body = ""
        self._name = ""
        self._begin = self._at = -1
        """From where up to where the arguments were handed on; -1 before the name is known."""
        self._depth = 0
        self._in_string = self._escaped = self._whole = False

    def feed(self, text: str) -> Iterator[Delta]:
        self._body += text
        if self._at < 0:
            header = _HEADER.match(self._body)
            name = _name(header[1]) if header else None
            if header is None or name is None:
                return
            self._name, self._begin, self._at = name, header.end(), header.end()
            yield CallBegins(self._index, name)
        if more := self._arguments():
            yield ArgumentsDelta(self._index, more)

    def end(self) -> Iterator[Delta]:
        call = parse_completion(f"{OPEN}{self._body}{CLOSE}").calls[0]
        if self._at < 0:
            yield CallBegins(self._index, call.name)
            yield ArgumentsDelta(self._index, self._written(call))
        elif self._whole and call == ParsedCall(self._name, _read(self._body[self._begin : self._at + 1])):
            yield ArgumentsDelta(self._index, self._body[self._at])

    def _written(self, call: ParsedCall) -> str:
        """The arguments of a call that was not handed on as it came."""
        if call.arguments is not None:
            return json.dumps(call.arguments, ensure_ascii=False)
        if not call.name:
            return self._body.strip()
        arguments = _read(self._body)["arguments"]
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

    def _arguments(self) -> str:
        """What more there is of the arguments' object. Its last brace waits for the end of the call: where the call
        cannot be read, its arguments cannot be either."""
        start = self._at
        while self._at < len(self._body) and not self._whole:
            char = self._body[self._at]
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                self._whole = self._depth == 0
            self._at += not self._whole
        return self._body[start : self._at]


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _name(text: str) -> str | None:
    try:
        return str(read_json(text))
    except ValueError:
        return None


def _hold_back(text: str, tag: str) -> tuple[str, str]:
    """The text, and what at its end may be the beginning of a tag."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            return text[:-length], text[-length:]
    return text, ""
