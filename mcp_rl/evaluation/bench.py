"""Opens one model after another to play on the same sessions, with the same limits."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.config import RunConfig
from mcp_rl.evaluation.chat_model import ChatModel, ChatSetting
from mcp_rl.evaluation.models import ModelSpec
from mcp_rl.evaluation.scripted import SCRIPTS, ScriptedSetting
from mcp_rl.player import Player, PlayerOptions, SettingPlayer
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rollout import Limits
from mcp_rl.scenario import ServerParams
from mcp_rl.toolserver.pool import Session, Sessions

if TYPE_CHECKING:
    from mcp_rl.backends.policies import LocalPolicies

_CHAT_CONCURRENCY = 16
"""Episodes of a chat model in flight: more meet rate limits."""


@dataclass
class Bench:
    """Where models are tried. Base models stay loaded until another one is needed."""

    config: RunConfig
    sessions: Sessions
    params: ServerParams
    limits: Limits
    scoring: Scoring
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        self._stack = AsyncExitStack()
        self._policies: LocalPolicies | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Bench"]:
        """Whatever was loaded is closed in the end."""
        try:
            yield self
        finally:
            await self._stack.aclose()

    async def player(self, model: ModelSpec) -> SettingPlayer:
        """A player of this model. Raises what loading it raises: ConfigError, CheckpointError."""
        options, told = self._options(model), self.system_prompt
        if model.kind == "chat":
            chat = chat_model(model)
            self._stack.push_async_callback(chat.aclose)
            return SettingPlayer(lambda session: ChatSetting(chat, session, told), self.sessions, **options)
        if model.kind == "scripted":
            script = SCRIPTS[model.name]
            return SettingPlayer(lambda session: ScriptedSetting(script, session, told), self.sessions, **options)
        policies = await self._base(model.name)
        await policies.use(model.checkpoint, model.step)
        return Player(policies.engine, policies.chat, self.sessions, system_prompt=told, **options)

    def _options(self, model: ModelSpec) -> PlayerOptions:
        concurrency = self.config.rollout.concurrency
        return {
            "params": self.params,
            "temperature": self.config.rollout.temperature,
            "limits": self.limits,
            "concurrency": min(concurrency, _CHAT_CONCURRENCY) if model.kind == "chat" else concurrency,
            "finish": self.scoring.rollout,
        }

    async def _base(self, name: str) -> "LocalPolicies":
        from mcp_rl.backends.policies import LocalPolicies  # imports torch

        if self._policies is None or self._policies.base_model != name:
            await self._stack.aclose()
            self._policies = None
            self._policies = await self._stack.enter_async_context(LocalPolicies(name))
        return self._policies


def chat_model(model: ModelSpec) -> ChatModel:
    """The chat model of a spec of that kind."""
    return ChatModel(model.name, model.base_url)


async def check_chat_model(model: ModelSpec, session: Session) -> None:
    """One small request, before any episode. Raises ConfigError where the model cannot be asked."""
    chat = chat_model(model)
    try:
        await chat.check(session.schemas.openai)
    finally:
        await chat.aclose()
