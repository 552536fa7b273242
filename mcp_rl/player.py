"""Plays scenarios: the fixed parts of all rollouts of a run (policy, format, tool sessions, limits) in one place."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypedDict, Unpack

import anyio

from mcp_rl.activity import Activity, during
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import RolloutConfig
from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.inference.engine import Engine
from mcp_rl.rollout import play, unreachable
from mcp_rl.scenario import McpScenario, ServerParams
from mcp_rl.speaker import Limits, Setting, World
from mcp_rl.toolserver.caller import calling_as
from mcp_rl.trajectory import Trajectory

if TYPE_CHECKING:
    from mcp_rl.toolserver.pool import Session, Sessions


def limits_of(config: RolloutConfig) -> Limits:
    """The limits that a run's settings put on each rollout; those of its calls are the connection's."""
    return Limits(
        max_turns=config.max_turns,
        max_turn_tokens=config.max_turn_tokens,
        max_tokens=config.max_tokens,
        max_tool_calls=config.max_tool_calls,
        max_result_tokens=config.max_result_tokens,
        seconds=config.deadline,
    )


class PlayerOptions(TypedDict, total=False):
    """What a player may be told besides its model."""

    params: ServerParams | None
    temperature: float
    limits: Limits | None
    concurrency: int
    finish: Callable[[McpScenario, Trajectory], Awaitable[None] | None]


class SettingPlayer:
    """`play(scenario, seed)` with everything else decided.

    `setting` makes of an open session what a rollout touches: the model that speaks, and the session's tools.

    `params` is the server to use for all of them, None for each scenario's own. At most `concurrency` rollouts are in
    flight. `finish` gets every trajectory as it ends, to score it; what it returns is awaited, unless it is None. Where
    `sessions` are not shared, each rollout has its own state of the server.
    """

    def __init__(
        self,
        setting: Callable[["Session"], Setting],
        sessions: "Sessions",
        *,
        params: ServerParams | None = None,
        temperature: float = 1.0,
        limits: Limits | None = None,
        concurrency: int = 256,
        finish: Callable[[McpScenario, Trajectory], Awaitable[None] | None] = lambda scenario, trajectory: None,
    ) -> None:
        self.temperature = temperature
        self._setting = setting
        self._sessions = sessions
        self._params = params
        self._limits = limits or Limits()
        self._finish = finish
        self._in_flight = anyio.Semaphore(concurrency)

    async def play(self, scenario: McpScenario, seed: int, temperature: float | None = None) -> Trajectory:
        """One rollout; `temperature` is the player's own where None. A server that cannot be reached is a fault."""
        async with self._in_flight:
            with calling_as(f"{scenario.id}/{seed}"):
                trajectory = await self._play(scenario, seed, self.temperature if temperature is None else temperature)
        with during(Activity.JUDGING):
            if (scoring := self._finish(scenario, trajectory)) is not None:
                await scoring
        return trajectory

    async def _play(self, scenario: McpScenario, seed: int, temperature: float) -> Trajectory:
        params = self._params or scenario.server_params
        try:
            async with self._sessions.lease(params, scenario.initial_state) as lease:
                trajectory = await self._play_on(lease.session, scenario, seed, temperature)
                lease.spoilt = not trajectory.stop_reason.trainable
                return trajectory
        except (ServerFault, ServerError) as error:
            return unreachable(scenario, seed, error)

    async def _play_on(self, session: "Session", scenario: McpScenario, seed: int, temperature: float) -> Trajectory:
        return await play(self._setting(session), scenario, seed=seed, temperature=temperature, limits=self._limits)


class Player(SettingPlayer):
    """Plays with a policy: an engine that samples, and the chat format that it speaks. `options` are the base's."""

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        sessions: "Sessions",
        *,
        system_prompt: str | None = None,
        **options: Unpack[PlayerOptions],
    ) -> None:
        super().__init__(lambda session: World(engine, chat, session, system_prompt), sessions, **options)
        self.engine = engine
