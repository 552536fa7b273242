"""A complaint shared by most tools of a server, such as a missing setting."""

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
"""Maybe the name of an environment variable."""
_ENVIRONMENT = re.compile(r"(?i)\benv|environment|ambiente|umgebung|entorno|переменн|环境变量|環境変数")
_ENDS = re.compile(
    r"_(?:KEY|TOKEN|SECRET|PASSWORD|USER|USERNAME|PATH|DIR|FILE|URL|URI|HOST|PORT|ID|NAME|ENDPOINT|REGION|PROJECT|DSN)$"
)
"""The end of such a name; an error code has another: INVALID_ARGUMENT."""
_NETWORK = re.compile(
    r"(?i)fetch failed|ENOTFOUND|ECONNREFUSED|EAI_AGAIN|getaddrinfo|name resolution|network (?:error|is unreachable)|"
    r"connect(?:ion)? (?:error|timeout)"
)
"""Words of a server that reaches nothing."""
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
        what = f"Set {self.setting} under `env` in a file of servers (docs/server_config.md)" if self.setting else ""
        return (
            f"No task can be made for the server {server!r}: {self.tools} of its tools answer {quoted!r}. "
            f"{what or _what_helps(quoted)} and try again."
        )


def _what_helps(said: str) -> str:
    """Return what to do about a complaint that names no setting."""
    return "See that it reaches the network" if _NETWORK.search(said) else "Give it what it asks for"


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
    told = _ENVIRONMENT.search(text) is not None
    names = (name for name in _SETTING.findall(text) if told or _ENDS.search(name))
    return CommonComplaint(text, count, next(names, None))
