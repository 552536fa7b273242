"""Models that follow a script: what is the best and what is the least that can be had on some scenarios.

`scripted:reference` plays each scenario's own solution, so whatever it fails is wrong with the scenario, its verifier
or the limits. `scripted:refuse` does nothing and says so, so whatever it passes can be had for nothing.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from mcp_rl.chat.hermes import ParsedCall, ParsedCompletion
from mcp_rl.scenario import McpScenario
from mcp_rl.speaker import Limits, SaidTurn
from mcp_rl.toolserver.results import truncate_middle
from mcp_rl.trajectory import Trajectory

if TYPE_CHECKING:
    from mcp_rl.toolserver.pool import Session

REFUSAL = "I cannot do this with the tools that I have."
Said = tuple[str, list[ParsedCall]]
Script = Callable[[McpScenario, "Session"], list[Said]]
"""The turns of an episode: text and calls of each."""


def reference(scenario: McpScenario, session: "Session") -> list[Said]:
    """The reference calls, one in a turn, and the expected answer."""
    names = session.schemas.to_openai
    calls = [ParsedCall(names.get(call.tool, call.tool), dict(call.arguments)) for call in scenario.reference]
    return [*(("", [call]) for call in calls), _submission(scenario, session, _expected_answer(scenario))]


def refuse(scenario: McpScenario, session: "Session") -> list[Said]:
    """No call, and a refusal."""
    return [_submission(scenario, session, REFUSAL)]


SCRIPTS: dict[str, Script] = {"reference": reference, "refuse": refuse}


@dataclass(frozen=True)
class ScriptedSetting:
    """What a rollout of a script touches."""

    script: Script
    session: "Session"
    system_prompt: str | None = None

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator["ScriptedSpeaker"]:
        yield ScriptedSpeaker(self.script(scenario, self.session))


class ScriptedSpeaker:
    """Says one turn of the script after another, the last one again if asked for more. It has no tokens."""

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
        """As many bytes as `limit` tokens can be at least."""
        return truncate_middle(text, limit, lambda part: len(part.encode()), "bytes")


def _expected_answer(scenario: McpScenario) -> str:
    verifier = scenario.verifier
    if verifier is not None and verifier.kind == "none":
        says = verifier.options.get("says")
        return str(says[0]) if isinstance(says, list) and says else REFUSAL
    if verifier is not None and verifier.kind in ("number", "text"):
        return str(verifier.expected)
    return scenario.reference_answer or "It is done."


def _submission(scenario: McpScenario, session: "Session", answer: str) -> Said:
    tool = scenario.verifier.submit_tool if scenario.verifier else None
    if tool is None:
        return answer, []
    return "", [ParsedCall(session.schemas.to_openai.get(tool, tool), {"answer": answer})]
