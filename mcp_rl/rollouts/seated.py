"""Episodes with several seats: each is a conversation of its own, and all play on one session.

A scenario without seats is played by the plain loop. With seats, the first one is the policy's, and `Opponents` say who
speaks in the others. All trajectories belong to one episode: a fault of one is a fault of all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_rl.errors import ServerFault
from mcp_rl.rollouts.episode import derive_seed
from mcp_rl.rollouts.own_loop import OwnLoop
from mcp_rl.rollouts.turn_taking import TurnTaking
from mcp_rl.system.allowance import Allowance
from mcp_rl.system.tasks import run_all
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.rollouts.episode import DrivenEpisode, EpisodePlan
    from mcp_rl.rollouts.speaker import Setting
    from mcp_rl.rollouts.user import PlaysUsers
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session

POLICY = "policy"
"""The name of the policy that learns, among those who may speak in a seat."""


@dataclass(frozen=True)
class Opponent:
    """Someone who speaks in a seat."""

    name: str = POLICY
    setting: Callable[[Session], Setting] | None = None
    """Turns a session into the setting of its side; None: the policy speaks, and learns from it."""


Opponents = Callable[[str | None, int], Opponent]
"""Return who speaks in a seat, from the name that the scenario gives, if any, and the episode's seed."""


def only_the_policy(named: str | None, seed: int) -> Opponent:
    """Let the policy speak in every seat."""
    return Opponent()


def own_episode(
    plan: EpisodePlan, *, user_model: PlaysUsers | None = None, opponents: Opponents = only_the_policy
) -> DrivenEpisode:
    """Make an episode of our own loop, with several seats if the scenario has them."""
    if plan.scenario.seats:
        return SeatedEpisode(plan, user_model=user_model, opponents=opponents)
    return OwnLoop(plan, user_model=user_model)


class SeatLoop(OwnLoop):
    """Our own loop for one seat: it waits for the seat's turn, and answers a move when the turn comes again."""

    turns: TurnTaking
    name: str

    async def _drive(self) -> StopReason:
        await self.turns.come(self.name)
        if self.turns.over:
            return StopReason.ANSWERED
        if self.turns.seats.view is not None:
            shown = await self.turns.view(self.name)
            self.trajectory.messages[-1]["content"] += f"\n{shown.text}"
        return await super()._drive()

    async def call(self, cut: Callable[[str, int], str], record: CallRecord) -> None:
        await super().call(cut, record)
        if record.tool not in self.turns.seats.yields or record.is_error:
            return
        self.turns.moved(record.structured)
        if self.turns.over:
            return
        await self.turns.come(self.name)
        if self.turns.seats.view is not None:
            shown = await self.turns.view(self.name)
            record.result = cut(shown.text, self.limits.max_result_tokens)
            record.structured = shown.structured


