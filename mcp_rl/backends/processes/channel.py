"""Messages between the trainer and the learner's child process: frames of JSON and raw bytes over two pipes.

A frame is a mark, the length of the header, the header (a JSON object, whose `parts` are the lengths of the parts) and
the parts. The parent sends requests, many at a time; the child answers in any order, by the request's number. Each side
reads at once, so only unanswered requests wait in memory.

Nothing is pickled, so neither side can make the other run code, and there is no port.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from mcp_rl import errors
from mcp_rl.errors import EngineError, McpRlError, ServerFault, UserError
from mcp_rl.system.boundary import first_line, verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Message = dict[str, Any]
_HEAD = struct.Struct(">4sQ")
_MARK = b"mrl1"
LONGEST_HEADER = 2**31
"""Most bytes of a header; a longer one is malformed."""


def frame(message: Message, parts: Sequence[bytes] = ()) -> list[bytes]:
    """Return a message and its parts as pieces, to be written one after the other."""
    header = json.dumps({**message, "parts": [len(part) for part in parts]}).encode()
    return [_HEAD.pack(_MARK, len(header)) + header, *parts]


async def read_frame(exactly: Callable[[int], Awaitable[bytes]]) -> tuple[Message, list[bytes]]:
    """Read the next frame; `exactly` reads a number of bytes. Raises ValueError for a malformed frame."""
    header = json.loads(await exactly(_header_length(await exactly(_HEAD.size))))
    return header, [await exactly(length) for length in header.pop("parts")]


def read_frame_blocking(exactly: Callable[[int], bytes]) -> tuple[Message, list[bytes]]:
    """Read the next frame as `read_frame` does, for use in a thread."""
    header = json.loads(exactly(_header_length(exactly(_HEAD.size))))
    return header, [exactly(length) for length in header.pop("parts")]


def _header_length(head: bytes) -> int:
    mark, length = _HEAD.unpack(head)
    if mark != _MARK or length > LONGEST_HEADER:
        raise ValueError(f"no frame begins with {head!r}")
    return int(length)


def error_message(error: BaseException) -> Message:
    """Return an error as a message, so that the other side can raise it again.

    An McpRlError, or an error that the user can mend such as a full disk, keeps its class and its sentence; any other
    error its class and first line.
    """
    if isinstance(error, ServerFault):
        return {"class": "ServerFault", "sentence": str(error), "delivered": error.delivered}
    if isinstance(error, McpRlError):
        return {"class": type(error).__name__, "sentence": str(error)}
    sentence, code = verdict(error)
    if isinstance(error, Exception) and sentence is not None and code == 2:
        return {"class": UserError.__name__, "sentence": sentence}
    return {"class": None, "kind": type(error).__name__, "sentence": first_line(error)}


def error_of(message: Message, unexpected: Callable[[str, str], McpRlError]) -> McpRlError:
    """Return the error in a message; `unexpected(kind, first line)` makes it if it was no McpRlError."""
    name, sentence = message.get("class"), str(message.get("sentence"))
    if name is None:
        return unexpected(str(message.get("kind")), sentence)
    kind = getattr(errors, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, McpRlError)):
        return EngineError(sentence)
    if issubclass(kind, ServerFault):
        return kind(sentence, delivered=message.get("delivered"))
    return kind(sentence)
