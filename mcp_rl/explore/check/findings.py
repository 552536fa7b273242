"""The report of a check: its findings, with their consequences and advice, and statistics of the tools."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.config import Isolation


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    """Tried, and as it should be."""
    NOTE = "note"
    """Training works; the user should know."""
    PROBLEM = "problem"
    """Training would trip over it."""


@dataclass(frozen=True)
class Finding:
    """A single finding of a check."""

    level: Level
    check: str
    """The subject in a word: schemas, calls, mistakes, results, determinism, annotations, concurrency, unicode, reset,
    isolation, processes, shutdown, stdout."""
    what: str
    """The observation, in a sentence."""
    means: str = ""
    """Consequence for training; empty for level ok."""
    do: str = ""
    """Advice."""
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of finding. Its texts hold `{name}` where `found` puts values."""

    level: Level
    check: str
    what: str
    means: str = ""
    do: str = ""

    def found(self, tools: Iterable[str] = (), /, **values: object) -> Finding:
        """Return a finding of this kind about `tools`."""
        check, what, means, do = (text.format(**values) for text in (self.check, self.what, self.means, self.do))
        return Finding(self.level, check, what, means, do, tuple(tools))


@dataclass
class ToolTrial:
    """Statistics of the sampled calls of one tool."""

    name: str
    calls: int = 0
    worked: int = 0
    refused: int = 0
    """Number of calls that the tool or the server answered with an error."""
    faults: int = 0
    """Number of calls without an answer."""
    median_seconds: float | None = None
    p95_seconds: float | None = None
    not_called: str | None = None
    """Reason for not calling the tool."""
    resets: bool = False
    """True for the tool that resets the server's state."""


@dataclass
class CheckReport:
    """The results of a check of one server."""

    name: str
    origin: str
    transport: str
    server_info: dict[str, str]
    isolation: Isolation
    isolation_reason: str
    schema_hash: str
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each step: connect (from starting the process to the listing), list, reset, close."""
    tools: list[ToolTrial] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """The findings that training would trip over."""
        return [finding for finding in self.findings if finding.level is Level.PROBLEM]

    def as_json(self) -> dict[str, Any]:
        """Return one JSON object; its `fit` is False where training would trip over a problem."""
        return {**asdict(self), "fit": not self.problems}
