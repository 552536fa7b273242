"""The changes in a patch, as diff writes it in its unified format: its files, and the lines added and removed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.forms.records import MOST_ITEMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.entities.forms.records import Record

_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@.*")
_SIDE = re.compile(r"(?:---|\+\+\+) (?:[abiwco]/)?([^\t]{1,300})(?:\t.*)?")
_NO_FILE = "/dev/null"


def changes_in(lines: Sequence[str]) -> Record:
    """Return the changes that these lines tell, as fields of what they belong to; nothing where they hold no patch."""
    files: dict[str, None] = {}
    added = removed = left_old = left_new = 0
    before = ""
    for line in lines:
        if left_old > 0 or left_new > 0:
            mark = line[:1] or " "
            added, removed = added + (mark == "+"), removed + (mark == "-")
            left_old -= mark in " -"
            left_new -= mark in " +"
        elif found := _HUNK.fullmatch(line):
            left_old, left_new = (1 if count is None else int(count) for count in found.groups())
        elif line.startswith("+++ ") and before.startswith("--- "):
            sides = [match[1] for one in (line, before) if (match := _SIDE.fullmatch(one)) is not None]
            files |= dict.fromkeys([name for name in sides if name != _NO_FILE][:1])
        before = line
    if not files or len(files) > MOST_ITEMS or left_old > 0 or left_new > 0:
        return {}
    return {"changed files": list(files), "added lines": added, "removed lines": removed}
