"""A user's own function as an opponent: it is asked for each turn of its seat, in this process."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import EngineError
from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion
from mcp_rl.rollouts.agents.command import call_function
from mcp_rl.rollouts.speaker import Limits, SaidTurn
from mcp_rl.system.visible import shortened
from mcp_rl.toolserver.tools.results import truncate_middle

if TYPE_CHECKING:
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session
    from mcp_rl.trajectory import Trajectory


@dataclass(frozen=True)
class AskedTurn:
    """What a function is asked: the next turn of a seat. Its one argument."""

    seat: str
    """The seat's name."""
    messages: list[dict[str, Any]]
    """The seat's conversation so far, as OpenAI chat messages; a copy."""
    tools: Sequence[Mapping[str, Any]]
    """The seat's tools, as OpenAI function schemas."""
    seed: int
    """The seed of the seat in this episode, the same in all of its turns."""


@dataclass(frozen=True)
class FunctionSetting:
    """The function and the server session of one seat."""

    function: Callable[[AskedTurn], Any]
    name: str
    session: Session
    system_prompt: str | None = None

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator[FunctionSpeaker]:
        yield FunctionSpeaker(self, scenario.seats[0].name, trajectory)


class FunctionSpeaker:
    """Asks a function for turns. It has no tokens."""

    def __init__(self, setting: FunctionSetting, seat: str, trajectory: Trajectory) -> None:
        self.sampled = 0
        self._setting, self._seat, self._trajectory = setting, seat, trajectory

    async def turn(self, new: Sequence[dict[str, Any]]) -> SaidTurn:
        """Return the function's turn. Raises EngineError if it fails or returns something else."""
        setting, trajectory = self._setting, self._trajectory
        messages = copy.deepcopy(trajectory.messages)
        asked = AskedTurn(self._seat, messages, setting.session.schemas.openai, trajectory.seed)
        return self._said(await call_function(setting.function, setting.name, asked))

    def cut(self, text: str, limit: int) -> str:
        """Cut a text to `limit` bytes, the least that so many tokens can be."""
        return truncate_middle(text, limit, lambda part: len(part.encode()), "bytes")

    def _said(self, said: Any) -> SaidTurn:
        if isinstance(said, str):
            return SaidTurn(ParsedCompletion(said), said)
        calls = [said] if isinstance(said, Mapping) else said
        if not isinstance(calls, Sequence) or not calls or not all(map(_is_call, calls)):
            raise EngineError(
                f"The function {self._setting.name} must return a text, or calls as "
                f'{{"name": …, "arguments": {{…}}}}, not {shortened(repr(said), 100)}.'
            )
        return SaidTurn(ParsedCompletion("", [ParsedCall(one["name"], dict(one["arguments"])) for one in calls]), "")


def _is_call(one: Any) -> bool:
    return (
        isinstance(one, Mapping)
        and set(one) == {"name", "arguments"}
        and isinstance(one["name"], str)
        and isinstance(one["arguments"], Mapping)
    )
