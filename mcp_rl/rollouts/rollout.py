"""Play one scenario once: the model samples a turn, its tool calls run on the live server, the results go back.

A rollout is a pure function of (engine, tools, scenario, seed). It never raises for what happens in it: the model's
mistakes become tool messages, the world's become a fault on the trajectory. `speaker.py` holds the model's side.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from mcp_rl.errors import ContextOverflow, EngineError, RunStop, ServerError, ServerFault
from mcp_rl.rollouts.speaker import Limits, PolicySetting, SaidTurn, Setting, Speaker
from mcp_rl.system.activity import Activity, during
from mcp_rl.system.allowance import Allowance
from mcp_rl.system.redaction import without_secrets
from mcp_rl.toolserver.caller import calling_as
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from mcp_rl.inference.chat.calls import ParsedCall
    from mcp_rl.model import TrainableModel
    from mcp_rl.scenario import McpScenario, ServerParams, ToolCall
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session


_LAST_TURN = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS)


def derive_seed(*parts: object) -> int:
    """Derive a seed in [0, 2^63) from all parts and nothing else."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


async def play(
    setting: Setting, scenario: McpScenario, *, seed: int, temperature: float = 1.0, limits: Limits | None = None
) -> Trajectory:
    """Play one scenario, then make the verifier's own calls. Raises nothing but cancellation and RunStop."""
    if scenario.verifier is not None and (submit_tool := scenario.verifier.submit_tool):
        setting = replace(cast("Any", setting), session=setting.session.offering(submit_tool))
    conversation = _Conversation(setting, scenario, seed, temperature, limits or Limits())
    with conversation.allowance.limiting():
        await conversation.play()
    if conversation.allowance.exceeded:
        conversation.trajectory.stop_reason = StopReason.TIMEOUT
    conversation.trajectory.seconds = conversation.allowance.spent
    return conversation.trajectory


async def play_leased(
    setting: Callable[[Session], Setting],
    sessions: Sessions,
    scenario: McpScenario,
    *,
    seed: int,
    params: ServerParams | None = None,
    temperature: float = 1.0,
    limits: Limits | None = None,
) -> Trajectory:
    """Lease a session for one rollout and play the scenario on it.

    `setting` turns the session into what a rollout uses; `params` names the server, None for the scenario's own. A
    session goes back spoilt after a fault or a timeout. A server that cannot be reached makes a faulted trajectory.
    """
    try:
        with calling_as(f"{scenario.id}/{seed}"):
            async with sessions.episode(params or scenario.server_params, scenario.initial_state) as lease:
                trajectory = await play(
                    setting(lease.session), scenario, seed=seed, temperature=temperature, limits=limits
                )
                lease.spoilt = not trajectory.stop_reason.trainable
                return trajectory
    except (ServerFault, ServerError) as error:
        return Trajectory(scenario_id=scenario.id, seed=seed, stop_reason=StopReason.FAULT, fault=_fault_text(error))


class Rollout:
    """A rollout still to be played: await it, or pass it to `gather_trajectory_groups`. Made by `rollout`."""

    def __init__(
        self,
        model: TrainableModel[Any],
        scenario: McpScenario,
        seed: int | None,
        temperature: float,
        limits: Limits | None,
        system_prompt: str | None,
    ) -> None:
        self.model, self.scenario, self.seed = model, scenario, seed
        self.temperature, self.limits, self.system_prompt = temperature, limits, system_prompt

    def __await__(self) -> Generator[Any, None, Trajectory]:
        return self.attempt(0, 0).__await__()

    async def attempt(self, member: int, attempt: int) -> Trajectory:
        """Play the rollout as one member of a group. Without a seed, and on a retry, both numbers decide the seed."""
        from mcp_rl.toolserver.pool import sessions_in_use  # imports the MCP SDK

        engine, seed = self.model.engine, self.seed
        if seed is None or attempt:
            seed = derive_seed(self.scenario.id, self.scenario.seed, seed, engine.version, member, attempt)
        setting = functools.partial(PolicySetting, engine, self.model.chat, system_prompt=self.system_prompt)
        async with sessions_in_use() as sessions:
            return await play_leased(
                setting, sessions, self.scenario, seed=seed, temperature=self.temperature, limits=self.limits
            )


