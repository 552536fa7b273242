"""A rollout in progress, whoever drives it: the trajectory, the limits, the tool calls, and faults kept as data."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mcp_rl.errors import EngineError, RunStop, ServerFault
from mcp_rl.rewards.outcome import unlike
from mcp_rl.system.activity import Activity, during
from mcp_rl.system.allowance import Allowance
from mcp_rl.system.periods import timed
from mcp_rl.system.redaction import without_secrets
from mcp_rl.toolserver.tools.complaint import unknown_tool
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_rl.inference.chat.calls import ParsedCall
    from mcp_rl.rollouts.speaker import Limits, Surroundings
    from mcp_rl.scenario import McpScenario, ToolCall
    from mcp_rl.toolserver.session import Session


def derive_seed(*parts: object) -> int:
    """Derive a seed in [0, 2^63) from all parts and nothing else."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def fault_text(error: Exception) -> str:
    """Return a fault's text without secrets, since it may quote a server that told its own."""
    return without_secrets(str(error))


@dataclass(frozen=True)
class EpisodePlan:
    """One try of a scenario, still to be played."""

    setting: Any
    """Surroundings that fit the driver: a Setting for our own loop, an AgentSetting for an agent program."""
    scenario: McpScenario
    seed: int
    temperature: float
    limits: Limits


class DrivenEpisode(Protocol):
    """An episode that a driver has made, ready to be played."""

    trajectory: Trajectory
    """The record, filled while the episode is played; with several seats, the first seat's."""
    allowance: Allowance
    """The time that the episode may take."""

    async def play(self) -> None:
        """Play it to its end. Raises nothing but cancellation and RunStop."""
        ...


class EpisodeInProgress(ABC):
    """One conversation on a session. A subclass drives it: our own loop of turns and calls, or an agent program."""

    def __init__(self, plan: EpisodePlan) -> None:
        setting: Surroundings = plan.setting
        scenario, limits = plan.scenario, plan.limits
        self.session: Session = setting.session
        self.scenario = scenario
        self.limits = limits
        self.allowance = Allowance(limits.seconds)
        self.temperature = plan.temperature
        self.max_turns = min(scenario.max_turns, limits.max_turns or scenario.max_turns)
        self.submit_tool = scenario.verifier.submit_tool if scenario.verifier else None
        self.trajectory = Trajectory(scenario_id=scenario.id, seed=plan.seed)
        opening = [{"role": "system", "content": setting.system_prompt}] if setting.system_prompt else []
        self.trajectory.messages = [*opening, {"role": "user", "content": scenario.task_description}]

    async def play(self) -> None:
        """Drive it to its end, then make the verifier's own calls. Raises nothing but cancellation and RunStop."""
        trajectory = self.trajectory
        try:
            trajectory.stop_reason = await self._drive()
            if self.scenario.verifier is not None and (reads := self.scenario.verifier.reads):
                await self._make_reads(reads)
        except RunStop:
            raise
        except (ServerFault, EngineError) as fault:
            trajectory.stop_reason, trajectory.fault = StopReason.FAULT, fault_text(fault)

    @abstractmethod
    async def _drive(self) -> StopReason:
        """Play up to the end of the last turn. Raises ServerFault, EngineError, RunStop."""

    async def _make_reads(self, reads: Sequence[ToolCall]) -> None:
        """Make the verifier's calls, one after another, and record their results; of a state's, up to the first that is
        not as expected."""
        session, verifier = self.session, self.scenario.verifier
        expected: Any = verifier.expected if verifier is not None and verifier.kind == "state" else ()
        for index, call in enumerate(reads):
            if call.tool not in session.tool_names:
                raise ServerFault(f"The scenario's verifier calls the tool {call.tool!r}, which the server lacks.")
            with during(Activity.TOOLS, call.tool), timed() as period:
                result = await session.connection.call(call.tool, call.arguments, deadline=self.limits.tool_deadline)
            self.trajectory.final_state.append(
                CallRecord(
                    turn=self.trajectory.turns,
                    name=call.tool,
                    tool=call.tool,
                    arguments=call.arguments,
                    result=result.text,
                    structured=result.structured,
                    is_error=result.is_error,
                    seconds=result.seconds,
                    unix_seconds=period(),
                )
            )
            read = self.trajectory.final_state[-1]
            if verifier is not None and index < len(expected) and unlike(verifier, expected[index], read):
                return

    def record_submission(self, records: Sequence[CallRecord]) -> bool:
        """Record the answer if one of these calls handed it in; return whether there is an answer."""
        for record in records:
            if record.tool == self.submit_tool and not record.is_error and record.arguments is not None:
                answer = record.arguments.get("answer", record.arguments)
                self.trajectory.submission = answer if isinstance(answer, str) else json.dumps(answer)
        return self.trajectory.submission is not None

    def check(self, call: ParsedCall) -> CallRecord:
        """Make the call's record: ready to be sent, or refused with a sentence for the model."""
        complaint = call.error
        tool = self.session.schemas.to_server.get(call.name)
        if complaint is None and tool is None:
            complaint = unknown_tool(call.name, list(self.session.schemas.to_server))
        if complaint is None and call.arguments is not None:
            complaint = self.session.schemas.validate(call.name, call.arguments)
        record = CallRecord(
            turn=self.trajectory.turns - 1, name=call.name, tool=tool, arguments=call.arguments, sent=complaint is None
        )
        if complaint is not None:
            record.result, record.is_error = complaint, True
        elif tool == self.submit_tool and tool not in self.session.tool_names:
            record.result, record.sent = "Handed in.", False
        record.reads_only = tool in self.session.read_only
        return record

    async def call(self, cut: Callable[[str, int], str], record: CallRecord) -> None:
        """Send a call and keep its result, cut to its limit. Raises ServerFault, RunStop."""
        assert record.tool is not None and record.arguments is not None
        started = self.allowance.spent
        with timed() as period:
            try:
                with during(Activity.TOOLS, record.tool):
                    result = await self.session.connection.call(
                        record.tool, record.arguments, deadline=self.limits.tool_deadline
                    )
            finally:
                record.seconds, record.unix_seconds = self.allowance.spent - started, period()
        record.result = cut(result.text, self.limits.max_result_tokens)
        record.structured, record.is_error, record.asked = result.structured, result.is_error, list(result.asked)
