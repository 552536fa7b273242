"""Open the player of a policy: our own loop, or the user's agent program."""

from __future__ import annotations

import shlex
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from mcp_rl.errors import ConfigError
from mcp_rl.inference.openai_api.prompts import Prompts
from mcp_rl.rollouts.player import Player, PlayerOptions, SettingPlayer
from mcp_rl.system.threads import cpu_limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
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


@asynccontextmanager
async def opened_player(
    agent: AgentOptions | None,
    engine: Engine,
    chat: ChatFormat,
    sessions: Sessions,
    *,
    system_prompt: str | None = None,
    **options: Unpack[PlayerOptions],
) -> AsyncIterator[SettingPlayer]:
    """Open a player that samples a policy; without `agent` by our own loop. Raises ConfigError."""
    if agent is None:
        yield Player(engine, chat, sessions, system_prompt=system_prompt, **options)
        return
    from mcp_rl.rollouts.agents.endpoint import AgentEndpoint  # imports the MCP SDK and a web server
    from mcp_rl.rollouts.agents.program import Agent, AgentEpisode, AgentSetting

    most = PROGRAMS_PER_CPU * cpu_limit()
    options["concurrency"] = min(options.get("concurrency", most), most)
    options["driver"] = AgentEpisode
    async with AgentEndpoint(agent.say).open() as endpoint:
        shared = Agent(agent_command(agent.command), endpoint, engine, Prompts(chat), agent.logs)
        yield SettingPlayer(partial(AgentSetting, shared), sessions, **options)


def agent_command(text: str) -> tuple[str, ...]:
    """Split the command of an agent program. Raises ConfigError if it cannot be started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"The agent {text!r} is not a command: {error}.") from error
    if not words:
        raise ConfigError('The agent is an empty command: name a program, such as --agent "python my_agent.py".')
    if shutil.which(words[0]) is None:
        interpreter = f'start it with its interpreter, such as "python {words[0]}"'
        hint = interpreter if Path(words[0]).is_file() else "check its name and PATH"
        raise ConfigError(f"The agent's command {words[0]!r} cannot be run: {hint}.")
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    if script.endswith(".py") and not Path(script).is_file():
        raise ConfigError(f"The agent's program {script!r} does not exist in {Path.cwd()}.")
    return tuple(words)