class SeatedEpisode:
    """One try of a scenario with seats: a SeatLoop for each. Its trajectory is the first seat's, which holds the
    others'."""

    def __init__(
        self, plan: EpisodePlan, *, user_model: PlaysUsers | None = None, opponents: Opponents = only_the_policy
    ) -> None:
        session: Session = plan.setting.session
        names = [seat.name for seat in plan.scenario.seats]
        self.allowance = Allowance(plan.limits.seconds)
        self._turns: TurnTaking | None = None
        if session.seats is not None:
            self._turns = TurnTaking(session, session.seats, names, plan.limits.tool_deadline)
        self._loops = [self._loop(index, plan, user_model, opponents) for index in range(len(names))]
        self.trajectory = self._loops[0].trajectory
        self.trajectory.others = [loop.trajectory for loop in self._loops[1:]]

    def _loop(self, index: int, plan: EpisodePlan, user_model: PlaysUsers | None, opponents: Opponents) -> SeatLoop:
        seat, seed = plan.scenario.seats[index], plan.seed
        if index:
            seed = derive_seed("seat", seed, seat.name)
        who = opponents(seat.played_by, seed) if index else Opponent()
        limits, most = plan.limits, seat.max_turns
        if most is not None:
            limits = replace(limits, max_turns=min(most, limits.max_turns or most))
        session = plan.setting.session
        if self._turns is not None:
            handed_in = plan.scenario.verifier.submit_tool if plan.scenario.verifier else None
            session = session.at(seat.name, seat.tools and (*seat.tools, handed_in or ""))
        side = replace(plan.setting, session=session) if who.setting is None else who.setting(session)
        own = replace(plan, setting=side, scenario=at_seat(plan.scenario, seat.name), seed=seed, limits=limits)
        loop = SeatLoop(own, user_model=user_model)
        loop.allowance, loop.name = self.allowance, seat.name
        if self._turns is not None:
            loop.turns = self._turns
        loop.trajectory.seat, loop.trajectory.speaker = seat.name, who.name
        return loop

    async def play(self) -> None:
        """Play all seats side by side. Raises nothing but cancellation and RunStop."""
        played = [self.trajectory, *self.trajectory.others]
        try:
            if self._turns is None:
                raise ServerFault("The scenario has seats, and its server declares none.")
            await self._turns.begin()
            await run_all([functools.partial(self._sit, loop, self._turns) for loop in self._loops])
            for loop in self._loops:
                await self._show_end(loop, self._turns)
        except ServerFault as fault:
            for trajectory in played:
                trajectory.stop_reason, trajectory.fault = StopReason.FAULT, str(fault)
        for trajectory in self.trajectory.others:
            trajectory.seconds = self.allowance.spent

    async def _sit(self, loop: SeatLoop, turns: TurnTaking) -> None:
        """Play one seat to its end. Raises ServerFault for whatever fault ended it."""
        await loop.play()
        if loop.trajectory.stop_reason is StopReason.FAULT:
            raise ServerFault(f"Seat {loop.name} ({loop.trajectory.speaker}): {loop.trajectory.fault}")
        await turns.leave(loop.name)

    async def _show_end(self, loop: SeatLoop, turns: TurnTaking) -> None:
        """Record for the verifier what a seat would see now: the end may have come without a move of its own."""
        if turns.seats.view is None:
            return
        shown, view = await turns.view(loop.name), turns.seats.view
        record = CallRecord(
            turn=loop.trajectory.turns,
            name=view,
            tool=view,
            arguments={},
            result=shown.text,
            structured=shown.structured,
            seconds=shown.seconds,
        )
        loop.trajectory.final_state.append(record)


def at_seat(scenario: McpScenario, name: str) -> McpScenario:
    """Return a scenario as one of its seats sees it: that seat first, with its task. The first seat's is unchanged."""
    own = next(seat for seat in scenario.seats if seat.name == name)
    if own == scenario.seats[0]:
        return scenario
    others = [seat for seat in scenario.seats if seat.name != name]
    return scenario.model_copy(
        update={
            "id": f"{scenario.id}/{name}",
            "task_description": own.task or scenario.task_description,
            "seats": (own, *others),
        }
    )


def each_seat(scenario: McpScenario, trajectory: Trajectory) -> Iterator[tuple[McpScenario, Trajectory]]:
    """Yield an episode's trajectories, each with the scenario as its seat sees it, the first seat's first."""
    yield scenario, trajectory
    for other in trajectory.others:
        assert other.seat is not None
        yield at_seat(scenario, other.seat), other


def with_seats(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return the groups to learn from: each scenario's, then one for each of its other seats in which the policy spoke.

    Trajectories of other speakers are left out, and groups without seats are the same objects as before.
    """
    found = list(groups)
    for group in groups:
        for seat in group.scenario.seats[1:]:
            own = [other for one in group for other in one.others if other.seat == seat.name and _learns(one, other)]
            if own:
                found.append(TrajectoryGroup(scenario=at_seat(group.scenario, seat.name), trajectories=own))
    return found


def _learns(episode: Trajectory, other: Trajectory) -> bool:
    return other.speaker == POLICY and episode.stop_reason.trainable
