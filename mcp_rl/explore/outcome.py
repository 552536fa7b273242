"""The outcome of a successful call."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcp_rl.explore.answer import Answer, call_key
from mcp_rl.explore.parts import Part, parts_of


@dataclass(frozen=True)
class Outcome:
    """A call that succeeded, with its result."""

    tool: str
    arguments: dict[str, Any]
    text: str
    answer: Answer
    lasts: bool = True
    """False if another process gives another result."""

    @cached_property
    def key(self) -> str:
        return call_key(self.tool, self.arguments)

    @cached_property
    def parts(self) -> list[Part]:
        return parts_of(self.text) if self.lasts else []
