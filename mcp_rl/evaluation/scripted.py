"""Models that follow a script: the best and the least that is possible on some scenarios.

`scripted:reference` plays each scenario's own solution, so a failure shows a mistake in the scenario, its verifier or
the limits. `scripted:refuse` makes no call and refuses, so a success can be had for nothing.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion
from mcp_rl.rewards.answers import as_written
from mcp_rl.rollouts.speaker import Limits, SaidTurn
from mcp_rl.toolserver.tools.results import truncate_middle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp_rl.rollouts.agents.demonstrating import Said, Script
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session
    from mcp_rl.trajectory import Trajectory

REFUSAL = "I cannot do this with the tools that I have."
_DONE = "It is done."


def reference(scenario: McpScenario, session: Session) -> list[Said]:
    """Make the reference calls, one in each turn, and give the expected answer."""
    names = session.schemas.to_openai
    calls = [ParsedCall(names.get(call.tool, call.tool), dict(call.arguments)) for call in scenario.reference]
    return [*(("", [call]) for call in calls), _submission(scenario, session, _expected_answer(scenario))]


def refuse(scenario: McpScenario, session: Session) -> list[Said]:
    """Make no call, and refuse."""
    return [_submission(scenario, session, REFUSAL)]


SCRIPTS: dict[str, Script] = {"reference": reference, "refuse": refuse}


@dataclass(frozen=True)
class ScriptedSetting:
    """The script and the server session of one rollout."""

    script: Script
    session: Session
    system_prompt: str | None = None

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator[ScriptedSpeaker]:
        yield ScriptedSpeaker(self.script(scenario, self.session))


class ScriptedSpeaker:
    """Says one turn of the script after another and repeats the last one. It has no tokens."""

    def __init__(self, turns: Sequence[Said]) -> None:
        self.sampled = 0
        self._turns = list(turns)
        self._said = 0

    async def turn(self, new: Sequence[dict[str, Any]]) -> SaidTurn:
        await checkpoint()
        text, calls = self._turns[min(self._said, len(self._turns) - 1)]
        self._said += 1
        return SaidTurn(ParsedCompletion(text, calls), text)

    def cut(self, text: str, limit: int) -> str:
        """Cut a text to `limit` bytes, the least that so many tokens can be."""
        return truncate_middle(text, limit, lambda part: len(part.encode()), "bytes")


def _expected_answer(scenario: McpScenario) -> str:
    verifier = scenario.verifier
    if verifier is not None and verifier.kind == "none":
        says = verifier.options.get("says")
        return str(says[0]) if isinstance(says, list) and says else REFUSAL
    if verifier is not None and verifier.kind == "number" and isinstance(verifier.expected, int | float):
        # as the result has it: to copy "1,835.00" is easier than to turn it into 1835.0
        return as_written(scenario.reference_answer or "", verifier.expected) or str(verifier.expected)
    if verifier is not None and verifier.kind in ("number", "text"):
        return str(verifier.expected)
    if verifier is not None and verifier.kind in ("calls", "state"):
        return _DONE  # what is said does not count, and a model that imitates it has least to learn
    return scenario.reference_answer or _DONE


def _submission(scenario: McpScenario, session: Session, answer: str) -> Said:
    tool = scenario.verifier.submit_tool if scenario.verifier else None
    if tool is None:
        return answer, []
    return "", [ParsedCall(session.schemas.to_openai.get(tool, tool), {"answer": answer})]