def rollout(
    model: TrainableModel[Any],
    scenario: McpScenario,
    *,
    seed: int | None = None,
    temperature: float = 1.0,
    limits: Limits | None = None,
    system_prompt: str | None = None,
) -> Rollout:
    """Make a rollout of a registered model on the scenario's server; awaiting it returns the unscored Trajectory.

    Without a `seed`, the place in the group and the policy's step decide the random numbers. For rollouts to train on,
    `temperature` must be the backend's. The server stays open between rollouts inside `async with Sessions():`, and
    during one `gather_trajectory_groups`.
    """
    return Rollout(model, scenario, seed, temperature, limits, system_prompt)


def _fault_text(error: Exception) -> str:
    """Return a fault's text without secrets, since it may quote a server that told its own."""
    return without_secrets(str(error))


class _Conversation:
    """A rollout in progress: the conversation, and the trajectory that grows with it."""

    def __init__(self, setting: Setting, scenario: McpScenario, seed: int, temperature: float, limits: Limits) -> None:
        self.setting = setting
        self.scenario = scenario
        self.limits = limits
        self.allowance = Allowance(limits.seconds)
        self.temperature = temperature
        self.max_turns = min(scenario.max_turns, limits.max_turns or scenario.max_turns)
        self.submit_tool = scenario.verifier.submit_tool if scenario.verifier else None
        self.trajectory = Trajectory(scenario_id=scenario.id, seed=seed)
        opening = [{"role": "system", "content": setting.system_prompt}] if setting.system_prompt else []
        self.trajectory.messages = [*opening, {"role": "user", "content": scenario.task_description}]

    async def play(self) -> None:
        trajectory = self.trajectory
        try:
            trajectory.stop_reason = await self._converse()
            if self.scenario.verifier is not None and (reads := self.scenario.verifier.reads):
                await self._make_reads(reads)
        except RunStop:
            raise
        except (ServerFault, EngineError) as fault:
            trajectory.stop_reason, trajectory.fault = StopReason.FAULT, _fault_text(fault)

    async def _converse(self) -> StopReason:
        try:
            async with self.setting.speaker(self.scenario, self.trajectory, self.temperature, self.limits) as speaker:
                return await self._turns(speaker)
        except ContextOverflow:
            return StopReason.CONTEXT_FULL

    async def _make_reads(self, reads: Sequence[ToolCall]) -> None:
        """Make the verifier's calls, one after another, and record their results."""
        session = self.setting.session
        for call in reads:
            if call.tool not in session.tool_names:
                raise ServerFault(f"The scenario's verifier calls the tool {call.tool!r}, which the server lacks.")
            with during(Activity.TOOLS):
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
                )
            )

    async def _turns(self, speaker: Speaker) -> StopReason:
        new = self.trajectory.messages
        while True:
            said = await speaker.turn(new)
            self.trajectory.turns += 1
            self._record_turn(said)
            calls = said.parsed.calls
            stop = self._stop(said.cut_off, len(calls), speaker.sampled)
            if stop and not (stop in _LAST_TURN and self._submits(calls)):
                if stop is not StopReason.ANSWERED:
                    self.trajectory.calls += [self._unsent(call) for call in calls]
                return stop
            new = await self._execute(speaker, calls)
            if self.submit_tool is not None:
                if self._record_submission(self.trajectory.calls[-len(calls) :]):
                    return StopReason.ANSWERED
                if stop:
                    return stop

    def _submits(self, calls: Sequence[ParsedCall]) -> bool:
        return self.submit_tool is not None and any(
            self.setting.session.schemas.to_server.get(call.name) == self.submit_tool for call in calls
        )

    def _record_submission(self, records: Sequence[CallRecord]) -> bool:
        """Record the answer if one of these calls handed it in; return whether there is an answer."""
        for record in records:
            if record.tool == self.submit_tool and not record.is_error and record.arguments is not None:
                answer = record.arguments.get("answer", record.arguments)
                self.trajectory.submission = answer if isinstance(answer, str) else json.dumps(answer)
        return self.trajectory.submission is not None

    def _stop(self, cut_off: StopReason | None, calls: int, sampled: int) -> StopReason | None:
        if cut_off:
            return cut_off
        if not calls:
            return StopReason.ANSWERED
        if len(self.trajectory.calls) + calls > self.limits.max_tool_calls:
            return StopReason.MAX_TOOL_CALLS
        if self.trajectory.turns >= self.max_turns:
            return StopReason.MAX_TURNS
        return StopReason.MAX_TOKENS if sampled >= self.limits.max_tokens else None

    def _record_turn(self, said: SaidTurn) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": said.parsed.content}
        if said.parsed.thought:
            message["reasoning_content"] = said.parsed.thought
        if calls := said.parsed.calls:
            first = len(self.trajectory.calls)
            message["tool_calls"] = [_tool_call(first + i, call, said.text) for i, call in enumerate(calls)]
        self.trajectory.messages.append(message)

    async def _execute(self, speaker: Speaker, calls: Sequence[ParsedCall]) -> list[dict[str, Any]]:
        """Run the calls of one turn: all at once if every tool only reads, else one after another."""
        first = len(self.trajectory.calls)
        records = [self._check(call) for call in calls]
        self.trajectory.calls += records
        waiting = [record for record in records if record.sent]
        if len(waiting) > 1 and all(record.reads_only for record in waiting):
            faults: dict[int, ServerFault | RunStop] = {}
            async with anyio.create_task_group() as tasks:
                for index, record in enumerate(waiting):
                    tasks.start_soon(self._call_or_keep_fault, speaker, record, index, faults)
            if faults:
                stops = [index for index, fault in faults.items() if isinstance(fault, RunStop)]
                raise faults[min(stops or faults)]
        else:
            for record in waiting:
                await self._call(speaker, record)
        messages = [
            {"role": "tool", "tool_call_id": _call_id(first + i), "name": record.name, "content": record.result}
            for i, record in enumerate(records)
        ]
        self.trajectory.messages += messages
        return messages

    def _check(self, call: ParsedCall) -> CallRecord:
        """Make the call's record: ready to be sent, or refused with a sentence for the model."""
        complaint = call.error
        tool = self.setting.session.schemas.to_server.get(call.name)
        if complaint is None and tool is None:
            complaint = self._unknown_tool(call.name)
        if complaint is None and call.arguments is not None:
            complaint = self.setting.session.schemas.validate(call.name, call.arguments)
        record = CallRecord(
            turn=self.trajectory.turns - 1, name=call.name, tool=tool, arguments=call.arguments, sent=complaint is None
        )
        if complaint is not None:
            record.result, record.is_error = complaint, True
        elif tool == self.submit_tool and tool not in self.setting.session.tool_names:
            record.result, record.sent = "Handed in.", False
        record.reads_only = tool in self.setting.session.read_only
        return record

    def _unknown_tool(self, name: str) -> str:
        names = list(self.setting.session.schemas.to_server)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:10]
        return f"There is no tool named {json.dumps(name, ensure_ascii=False)}. Try one of: {', '.join(near)}."

    async def _call(self, speaker: Speaker, record: CallRecord) -> None:
        assert record.tool is not None and record.arguments is not None
        started = self.allowance.spent
        try:
            with during(Activity.TOOLS):
                result = await self.setting.session.connection.call(
                    record.tool, record.arguments, deadline=self.limits.tool_deadline
                )
        finally:
            record.seconds = self.allowance.spent - started
        record.result = speaker.cut(result.text, self.limits.max_result_tokens)
        record.structured, record.is_error, record.asked = result.structured, result.is_error, list(result.asked)

    async def _call_or_keep_fault(
        self, speaker: Speaker, record: CallRecord, index: int, faults: dict[int, ServerFault | RunStop]
    ) -> None:
        try:
            await self._call(speaker, record)
        except (ServerFault, RunStop) as fault:
            faults[index] = fault

    def _unsent(self, call: ParsedCall) -> CallRecord:
        record = self._check(call)
        record.sent = False
        return record


def _call_id(number: int) -> str:
    return f"call_{number}"


def _tool_call(number: int, call: ParsedCall, text: str) -> dict[str, Any]:
    """Return a call in OpenAI's form. If its JSON is unreadable, the arguments are the model's whole turn."""
    arguments = text if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
    return {"id": _call_id(number), "type": "function", "function": {"name": call.name, "arguments": arguments}}
