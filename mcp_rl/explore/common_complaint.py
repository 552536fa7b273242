"""A complaint that the tools of a server share: the server lacks something, whatever is asked of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.explore.complaint import error_in, object_in
from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.tried import TriedTools

_TOOLS, _CALLS = 3, 0.5
"""Tools that must have said it, and its share of the calls."""
_SETTING = re.compile(r"(?<![\w$/.])\$?([A-Z][A-Z0-9]{1,40}(?:_[A-Z0-9]{1,40}){1,8})(?![\w/])")
"""The name of an environment variable."""
_QUOTED = 160
"""Characters of a complaint that are quoted."""


@dataclass(frozen=True)
class CommonComplaint:
    """A text that the tools of a server answer."""

    text: str
    tools: int
    """Number of tools that say it."""
    setting: str | None
    """The environment variable that it names."""

    def sentence(self, server: str) -> str:
        """Return a sentence that quotes it and says what would help."""
        value = object_in(self.text)
        said = (error_in(value) if value is not None else None) or self.text
        quoted = shortened(said if isinstance(said, str) else self.text, _QUOTED)
        name = self.setting or "what it asks for"
        where = ", as `env` in a file of servers (docs/server_config.md)," if self.setting else ""
        verb = "set" if self.setting else "give it"
        return (
            f"No task can be made for the server {server!r}, since {self.tools} of its tools answer {quoted!r}: {verb} "
            f"{name}{where} and try again."
        )


def common_complaint(record: TriedTools, tools: Sequence[str], *, share: float) -> CommonComplaint | None:
    """Return the complaint that this share of the tools, of those that were called, answered, in at least half of all
    calls; None if there is none."""
    called = [record.of(tool) for tool in tools if record.of(tool).fates]
    tools_saying: Counter[str] = Counter()
    calls_saying: Counter[str] = Counter()
    for trials in called:
        tools_saying.update(trials.complaints.keys())
        calls_saying.update(trials.complaints)
    if not tools_saying:
        return None
    text, calls = calls_saying.most_common(1)[0]
    count, all_calls = tools_saying[text], sum(trials.fates.total() for trials in called)
    if count < max(_TOOLS, share * len(called)) or calls < _CALLS * all_calls:
        return None
    setting = _SETTING.search(text)
    return CommonComplaint(text, count, setting[1] if setting else None)
