"""Opens one model after another to play on the same sessions, with the same limits."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.config import RunConfig, UnslothConfig
from mcp_rl.evaluation.chat_model import ChatModel, ChatSetting
from mcp_rl.evaluation.models import ModelSpec
from mcp_rl.evaluation.scripted import SCRIPTS, ScriptedSetting
from mcp_rl.player import Player, PlayerOptions, SettingPlayer
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.scenario import ServerParams
from mcp_rl.speaker import Limits
from mcp_rl.toolserver.pool import Session, Sessions

if TYPE_CHECKING:
    from mcp_rl.backends.policies import LocalPolicies
    from mcp_rl.chat.hermes import ChatFormat
    from mcp_rl.inference.engine import Engine

log = logging.getLogger(__name__)
_CHAT_CONCURRENCY = 16
"""Episodes of a chat model in flight: more meet rate limits."""


@dataclass
class Bench:
    """Where models are tried. A base model, or vLLM's server of it, stays until another one is needed."""

    config: RunConfig
    sessions: Sessions
    params: ServerParams
    limits: Limits
    scoring: Scoring
    system_prompt: str | None = None
    folder: Path | None = None
    """Where vLLM's log goes."""
    models: Sequence[ModelSpec] = ()
    """All that come: vLLM's server is started once for those of one base."""
    say: Callable[[str], None] = log.info

    def __post_init__(self) -> None:
        self._stack = AsyncExitStack()
        self._policies: LocalPolicies | None = None
        self._served: dict[str, tuple[Engine, ChatFormat]] = {}

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
            asked = chat_model(model)
            self._stack.push_async_callback(asked.aclose)
            return SettingPlayer(lambda session: ChatSetting(asked, session, told), self.sessions, **options)
        if model.kind == "scripted":
            script = SCRIPTS[model.name]
            return SettingPlayer(lambda session: ScriptedSetting(script, session, told), self.sessions, **options)
        engine, chat = await self._engine(model)
        return Player(engine, chat, self.sessions, system_prompt=told, **options)

    async def _engine(self, model: ModelSpec) -> "tuple[Engine, ChatFormat]":
        """What samples it, and the format that it speaks."""
        from mcp_rl.backends.choices import engine_for, engine_kind
        from mcp_rl.backends.loading.options import trained_options

        if engine_kind(engine_for(model.name, self.config.engine)) == "vllm":
            return await self._from_vllm(model)
        policies = await self._base(model.name, trained_options(model.name, model.place))
        await policies.use(model.checkpoint, model.step)
        return policies.engine, policies.chat

    async def _from_vllm(self, model: ModelSpec) -> "tuple[Engine, ChatFormat]":
        from mcp_rl.backends.serving import opened_models, server_for

        if model.label not in self._served:
            await self._stack.aclose()
            asked = [model, *(other for other in self.models if other.label != model.label)]
            same = [m for m in asked if m.kind in ("base", "checkpoint") and server_for(m) == server_for(model)]
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
            "limits": self.limits,
            "concurrency": min(concurrency, _CHAT_CONCURRENCY) if model.kind == "chat" else concurrency,
            "finish": self.scoring.rollout,
        }

    async def _base(self, name: str, options: UnslothConfig) -> "LocalPolicies":
        from mcp_rl.backends.policies import LocalPolicies  # imports torch

        if self._policies is None or (self._policies.base_model, self._policies.options) != (name, options):
            await self._stack.aclose()
            self._policies = None
            self._policies = await self._stack.enter_async_context(LocalPolicies(name, options))
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
