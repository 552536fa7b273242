"""Play one scenario once: the model samples a turn, its tool calls run on the live server, the results go back.

A rollout is a pure function of (engine, tools, scenario, seed). It never raises for what happens in it: the model's
mistakes become tool messages, the world's become a fault on the trajectory. `speaker.py` holds the model's side.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from mcp_rl.errors import ContextOverflow, RunStop, ServerError, ServerFault
from mcp_rl.rollouts.episode import EpisodeInProgress, fault_text
from mcp_rl.rollouts.speaker import Limits, PolicySetting, SaidTurn, Setting, Speaker, Surroundings
from mcp_rl.rollouts.user import user_of
from mcp_rl.scenario import McpScenario
from mcp_rl.system.periods import timed
from mcp_rl.toolserver.caller import calling_as
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from mcp_rl.inference.chat.calls import ParsedCall
    from mcp_rl.model import TrainableModel
    from mcp_rl.rollouts.user import PlaysUsers
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session


Driver = Callable[[Any, McpScenario, int, float, Limits], EpisodeInProgress]
"""Makes the episode of a setting, a scenario, a seed, a temperature and limits."""
_LAST_TURN = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS)


def derive_seed(*parts: object) -> int:
    """Derive a seed in [0, 2^63) from all parts and nothing else."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


async def play(
    setting: Surroundings,
    scenario: McpScenario,
    *,
    seed: int,
    temperature: float = 1.0,
    limits: Limits | None = None,
    driver: Driver | None = None,
) -> Trajectory:
    """Play one scenario, then make the verifier's own calls. Raises nothing but cancellation and RunStop.

    `driver` makes the episode of a setting; None: our own loop, for which the setting is a `Setting`.
    """
    if scenario.verifier is not None and (submit_tool := scenario.verifier.submit_tool):
        setting = replace(cast("Any", setting), session=setting.session.offering(submit_tool))
    episode = (driver or OwnLoop)(cast("Any", setting), scenario, seed, temperature, limits or Limits())
    with timed() as period, episode.allowance.limiting():
        await episode.play()
    if episode.allowance.exceeded:
        episode.trajectory.stop_reason = StopReason.TIMEOUT
    episode.trajectory.seconds = episode.allowance.spent
    episode.trajectory.unix_seconds = period()
    return episode.trajectory


async def play_leased(
    setting: Callable[[Session], Surroundings],
    sessions: Sessions,
    scenario: McpScenario,
    *,
    seed: int,
    params: ServerParams | None = None,
    temperature: float = 1.0,
    limits: Limits | None = None,
    driver: Driver | None = None,
) -> Trajectory:
    """Lease a session for one rollout and play the scenario on it.

    `setting` turns the session into what a rollout uses, and `driver` that into its episode, as in `play`; `params`
    names the server, None for the scenario's own. A
    session goes back spoilt after a fault or a timeout. A server that cannot be reached makes a faulted trajectory.
    """
    try:
        with calling_as(f"{scenario.id}/{seed}"):
            async with sessions.episode(params or scenario.server_params, scenario.initial_state) as lease:
                trajectory = await play(
                    setting(lease.session),
                    scenario,
                    seed=seed,
                    temperature=temperature,
                    limits=limits,
                    driver=driver,
                )
                lease.spoilt = not trajectory.stop_reason.trainable
                return trajectory
    except (ServerFault, ServerError) as error:
        return Trajectory(scenario_id=scenario.id, seed=seed, stop_reason=StopReason.FAULT, fault=fault_text(error))


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


class OwnLoop(EpisodeInProgress):
    """Our own loop: the model says a turn, its calls run, their results are its next messages.

    A message without a call ends it, unless the scenario has a user who answers. `user_model` plays simulated users.
    """

    def __init__(
        self,
        setting: Setting,
        scenario: McpScenario,
        seed: int,
        temperature: float,
        limits: Limits,
        *,
        user_model: PlaysUsers | None = None,
    ) -> None:
        super().__init__(setting, scenario, seed, temperature, limits)
        self.setting = setting
        self._user = user_of(scenario, self.trajectory, user_model) if scenario.has_user else None

    async def _drive(self) -> StopReason:
        try:
            async with self.setting.speaker(self.scenario, self.trajectory, self.temperature, self.limits) as speaker:
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
            if stop and not (stop in _LAST_TURN and self._submits(calls)):
                if stop is not StopReason.ANSWERED:
                    self.trajectory.calls += [self._unsent(call) for call in calls]
                return stop
            new = await self._execute(speaker, calls)
            if self.submit_tool is not None:
                if self.record_submission(self.trajectory.calls[-len(calls) :]):
                    return StopReason.ANSWERED
                if stop:
                    return stop

    def _submits(self, calls: Sequence[ParsedCall]) -> bool:
        return self.submit_tool is not None and any(
            self.session.schemas.to_server.get(call.name) == self.submit_tool for call in calls
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
            faults: dict[int, ServerFault | RunStop] = {}
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
        self, speaker: Speaker, record: CallRecord, index: int, faults: dict[int, ServerFault | RunStop]
    ) -> None:
        try:
            await self.call(speaker.cut, record)
        except (ServerFault, RunStop) as fault:
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
