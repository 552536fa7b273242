"""Play one scenario once: the model samples a turn, its tool calls run on the live server, the results go back.

A rollout is a pure function of (engine, tools, scenario, seed). It never raises for what happens in it: the model's
mistakes become tool messages, the world's become a fault on the trajectory. `speaker.py` holds the model's side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.rollouts.episode import DrivenEpisode, EpisodePlan, fault_text
from mcp_rl.rollouts.episode import derive_seed as derive_seed
from mcp_rl.rollouts.own_loop import OwnLoop as OwnLoop
from mcp_rl.rollouts.seated import own_episode
from mcp_rl.rollouts.speaker import Limits, PolicySetting, Surroundings
from mcp_rl.system.periods import timed
from mcp_rl.toolserver.caller import calling_as
from mcp_rl.trajectory import StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import Generator

    from mcp_rl.model import TrainableModel
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session


Driver = Callable[[EpisodePlan], DrivenEpisode]
"""Makes an episode, which its `play` plays."""


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
    episode = (driver or own_episode)(EpisodePlan(setting, scenario, seed, temperature, limits or Limits()))
    with timed() as period, episode.allowance.limiting():
        await episode.play()
    if episode.allowance.exceeded:
        for trajectory in (episode.trajectory, *episode.trajectory.others):
            trajectory.stop_reason = StopReason.TIMEOUT
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
