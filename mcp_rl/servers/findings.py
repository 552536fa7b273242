"""What a check finds: each thing with how bad it is, what it means for training, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mcp_rl.config import Isolation


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    """It was tried, and is as it should be."""
    NOTE = "note"
    """Training works; whoever trains should know."""
    PROBLEM = "problem"
    """Training would trip over it."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found out."""

    level: Level
    check: str
    """What was looked at, in a word: schemas, calls, errors, results, determinism, annotations, concurrency, reset,
    isolation, shutdown, stdout."""
    what: str
    """What was seen, in a sentence."""
    means: str = ""
    """What follows from it for training; empty where it is fine."""
    do: str = ""
    """What to do about it."""
    tools: tuple[str, ...] = ()


def ok(check: str, what: str) -> Finding:
    return Finding(Level.OK, check, what)


def note(check: str, what: str, means: str = "", do: str = "", tools: Sequence[str] = ()) -> Finding:
    return Finding(Level.NOTE, check, what, means, do, tuple(tools))


def problem(check: str, what: str, means: str, do: str, tools: Sequence[str] = ()) -> Finding:
    return Finding(Level.PROBLEM, check, what, means, do, tuple(tools))


@dataclass
class ToolTrial:
    """What became of the calls of one tool."""

    name: str
    calls: int = 0
    worked: int = 0
    refused: int = 0
    """Calls that the tool or the server reported an error about."""
    faults: int = 0
    """Calls without an answer."""
    median_seconds: float | None = None
    p95_seconds: float | None = None
    not_called: str | None = None
    """Why it was not called."""
    resets: bool = False
    """Whether it is the tool that puts the state back."""


@dataclass
class Report:
    """All that a check found out about one server."""

    name: str
    origin: str
    transport: str
    server_info: dict[str, str]
    isolation: Isolation
    isolation_reason: str
    schema_hash: str
    seconds: dict[str, float] = field(default_factory=dict)
    """What took how long: connect (from starting the process to the listing), list, reset, close."""
    tools: list[ToolTrial] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """What training would trip over."""
        return [finding for finding in self.findings if finding.level is Level.PROBLEM]

    def as_json(self) -> dict[str, Any]:
        """One JSON object; `fit` is False where training would trip."""
        from dataclasses import asdict

        return {**asdict(self), "fit": not self.problems}
