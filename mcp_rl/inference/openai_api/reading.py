"""Read a turn while it is being sampled: text and Hermes tool calls, as OpenAI's deltas.

Invariant: however a turn is cut into pieces, its deltas add up to the same, and to the result of `parse_completion`:
the text outside calls, stripped, and every call with its name and arguments. Unreadable parts of a call are passed on
as the model wrote them, so that the client can tell the model.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.chat.calls import ParsedCall, read_json
from mcp_rl.inference.chat.dialects.hermes import parse_completion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.inference.chat.chat_format import ChatFormat

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


@dataclass(frozen=True)
class ThoughtDelta:
    text: str


Delta = TextDelta | CallBegins | ArgumentsDelta | ThoughtDelta


class WholeTurnReader:
    """Parser of whole turns, for models that think or have a call format of their own: text that begins as an answer
    may turn out to be a thought or a call. Same interface as `TurnReader`."""

    over = False

    def __init__(self, chat: ChatFormat, tools: Sequence[dict[str, Any]], *, calls: bool, one_call: bool) -> None:
        self._chat, self._tools, self._reads_calls, self._one_call = chat, tools, calls, one_call
        self._text = ""
        self.calls = 0

    def feed(self, text: str) -> Iterator[Delta]:
        """Keep the text."""
        self._text += text
        return iter(())

    def end(self) -> Iterator[Delta]:
        """Yield thought, words and calls."""
        read = self._chat.parse(self._text, self._tools)
        calls = (read.calls[:1] if self._one_call else read.calls) if self._reads_calls else []
        if read.thought:
            yield ThoughtDelta(read.thought)
        words = read.content if self._reads_calls or not read.calls else self._chat.without_thoughts(self._text)
        if words:
            yield TextDelta(words)
        for index, call in enumerate(calls):
            self.calls += 1
            yield CallBegins(index, call.name)
            written = call.error if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
            yield ArgumentsDelta(index, written or "")


def reader_of(
    chat: ChatFormat, tools: Sequence[dict[str, Any]], *, calls: bool, one_call: bool
) -> TurnReader | WholeTurnReader:
    """Return the reader of a model's turns: piece by piece where the format allows it."""
    if chat.read_in_pieces:
        return TurnReader(calls=calls, one_call=one_call)
    return WholeTurnReader(chat, tools, calls=calls, one_call=one_call)


class TurnReader:
    """An incremental reader: `feed` it sampled text, `end` it, and take the deltas.

    Without `calls` everything is text. With `one_call` nothing after the first call counts.
    """

    def __init__(self, *, calls: bool = True, one_call: bool = False) -> None:
        self._reads_calls, self._one_call = calls, one_call
        self._buffer = ""
        self._said_anything = False
        self._space = ""
        """Whitespace after the text so far: it counts once more text follows, with the calls between them cut out."""
        self._call: _CallReader | None = None
        self.calls = 0
        """Number of calls begun."""

    @property
    def over(self) -> bool:
        """Return whether no further text can count."""
        return self._one_call and self.calls > 0 and self._call is None

    def feed(self, text: str) -> Iterator[Delta]:
        """Yield the deltas that are certain now."""
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
        """Yield what was held back; an unclosed call extends to the end."""
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
    """Reads the body of one call. Arguments that come last are passed on as they arrive."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._body = ""
        self._name = ""
        self._begin = self._at = -1
        """Start and end of the arguments passed on so far; -1 before the name is known."""
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
        """Return the arguments of a call that was not passed on as it arrived."""
        if call.arguments is not None:
            return json.dumps(call.arguments, ensure_ascii=False)
        if not call.name:
            return self._body.strip()
        arguments = _read(self._body)["arguments"]
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

    def _arguments(self) -> str:
        """Return the next part of the arguments' object.

        Its last brace waits for the end of the call: if the call cannot be read, its arguments must not be readable
        either.
        """
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


def begun_at_end(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


def _hold_back(text: str, tag: str) -> tuple[str, str]:
    """Split a text before the end that may be the beginning of a tag."""
    certain = len(text) - begun_at_end(text, tag)
    return text[:certain], text[certain:]
