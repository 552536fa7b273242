"""Plays scenarios: the fixed parts of all rollouts of a run (policy, format, tool sessions, limits) in one place."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.inference.engine import Engine
from mcp_rl.rollout import Limits, World, play, unreachable
from mcp_rl.scenario import McpScenario, ServerParams
from mcp_rl.trajectory import Trajectory

if TYPE_CHECKING:
    from mcp_rl.toolserver.pool import Session, Sessions


class Player:
    """`play(scenario, seed)` with everything else decided.

    `params` is the server to use for all of them, None for each scenario's own. At most `concurrency` rollouts are in
    flight. `finish` gets every trajectory as it ends, to score it; what it returns is awaited, unless it is None. Where
    `sessions` are not shared, each rollout has its own state of the server.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        sessions: "Sessions",
        *,
        params: ServerParams | None = None,
        temperature: float = 1.0,
        limits: Limits | None = None,
        system_prompt: str | None = None,
        concurrency: int = 256,
        finish: Callable[[McpScenario, Trajectory], Awaitable[None] | None] = lambda scenario, trajectory: None,
    ) -> None:
        self.engine = engine
        self.temperature = temperature
        self._chat = chat
        self._sessions = sessions
        self._params = params
        self._limits = limits or Limits()
        self._system_prompt = system_prompt
        self._finish = finish
        self._in_flight = anyio.Semaphore(concurrency)

    async def play(self, scenario: McpScenario, seed: int, temperature: float | None = None) -> Trajectory:
        """One rollout; `temperature` is the player's own where None. A server that cannot be reached is a fault."""
        async with self._in_flight:
            trajectory = await self._play(scenario, seed, self.temperature if temperature is None else temperature)
        if (scoring := self._finish(scenario, trajectory)) is not None:
            await scoring
        return trajectory

    async def _play(self, scenario: McpScenario, seed: int, temperature: float) -> Trajectory:
        params = self._params or scenario.server_params
        try:
            if self._sessions.shared:
                return await self._play_on(await self._sessions.get(params), scenario, seed, temperature)
            async with self._sessions.lease(params, scenario.initial_state) as lease:
                trajectory = await self._play_on(lease.session, scenario, seed, temperature)
                lease.spoilt = not trajectory.stop_reason.trainable
                return trajectory
        except (ServerFault, ServerError) as error:
            return unreachable(scenario, seed, error)

    async def _play_on(self, session: "Session", scenario: McpScenario, seed: int, temperature: float) -> Trajectory:
        world = World(self.engine, self._chat, session, self._system_prompt)
        return await play(world, scenario, seed=seed, temperature=temperature, limits=self._limits)
