"""Record of the calls that an exploration tried, tool by tool, to say why a tool gave no task.

A context variable holds the record, so that scenario sources need not be passed one.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Fate = Literal["worked", "unseen", "refused", "empty", "same", "secret", "unsteady", "unanswered"]
_SAYS: Mapping[Fate, str] = {
    "worked": "worked, but none gave a task of its own",
    "unseen": "worked, but no reading call shows that anything changed",
    "refused": "refused",
    "empty": "answered with nothing",
    "same": "gave the same text as all others",
    "secret": "answered with what looks like a password or key",
    "unsteady": "gave another answer the second time",
    "unanswered": "not answered in time",
}
_HELPS: Mapping[Fate, str] = {
    "worked": "raise --count, or make its results differ",
    "unseen": "offer a tool that shows what it changes",
    "refused": "name values that work in its descriptions or its schema, or in a plugin",
    "empty": "put data into the server",
    "same": "give the server what that text asks for, or make its answers depend on the arguments",
    "secret": "make it answer without that",
    "unsteady": "make it give equal calls equal answers",
    "unanswered": "make it answer sooner",
}
_LONG_CALL, _LONG_ANSWER = 90, 120
_READ = 500
"""Characters by which complaints are compared."""
SAY_START = "say where exploring begins, such as --start https://example.com/"
"""Advice for a tool that takes the address of a page."""
CHANGES = "was not called, because it may change things"
"""Why a tool is kept out that writes, where nothing keeps its writing apart."""
LATE = "was not called, because the server is slow and has very many tools"
"""Why a tool is kept out that there is no time for."""
FATAL = "ends the server"
"""Why a tool is kept out: the server answers nothing after it was called."""


@dataclass
class ToolTrials:
    """What became of the calls of one tool."""

    fates: Counter[Fate] = field(default_factory=Counter)
    examples: dict[Fate, tuple[dict[str, Any], str]] = field(default_factory=dict)
    """The first call of each fate: its arguments, and what the server said."""
    complaints: Counter[str] = field(default_factory=Counter)
    """The server's answers to calls that gave nothing."""
    kept_out: str = ""
    """Why it was not called at all."""
    needs_start: bool = False
    """True if it takes the address of a page, and the user named none."""

    late: bool = False
    """True if it was given up, since too many of its calls were not answered in time."""

    @property
    def commonest(self) -> Fate | None:
        """The fate of most of its calls, None if there were none. What changes between calls weighs more, and so does
        what made it be given up."""
        if "unsteady" in self.fates:
            return "unsteady"
        if self.late and "unanswered" in self.fates:
            return "unanswered"
        return self.fates.most_common(1)[0][0] if self.fates else None

    @property
    def helps(self) -> str:
        """What to do so that it gives a task."""
        if self._lacks_start:
            return SAY_START
        return "" if self.commonest is None or self.kept_out else _HELPS[self.commonest]

    @property
    def _lacks_start(self) -> bool:
        return self.needs_start and "worked" not in self.fates and self.kept_out != CHANGES

    def why(self, tool: str) -> str:
        """Return the rest of a sentence that says why a tool gave no task, with an example."""
        fate = self.commonest
        if self._lacks_start:
            return f"{tool} takes the address of a page, and none that it reaches is known"
        if self.kept_out or fate is None:
            return f"{tool} {self.kept_out or 'is needed by no task of these levels'}"
        number, all_calls = self.fates[fate], self.fates.total()
        calls = f"its only call was {_SAYS[fate]}" if all_calls == 1 else f"{number} of {all_calls} calls {_was(fate)}"
        if all_calls == 1 and _SAYS[fate] == _was(fate):
            calls = f"its only call {_SAYS[fate]}"
        arguments, said = self.examples[fate]
        shown = "" if fate == "secret" or not said.strip() else f" → {shortened(said, _LONG_ANSWER)!r}"
        call = shortened(json.dumps(arguments, ensure_ascii=False), _LONG_CALL)
        return f"{tool}: {calls} (for example {call}{shown})"


def _was(fate: Fate) -> str:
    return f"were {_SAYS[fate]}" if fate in ("refused", "unanswered") else _SAYS[fate]


@dataclass
class TriedTools:
    """The tools that were tried, by their names."""

    tools: dict[str, ToolTrials] = field(default_factory=dict)
    served: Callable[[str, Mapping[str, Any]], tuple[str, dict[str, Any]]] = lambda tool, given: (tool, dict(given))
    """Returns the server's own call for one of a part of a tool (`Actions.served`)."""

    def of(self, tool: str) -> ToolTrials:
        """Return what became of the calls of a tool, or of the one of which it is a part."""
        return self.tools.setdefault(self.served(tool, {})[0], ToolTrials())

    def reasons(self, tools: Sequence[str]) -> list[str]:
        """Return a sentence for each of these tools, which gave no task: why, and what would help."""
        found = []
        for tool in tools:
            trials = self.of(tool)
            found.append(f"{trials.why(tool)}; {trials.helps}." if trials.helps else f"{trials.why(tool)}.")
        return found


_current: ContextVar[TriedTools | None] = ContextVar("tried tools", default=None)


@contextmanager
def tried_tools() -> Iterator[TriedTools]:
    """Yield the record of what is tried inside this context: that of the surrounding one, if there is one."""
    if (known := _current.get()) is not None:
        yield known
        return
    record = TriedTools()
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def note(tool: str, fate: Fate, arguments: dict[str, Any], said: str) -> None:
    """Note what became of a call, if there is a record."""
    if (record := _current.get()) is not None:
        trials, given = record.of(tool), record.served(tool, arguments)[1]
        trials.kept_out = ""  # where other parts of the tool were
        trials.fates[fate] += 1
        if fate in ("refused", "empty", "same"):
            trials.complaints[said[:_READ]] += 1
        trials.examples.setdefault(fate, (given, said))


def note_same(tool: str, arguments: dict[str, Any], said: str) -> None:
    """Note that a call which seemed to work gave the text that all calls give, if there is a record."""
    if (record := _current.get()) is not None:
        trials = record.of(tool)
        if trials.fates["worked"] > 1:
            trials.fates["worked"] -= 1
        else:
            trials.fates.pop("worked", None)
            trials.examples.pop("worked", None)
        note(tool, "same", arguments, said)


def note_needs_start(tool: str) -> None:
    """Note that a tool takes the address of a page, and that none was named, if there is a record."""
    if (record := _current.get()) is not None:
        record.of(tool).needs_start = True


def note_late(tool: str) -> None:
    """Note that a tool is given up, since its calls are not answered in time, if there is a record."""
    if (record := _current.get()) is not None:
        record.of(tool).late = True


def note_kept_out(tool: str, why: str) -> None:
    """Note why a tool is not called, if there is a record: the rest of a sentence that begins with its name."""
    if (record := _current.get()) is not None and not (trials := record.of(tool)).fates:
        trials.kept_out = why
