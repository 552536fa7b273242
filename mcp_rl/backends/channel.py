"""Messages between the trainer and the child process with the learner: frames of JSON and raw bytes over two pipes.

A frame is its mark, the length of its header, the header (a JSON object, whose `parts` are the lengths of what follows)
and the parts. The parent asks, the child answers by the number of the request, in any order; many are in flight. What
one side sends, the other reads at once, so what waits in memory is what was asked and not answered yet.

Nothing is pickled, so that neither side can make the other run anything, and there is no port.
"""

import json
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mcp_rl import errors
from mcp_rl.boundary import first_line, verdict
from mcp_rl.errors import EngineError, McpRlError, ServerFault, UserError

Message = dict[str, Any]
_HEAD = struct.Struct(">4sQ")
_MARK = b"mrl1"
LONGEST_HEADER = 2**31
"""Bytes. A longer one is no header of ours."""


def frame(message: Message, parts: Sequence[bytes] = ()) -> list[bytes]:
    """A message and the bytes that go with it, as pieces to be written one after the other."""
    header = json.dumps({**message, "parts": [len(part) for part in parts]}).encode()
    return [_HEAD.pack(_MARK, len(header)) + header, *parts]


async def read_frame(exactly: Callable[[int], Awaitable[bytes]]) -> tuple[Message, list[bytes]]:
    """The next frame, by a function that reads so many bytes. Raises ValueError where what comes is none."""
    header = json.loads(await exactly(_header_length(await exactly(_HEAD.size))))
    return header, [await exactly(length) for length in header.pop("parts")]


def read_frame_blocking(exactly: Callable[[int], bytes]) -> tuple[Message, list[bytes]]:
    """`read_frame` for a thread of its own."""
    header = json.loads(exactly(_header_length(exactly(_HEAD.size))))
    return header, [exactly(length) for length in header.pop("parts")]


def _header_length(head: bytes) -> int:
    mark, length = _HEAD.unpack(head)
    if mark != _MARK or length > LONGEST_HEADER:
        raise ValueError(f"no frame begins with {head!r}")
    return int(length)


def error_message(error: BaseException) -> Message:
    """An error of ours, as the other side can raise it again: its class and its sentence. What the user can mend, such
    as a full disk, is of ours too; of anything else its class and first line."""
    if isinstance(error, ServerFault):
        return {"class": "ServerFault", "sentence": str(error), "delivered": error.delivered}
    if isinstance(error, McpRlError):
        return {"class": type(error).__name__, "sentence": str(error)}
    sentence, code = verdict(error)
    if isinstance(error, Exception) and sentence is not None and code == 2:
        return {"class": UserError.__name__, "sentence": sentence}
    return {"class": None, "kind": type(error).__name__, "sentence": first_line(error)}


def error_of(message: Message, unexpected: Callable[[str, str], McpRlError]) -> McpRlError:
    """The error that a message tells of; `unexpected(kind, first line)` makes it where it was none of ours."""
    name, sentence = message.get("class"), str(message.get("sentence"))
    if name is None:
        return unexpected(str(message.get("kind")), sentence)
    kind = getattr(errors, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, McpRlError)):
        return EngineError(sentence)
    if issubclass(kind, ServerFault):
        return kind(sentence, delivered=message.get("delivered"))
    return kind(sentence)
