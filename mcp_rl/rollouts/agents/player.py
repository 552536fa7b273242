"""Open the player of a policy: our own loop, or the user's agent program."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Unpack

from mcp_rl.inference.openai_api.prompts import Prompts
from mcp_rl.rewards.program import PROGRAM
from mcp_rl.rollouts.agents.command import agent_command
from mcp_rl.rollouts.player import Player, PlayerOptions, SettingPlayer
from mcp_rl.system.threads import cpu_limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
    from mcp_rl.rollouts.agents.demonstrating import Script
    from mcp_rl.toolserver.pool import Sessions

PROGRAMS_PER_CPU = 16
"""Most agent programs at once for each processor: a Python program takes a second of one to start."""


@dataclass(frozen=True)
class AgentOptions:
    """How a run's agent program is started."""

    command: str
    logs: Path
    """Folder of what the programs write to stderr."""
    say: Callable[[str], None]
    rewards: bool = False
    """True if the program must give a reward."""
    said: set[str] = field(default_factory=set)
    """What has been said of the program's requests, so that nothing is said again."""


@asynccontextmanager
async def opened_player(
    agent: AgentOptions | None,
    engine: Engine,
    chat: ChatFormat,
    sessions: Sessions,
    *,
    system_prompt: str | None = None,
    script: Script | None = None,
    **options: Unpack[PlayerOptions],
) -> AsyncIterator[SettingPlayer]:
    """Open a player that samples a policy; without `agent` by our own loop. Raises ConfigError.

    `script` returns turns that an agent program is given in place of the policy's.
    """
    if agent is None:
        yield Player(engine, chat, sessions, system_prompt=system_prompt, **options)
        return
    from mcp_rl.rollouts.agents.endpoint import AgentEndpoint  # imports the MCP SDK and a web server
    from mcp_rl.rollouts.agents.program import Agent, AgentEpisode, AgentSetting

    most = PROGRAMS_PER_CPU * cpu_limit()
    options["concurrency"] = min(options.get("concurrency", most), most)
    options["driver"] = AgentEpisode
    async with AgentEndpoint(agent.say, agent.said).open() as endpoint:
        command = agent_command(agent.command)
        shared = Agent(command, endpoint, engine, Prompts(chat), agent.logs, rewards=agent.rewards, script=script)
        yield SettingPlayer(partial(AgentSetting, shared), sessions, **options)


def agent_options(config: RunConfig, logs: Path, say: Callable[[str], None]) -> AgentOptions | None:
    """Return how a run's agent program is started; None without one."""
    command = config.rollout.agent
    return None if command is None else AgentOptions(command, logs, say, rewards=PROGRAM in config.reward.weights)
