"""A chain of lines: each line of a JSON Lines file holds the digests of the line before it, of the files that were
written with it, and of itself, so that an edited, missing, added or moved line is noticed.

Lines without links, which earlier versions wrote, are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LINK = "chain"
"""Key of a line's link: `wrote` (file to SHA-256), `previous` (digest of the line before, "" for the first) and
`digest` (of the line up to there)."""
_END = re.compile(rb', "digest": "([0-9a-f]{64})"\}\}\n\Z')


@dataclass(frozen=True)
class ChainedLine:
    """A whole line of a chain."""

    number: int
    """Number of the line in its file, from 1."""
    fields: dict[str, Any]
    """The line without its link."""
    wrote: Mapping[str, str] = field(default_factory=dict)
    """Files that were written with the line, each with its SHA-256."""
    digest: str = ""
    """Digest of the line; empty for a line without a link."""


class ChainBroken(Exception):
    """A line that is not as it was written. `number` counts from 1, `problem` completes "line N …"."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number} {problem}")
        self.number, self.problem = number, problem


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def inside(name: str) -> bool:
    """Return whether a name leads to a file inside its folder, and nowhere else."""
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts


def linked(fields: Mapping[str, Any], wrote: Mapping[str, str], previous: str) -> tuple[bytes, str]:
    """Return the line that follows the one with the digest `previous`, and its own digest."""
    link = {"wrote": dict(wrote), "previous": previous}
    body = json.dumps({**fields, LINK: link}, ensure_ascii=False).encode()
    own = digest_of(body)
    return body[:-2] + f', "digest": "{own}"}}}}\n'.encode(), own


def whole_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are neither blank nor cut off at the end, with their numbers."""
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        if line.strip():
            yield number, line + b"\n"


def follow_chain(content: bytes) -> list[ChainedLine]:
    """Return the lines of a chain. Raises ChainBroken for the first line that is not as it was written."""
    found: list[ChainedLine] = []
    for number, line in whole_lines(content):
        last = found[-1].digest if found else ""
        found.append(_followed(number, line, last))
    return found


def last_digest(content: bytes) -> str:
    """Return the digest that the last whole line of a chain bears; "" without lines. Nothing is checked."""
    end = content.rfind(b"\n") + 1
    found = _END.search(content, max(0, end - 81), end)
    return found[1].decode() if found else ""


def relinked(lines: Iterable[ChainedLine]) -> tuple[bytes, str]:
    """Return lines as one chain, after some were left out, and the digest of the last. Lines before the first one that
    was left out stay as they are, to the byte."""
    text, previous = b"", ""
    for line in lines:
        written, previous = linked(line.fields, line.wrote, previous)
        text += written
    return text, previous


def _followed(number: int, line: bytes, previous: str) -> ChainedLine:
    end = _END.search(line)
    if end is None:
        raise ChainBroken(number, "has no digest")
    own = end[1].decode()
    body = line[: end.start()] + b"}}"
    if digest_of(body) != own:
        raise ChainBroken(number, "is not as it was written")
    try:
        fields = json.loads(body)
        link = fields.pop(LINK)
        wrote, before = _wrote(link["wrote"]), link["previous"]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise ChainBroken(number, "was not written by this program") from None
    if before != previous:
        raise ChainBroken(number, "does not follow the line before it: a line was removed, added or moved")
    return ChainedLine(number, fields, wrote, own)


def _wrote(content: Any) -> dict[str, str]:
    if not all(isinstance(name, str) and isinstance(digest, str) and inside(name) for name, digest in content.items()):
        raise ValueError
    return dict(content)
