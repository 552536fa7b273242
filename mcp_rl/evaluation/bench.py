"""Open one model after another as players on the same sessions, with the same limits."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.evaluation.chat_model import ChatModel, ChatSetting
from mcp_rl.evaluation.scripted import SCRIPTS, ScriptedSetting
from mcp_rl.rollouts.agents.player import agent_options, opened_player
from mcp_rl.rollouts.player import PlayerOptions, SettingPlayer, limits_of
from mcp_rl.rollouts.seated import Opponents, only_the_policy, own_episode
from mcp_rl.rollouts.user_model import user_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from mcp_rl.backends.samplers.policies import LocalPolicies
    from mcp_rl.config import RunConfig, UnslothConfig
    from mcp_rl.evaluation.models import ModelSpec
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
    from mcp_rl.rewards.scoring import Scoring
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session

log = logging.getLogger(__name__)
CHAT_CONCURRENCY = 16
"""Episodes of a chat model in flight; more would run into rate limits."""


@dataclass
class Bench:
    """Opens the models of an evaluation. A base model, or vLLM's server for it, stays open until another is needed."""

    config: RunConfig
    sessions: Sessions
    scoring: Scoring
    params: ServerParams
    system_prompt: str | None = None
    folder: Path | None = None
    """Folder of vLLM's log."""
    models: Sequence[ModelSpec] = ()
    """All models to come: one vLLM server serves all of one base."""
    say: Callable[[str], None] = log.info
    opponents: Opponents = only_the_policy
    """Who speaks in the other seats of a scenario."""

    def __post_init__(self) -> None:
        self._stack, self._players = AsyncExitStack(), AsyncExitStack()
        self._policies: LocalPolicies | None = None
        self._served: dict[str, tuple[Engine, ChatFormat]] = {}
        self._users = user_model(self.config.rollout.user_model, self.config.rollout.max_user_cost)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Bench]:
        """Close everything that was loaded on leaving."""
        try:
            yield self
        finally:
            await self._players.aclose()
            await self._stack.aclose()

    async def player(self, model: ModelSpec) -> SettingPlayer:
        """Open a player of this model. Raises ConfigError or CheckpointError if it cannot be loaded."""
        options, prompt = self._options(model), self.system_prompt
        if model.kind == "chat":
            remote = chat_model(model)
            self._stack.push_async_callback(remote.aclose)
            return SettingPlayer(lambda session: ChatSetting(remote, session, prompt), self.sessions, **options)
        if model.kind == "scripted":
            script = SCRIPTS[model.name]
            return SettingPlayer(lambda session: ScriptedSetting(script, session, prompt), self.sessions, **options)
        engine, chat = await self._engine(model)
        agent = agent_options(self.config, (self.folder or Path()) / "logs", self.say)
        opening = opened_player(agent, engine, chat, self.sessions, system_prompt=prompt, **options)
        return await self._players.enter_async_context(opening)

    async def _engine(self, model: ModelSpec) -> tuple[Engine, ChatFormat]:
        """Open the engine that samples a model, and its chat format."""
        from mcp_rl.backends.base.options import trained_options
        from mcp_rl.backends.plan.choices import engine_for, engine_kind

        if engine_kind(engine_for(model.name, self.config.engine)) == "vllm":
            return await self._from_vllm(model)
        policies = await self._base(model.name, trained_options(model.name, model.place))
        await policies.use(model.checkpoint, model.step)
        return policies.engine, policies.chat

    async def _from_vllm(self, model: ModelSpec) -> tuple[Engine, ChatFormat]:
        from mcp_rl.backends.samplers.opened import opened_models, server_for

        if model.label not in self._served:
            await self._stack.aclose()
            coming = [model, *(other for other in self.models if other.label != model.label)]
            same = [m for m in coming if m.kind in ("base", "checkpoint") and server_for(m) == server_for(model)]
            config = self.config
            opening = opened_models(same, config.engine, config.placement, self.folder or Path(), self.say)
            opened = await self._stack.enter_async_context(opening)
            self._served = {m.label: found for m, found in zip(same, opened.models, strict=True)}
        return self._served[model.label]

    def _options(self, model: ModelSpec) -> PlayerOptions:
        concurrency = self.config.rollout.concurrency
        return {
            "params": self.params,
            "temperature": self.config.rollout.temperature,
            "limits": limits_of(self.config.rollout),
            "concurrency": min(concurrency, CHAT_CONCURRENCY) if model.kind == "chat" else concurrency,
            "driver": partial(own_episode, user_model=self._users, opponents=self.opponents),
            "finish": self.scoring.rollout,
        }

    async def _base(self, name: str, options: UnslothConfig) -> LocalPolicies:
        from mcp_rl.backends.samplers.policies import LocalPolicies  # imports torch

        if self._policies is None or (self._policies.base_model, self._policies.options) != (name, options):
            await self._stack.aclose()
            self._policies = None
            self._policies = await self._stack.enter_async_context(LocalPolicies(name, options))
        return self._policies


def chat_model(model: ModelSpec) -> ChatModel:
    """Make the chat model of a spec of the kind "chat"."""
    return ChatModel(model.name, model.base_url)


async def check_chat_model(model: ModelSpec, session: Session) -> None:
    """Send one small request before any episode. Raises ConfigError if the model cannot be asked."""
    chat = chat_model(model)
    try:
        await chat.check(session.schemas.openai)
    finally:
        await chat.aclose()
