"""Players: the parts that all rollouts of a run share (policy, chat format, tool sessions, limits) in one object."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import anyio

from mcp_rl.rollouts.rollout import Driver, play_leased
from mcp_rl.rollouts.seated import each_seat
from mcp_rl.rollouts.speaker import Limits, PolicySetting, Surroundings
from mcp_rl.system.activity import Activity, during

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_rl.config import RolloutConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
    from mcp_rl.model import PlaysElsewhere
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.trajectory import Trajectory


def limits_of(config: RolloutConfig) -> Limits:
    """Return the limits that a run's settings put on each rollout; the connection limits single calls."""
    return Limits(
        max_turns=config.max_turns,
        max_turn_tokens=config.max_turn_tokens,
        max_thought_tokens=config.max_thought_tokens,
        max_tokens=config.max_tokens,
        max_tool_calls=config.max_tool_calls,
        max_result_tokens=config.max_result_tokens,
        seconds=config.deadline,
    )


class PlayerOptions(TypedDict, total=False):
    """A player's options, apart from its model."""

    params: ServerParams | None
    temperature: float
    limits: Limits | None
    concurrency: int
    driver: Driver | None
    finish: Callable[[McpScenario, Trajectory], Awaitable[None] | None]


class SettingPlayer:
    """Plays scenarios with one model: `play(scenario, seed)`.

    `setting` turns an open session into the setting of a rollout: the model that speaks, and the session's tools.
    `driver` plays it otherwise than by our own loop.

    All scenarios are played on the server `params`, or each on its own if that is None. At most `concurrency` rollouts
    are in flight. `finish` scores each trajectory as it ends; if it returns an awaitable, that is awaited. If the
    sessions are not shared, each rollout has its own state of the server.
    """

    def __init__(
        self,
        setting: Callable[[Session], Surroundings],
        sessions: Sessions,
        *,
        driver: Driver | None = None,
        params: ServerParams | None = None,
        temperature: float = 1.0,
        limits: Limits | None = None,
        concurrency: int = 256,
        finish: Callable[[McpScenario, Trajectory], Awaitable[None] | None] = lambda scenario, trajectory: None,
    ) -> None:
        self.temperature = temperature
        self._setting, self._driver = setting, driver
        self._sessions = sessions
        self._params = params
        self._limits = limits or Limits()
        self.elsewhere: PlaysElsewhere | None = None
        """Plays the rollouts on other machines, in place of this process."""
        self._finish = finish
        self._in_flight = anyio.Semaphore(concurrency)

    async def play(self, scenario: McpScenario, seed: int, temperature: float | None = None) -> Trajectory:
        """Play one rollout; `temperature` None is the player's own. A server that cannot be reached is a fault."""
        temperature = self.temperature if temperature is None else temperature
        async with self._in_flight:
            if self.elsewhere is not None:
                trajectory = await self.elsewhere(scenario, seed, temperature)
            else:
                trajectory = await play_leased(
                    self._setting,
                    self._sessions,
                    scenario,
                    seed=seed,
                    params=self._params,
                    temperature=temperature,
                    limits=self._limits,
                    driver=self._driver,
                )
        with during(Activity.JUDGING):
            for own, played in each_seat(scenario, trajectory):
                if (scoring := self._finish(own, played)) is not None:
                    await scoring
        return trajectory


class Player(SettingPlayer):
    """Plays with a policy: an engine that samples, and the policy's chat format. `options` are SettingPlayer's."""

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        sessions: Sessions,
        *,
        system_prompt: str | None = None,
        **options: Unpack[PlayerOptions],
    ) -> None:
        super().__init__(partial(PolicySetting, engine, chat, system_prompt=system_prompt), sessions, **options)
