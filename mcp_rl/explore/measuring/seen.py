"""Calls with their answers, and what differs between those of two processes."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from typing import Any

from mcp_rl.explore.answer import call_key
from mcp_rl.explore.complaint import reports_failure
from mcp_rl.rewards.dates import undated
from mcp_rl.rewards.new_ids import new_ids

_FOLDER = re.compile(r"(?i)\bis_?dir(?:ectory)?\"?\s*[:=]\s*true\b|\btype\"?\s*[:=]\s*\"?(?:directory|folder|dir)\b")
_SIZE = re.compile(r"(?i)(\bsize\"?\s*[:=]\s*)\d+")
_RECORD = re.compile(r"\{[^{}]*\}")
"""A folder in an answer, a size, and a record of a list in JSON."""


@dataclass(frozen=True)
class Seen:
    """A call and its answer."""

    tool: str
    arguments: dict[str, Any]
    text: str = ""
    is_error: bool = False

    @property
    def key(self) -> str:
        return call_key(self.tool, self.arguments)

    @property
    def answer(self) -> tuple[bool, str]:
        """The answer without times, and without the sizes of folders, which a layer changes."""
        return self.is_error, _RECORD.sub(lambda record: _unsized(record[0]), _unsized(undated(self.text)))

    @property
    def worked(self) -> bool:
        """True unless the answer says that it failed."""
        return not self.is_error and not reports_failure(self.text, self.arguments)


Answers = dict[str, tuple[bool, str]]
"""Answers of calls by their keys; a call that was not answered is missing."""


@dataclass(frozen=True)
class ComparedRun:
    """Looks, changes, the same changes again, and the same looks again, on one process."""

    before: Answers
    once: Answers
    twice: Answers
    after: Answers

    def traces(self, other: ComparedRun) -> tuple[set[str], set[str]]:
        """Return the keys of the looks, and of the changes, that show what was changed, here and in another run that
        began alike."""
        looks = {key for key in self.before if _moved(key, self.before, self.after, other.before, other.after)}
        changes = {key for key in self.once if _moved(key, self.once, self.twice, other.once, other.twice)}
        return looks, changes

    def agrees(self, other: ComparedRun, *fresh: ComparedRun) -> bool:
        """Return whether all that is equal here and in runs on fresh processes is equal in another run too."""
        parts = zip(astuple(self), astuple(other), *map(astuple, fresh), strict=True)
        return all(
            theirs.get(key) == answer
            for ours, theirs, *new in parts
            for key, answer in ours.items()
            if all(one.get(key) == answer for one in new)
        )


def alike(one: tuple[bool, str] | None, other: tuple[bool, str]) -> bool:
    """Return whether two answers are equal but for new ids."""
    return one is not None and one[0] == other[0] and new_ids(one[1], other[1]) is not None


def _moved(key: str, before: Answers, after: Answers, fresh: Answers, changed: Answers) -> bool:
    """Return whether an answer was the same at the beginning of two runs, and another one later in both."""
    first = before[key]
    return fresh.get(key) == first and all(key in late and late[key] != first for late in (after, changed))


def _unsized(text: str) -> str:
    """Return the text of one thing without its size, if it is a folder; where it tells of several sizes, as it is."""
    return _SIZE.sub(r"\1", text) if _FOLDER.search(text) and len(_SIZE.findall(text)) == 1 else text
