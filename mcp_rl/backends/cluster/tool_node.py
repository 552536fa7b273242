"""The actors that play episodes beside their tool servers; only tokens cross the network to an engine.

A tool node resolves `--server` by itself, on its own machine: the command must be there, and offer the tools that the
driver was offered. Its sessions are those of a run on one machine, with the same isolation.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.backends.cluster.actor import ClusterActor
from mcp_rl.backends.cluster.asking import answering
from mcp_rl.backends.cluster.remote_engine import EpisodeOnEngine, RemoteEngine
from mcp_rl.errors import ConfigError, ServerError
from mcp_rl.explore.first_contact import with_states
from mcp_rl.rollouts.player import limits_of
from mcp_rl.rollouts.rollout import play_leased
from mcp_rl.rollouts.seated import own_episode
from mcp_rl.rollouts.speaker import PolicySetting
from mcp_rl.scenario import Launch, ServerGroup, StdioServer
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.pool import open_sessions
from mcp_rl.toolserver.state import MeasuredState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from mcp_rl.backends.cluster.engine_actor import ChatRecipe
    from mcp_rl.config import RunConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.model import EpisodeRecipe
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.trajectory import Trajectory


NOT_OPEN = "it has started anew and is not open yet"
"""How an episode was lost on a tool node that has forgotten everything."""


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode that was played on a tool node."""

    trajectory: Trajectory
    lost: str | None = None
    """How its engine was lost on the way, so that it must be played again; None if it was not."""


@dataclass(frozen=True)
class _Open:
    """The open sessions and all that the episodes share."""

    sessions: Sessions
    params: ServerParams
    chat: ChatFormat
    prompt: str | None
    config: RunConfig


class ToolNode(ClusterActor):
    """A pool of sessions, and the episodes that are played on them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self._open_now: _Open | None = None
        self._owner: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    @answering
    async def check(self, config: RunConfig) -> None:
        """Raise ConfigError or PluginError if this machine lacks the plugins or the command of the server."""
        server = _resolved(config)
        for launch in _launches(server.params(config.transport)):
            if "{" not in launch.command and shutil.which(launch.command) is None:
                raise ConfigError(
                    f"it has no command {launch.command!r}, with which the server {server.name} starts: install it "
                    "there"
                )

    @answering
    async def open(self, recipe: EpisodeRecipe, chat: ChatRecipe) -> None:
        """Open sessions on the server. Raises ServerError if it offers other tools here than it offered the driver."""
        async with self._opening:
            await self._shut()
            opened: asyncio.Future[_Open] = asyncio.get_running_loop().create_future()
            self._ending = asyncio.Event()
            # one task opens and closes the sessions, as their connections want
            self._owner = asyncio.create_task(self._own(recipe, chat, opened))
            self._open_now = await opened

    async def _own(self, recipe: EpisodeRecipe, chat: ChatRecipe, opened: asyncio.Future[_Open]) -> None:
        try:
            async with self._sessions(recipe, chat) as ready:
                opened.set_result(ready)
                await self._ending.wait()
        except Exception as error:
            if not opened.done():
                opened.set_exception(error)

    @asynccontextmanager
    async def _sessions(self, recipe: EpisodeRecipe, chat: ChatRecipe) -> AsyncIterator[_Open]:
        config = recipe.config
        states = {name: MeasuredState.model_validate(state) for name, state in recipe.states.items()}
        server = with_states(_resolved(config), states)
        params = server.params(config.transport)
        deadlines = Deadlines.of_episodes(config)
        made = await asyncio.to_thread(chat.make)
        (self.scratch / "logs").mkdir(exist_ok=True)
        async with open_sessions(server, config.tools, deadlines=deadlines, log_dir=self.scratch / "logs") as sessions:
            session = await sessions.get(params)
            if session.schemas.hash != recipe.schemas and not config.tools.allow_schema_change:
                raise ServerError(
                    f"the server {server.name} offers other tools there than it offered the driver: install the same "
                    "version on all nodes"
                )
            yield _Open(sessions, params, made, server.system_prompt, config)

    @answering
    async def play(self, scenario: McpScenario, seed: int, temperature: float, engine: RemoteEngine) -> PlayedEpisode:
        """Play an episode on a session of this node and on the given engine."""
        now = self._open_now
        if now is None:
            return PlayedEpisode(_nothing(scenario, seed), lost=NOT_OPEN)
        on_engine = EpisodeOnEngine(engine)
        trajectory = await play_leased(
            functools.partial(PolicySetting, on_engine, now.chat, system_prompt=now.prompt),
            now.sessions,
            scenario,
            seed=seed,
            params=now.params,
            temperature=temperature,
            limits=limits_of(now.config.rollout),
            driver=own_episode,
        )
        return PlayedEpisode(trajectory, lost=on_engine.lost)

    @answering
    async def close(self) -> None:
        """End the sessions and their servers."""
        async with self._opening:
            await self._shut()
            self.tidy()

    async def _shut(self) -> None:
        owner, self._owner, self._open_now = self._owner, None, None
        if owner is not None:
            self._ending.set()
            await asyncio.wait([owner])


def _nothing(scenario: McpScenario, seed: int) -> Trajectory:
    from mcp_rl.trajectory import StopReason, Trajectory

    return Trajectory(scenario_id=scenario.id, seed=seed, stop_reason=StopReason.FAULT)


def _resolved(config: RunConfig) -> ToolServer:
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers

    return resolve_servers(config.server, config.transport, plugins=load_plugins(config.plugins), tools=config.tools)


def _launches(params: ServerParams) -> Iterator[Launch]:
    for one in params.servers.values() if isinstance(params, ServerGroup) else (params,):
        launch = one if isinstance(one, StdioServer) else one.launch
        if launch is not None:
            yield launch
