"""Our own loop: the model says a turn, its calls run on the server, their results are its next messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ContextOverflow, EngineError, RunStop, ServerFault
from mcp_rl.rollouts.episode import EpisodeInProgress
from mcp_rl.rollouts.user import user_of
from mcp_rl.system.periods import timed
from mcp_rl.toolserver.elicitation import answered_by
from mcp_rl.trajectory import CallRecord, StopReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.inference.chat.calls import ParsedCall
    from mcp_rl.rollouts.episode import EpisodePlan
    from mcp_rl.rollouts.speaker import SaidTurn, Setting, Speaker
    from mcp_rl.rollouts.user import PlaysUsers

_LAST_TURN = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS)


class OwnLoop(EpisodeInProgress):
    """Our own loop: the model says a turn, its calls run, their results are its next messages.

    A message without a call ends it, unless the scenario has a user who answers. `user_model` plays simulated users.
    """

    def __init__(self, plan: EpisodePlan, *, user_model: PlaysUsers | None = None) -> None:
        super().__init__(plan)
        self.setting: Setting = plan.setting
        self._user = user_of(plan.scenario, self.trajectory, user_model)

    async def _drive(self) -> StopReason:
        try:
            async with self.setting.speaker(self.scenario, self.trajectory, self.temperature, self.limits) as speaker:
                with answered_by(self._user.forms if self._user else None):
                    return await self._turns(speaker)
        except ContextOverflow:
            return StopReason.CONTEXT_FULL

    async def _turns(self, speaker: Speaker) -> StopReason:
        new = self.trajectory.messages
        while True:
            with timed() as period:
                said = await speaker.turn(new)
            self.trajectory.turns += 1
            self.trajectory.turn_unix_seconds.append(period())
            self._record_turn(said)
            calls = said.parsed.calls
            stop = self._stop(said.cut_off, len(calls), speaker.sampled)
            if stop is StopReason.ANSWERED and self._user is not None:
                reply = await self._user.reply(self.trajectory.messages)
                if reply is not None:
                    if end := self._no_room(speaker.sampled):
                        return end
                    new = [{"role": "user", "content": reply}]
                    self.trajectory.messages += new
                    continue
            if stop and not (stop in _LAST_TURN and self._may_end(calls)):
                if stop is not StopReason.ANSWERED:
                    self.trajectory.calls += [self._unsent(call) for call in calls]
                return stop
            new = await self._execute(speaker, calls)
            if self._has_ended(self.trajectory.calls[-len(calls) :]):
                return StopReason.ANSWERED
            if stop:
                return stop

    def _may_end(self, calls: Sequence[ParsedCall]) -> bool:
        """Return whether a call may hand in the answer or make a game's last move."""
        ending = {self.submit_tool, *(self.session.seats.yields if self.session.seats else ())} - {None}
        return any(self.session.schemas.to_server.get(call.name) in ending for call in calls)

    def _has_ended(self, records: Sequence[CallRecord]) -> bool:
        """Return whether a call handed in the answer, which is recorded, or ended the server's game."""
        if self.submit_tool is not None and self.record_submission(records):
            return True
        seats = self.session.seats
        return seats is not None and any(
            record.tool in seats.yields and not record.is_error and seats.over(record.structured) for record in records
        )

    def _stop(self, cut_off: StopReason | None, calls: int, sampled: int) -> StopReason | None:
        if cut_off:
            return cut_off
        if not calls:
            return StopReason.ANSWERED
        if len(self.trajectory.calls) + calls > self.limits.max_tool_calls:
            return StopReason.MAX_TOOL_CALLS
        return self._no_room(sampled)

    def _no_room(self, sampled: int) -> StopReason | None:
        """Return the limit that leaves no room for another turn, if one does."""
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
        records = [self.check(call) for call in calls]
        self.trajectory.calls += records
        waiting = [record for record in records if record.sent]
        if len(waiting) > 1 and all(record.reads_only for record in waiting):
            faults: dict[int, ServerFault | EngineError | RunStop] = {}
            async with anyio.create_task_group() as tasks:
                for index, record in enumerate(waiting):
                    tasks.start_soon(self._call_or_keep_fault, speaker, record, index, faults)
            if faults:
                stops = [index for index, fault in faults.items() if isinstance(fault, RunStop)]
                raise faults[min(stops or faults)]
        else:
            for record in waiting:
                await self.call(speaker.cut, record)
        messages = [
            {"role": "tool", "tool_call_id": _call_id(first + i), "name": record.name, "content": record.result}
            for i, record in enumerate(records)
        ]
        self.trajectory.messages += messages
        return messages

    async def _call_or_keep_fault(
        self, speaker: Speaker, record: CallRecord, index: int, faults: dict[int, ServerFault | EngineError | RunStop]
    ) -> None:
        try:
            await self.call(speaker.cut, record)
        except (ServerFault, EngineError, RunStop) as fault:
            faults[index] = fault

    def _unsent(self, call: ParsedCall) -> CallRecord:
        record = self.check(call)
        record.sent = False
        return record


def _call_id(number: int) -> str:
    return f"call_{number}"


def _tool_call(number: int, call: ParsedCall, text: str) -> dict[str, Any]:
    """Return a call in OpenAI's form. If its JSON is unreadable, the arguments are the model's whole turn."""
    arguments = text if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
    return {"id": _call_id(number), "type": "function", "function": {"name": call.name, "arguments": arguments}}
