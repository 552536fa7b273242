"""Play episodes with a chat model behind an API: turns come over HTTP, calls go to the live server.

The model gets OpenAI tools instead of token ids, so its trajectories hold messages and no segments; usage is kept among
their metrics. Rules, limits and tool messages are those of every rollout.
"""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ConfigError, ContextOverflow, EngineError
from mcp_rl.evaluation.measure import COMPLETION_TOKENS, COST, PROMPT_TOKENS
from mcp_rl.inference.apis.chat_client import (
    ChatClient,
    ChatReply,
    RequestError,
    chat_client,
    failure,
    import_litellm,
    retrying,
    within,
)
from mcp_rl.inference.chat.calls import ParsedCall, ParsedCompletion, parsed_call, whole_characters
from mcp_rl.rollouts.speaker import Limits, SaidTurn
from mcp_rl.toolserver.tools.results import truncate_middle
from mcp_rl.trajectory import StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session

_PRICE_UNKNOWN = "price_unknown"


@dataclass(eq=False)
class ChatModel:
    """A chat model behind an API. Its key comes from the environment; `aclose` closes its connections."""

    name: str
    """LiteLLM's name of the model."""
    base_url: str | None = None
    deadline: float = 120.0
    """Seconds for one turn."""
    retries: int = 4
    """Repetitions of a turn after a rate limit, a failed connection or a server's error."""
    backoff: float = 1.0
    """Seconds of the first wait at most; see `chat_client.retrying`."""

    _client: ChatClient | None = field(default=None, init=False, repr=False)
    _opening: anyio.Lock = field(default_factory=anyio.Lock, init=False, repr=False)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def check(self, tools: Sequence[dict[str, Any]]) -> None:
        """Send a small request with these tools before any episode. Raises ConfigError if the model refuses it."""
        messages = [{"role": "user", "content": "Reply with the word ready."}]
        try:
            await self._ask(messages, tools, {"max_tokens": 64, "temperature": 0.0, "seed": 0})
        except RequestError as error:
            if not error.busy:
                raise ConfigError(self._sentence("cannot be used", error)) from error

    async def complete(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], **sampling: Any
    ) -> ChatReply:
        """Return the next turn, repeating the request after passing errors.

        Raises ContextOverflow if the messages are too long for the model, EngineError if there is no turn.
        """
        try:
            return await retrying(self.retries, self.backoff)(self._ask, messages, tools, sampling)
        except RequestError as error:
            if error.too_long:
                raise ContextOverflow(self._sentence("has no room for the conversation", error)) from error
            raise EngineError(self._sentence("gave no turn", error)) from error

    async def _ask(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], sampling: dict[str, Any]
    ) -> ChatReply:
        client = self._client or await self._opened()
        return await within(self.deadline, client.ask(messages, tools, sampling))

    async def _opened(self) -> ChatClient:
        async with self._opening:
            if self._client is None:
                self._client = await chat_client(self.name, self.base_url, self.deadline)
            return self._client

    def _sentence(self, what: str, error: BaseException) -> str:
        return failure(f"model {self.name}", self.base_url, what, error)


@dataclass(frozen=True)
class ChatSetting:
    """The model and the server session of one rollout."""

    model: ChatModel
    session: Session
    system_prompt: str | None = None

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator[ChatSpeaker]:
        yield ChatSpeaker(self.model, self.session, trajectory, temperature, limits)


class ChatSpeaker:
    """A conversation with a chat model, which gets its own messages back unchanged, ids included."""

    def __init__(
        self, model: ChatModel, session: Session, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> None:
        self.sampled = 0
        self._model, self._session, self._trajectory = model, session, trajectory
        self._temperature, self._limits = temperature, limits
        self._history: list[dict[str, Any]] = []
        self._call_ids: list[str] = []
        """The model's ids for the calls of its last turn."""

    async def turn(self, new: Sequence[dict[str, Any]]) -> SaidTurn:
        """Ask for the next turn. Raises ContextOverflow, EngineError."""
        self._hear(new)
        left = self._limits.max_tokens - self.sampled
        budget = min(self._limits.max_turn_tokens, left)
        started = time.perf_counter()
        reply = await self._model.complete(
            self._history,
            self._session.schemas.openai,
            temperature=self._temperature,
            max_tokens=budget,
            seed=self._trajectory.seed % 2**31,
        )
        self._count(reply, time.perf_counter() - started)
        calls = [_call(call["function"]) for call in reply.message.get("tool_calls") or []]
        content = whole_characters(str(reply.message.get("content") or ""))
        self._remember(reply.message, calls)
        cut_off = None
        if reply.cut_off:
            cut_off = StopReason.MAX_TOKENS if left < self._limits.max_turn_tokens else StopReason.MAX_TURN_TOKENS
        return SaidTurn(ParsedCompletion(content.strip(), calls), _written(reply.message, content), cut_off)

    def cut(self, text: str, limit: int) -> str:
        """Cut a text to `limit` tokens, counted with the tokenizer that LiteLLM uses for unknown models."""
        if len(text.encode()) <= limit:
            return text
        litellm = import_litellm()
        return truncate_middle(text, limit, lambda part: len(litellm.encode(model="", text=part)), "tokens")

    def _hear(self, new: Sequence[dict[str, Any]]) -> None:
        """Add new messages, with the model's ids for the calls that they answer."""
        ids = iter(self._call_ids)
        self._history += [
            {**message, "tool_call_id": next(ids)} if message["role"] == "tool" else dict(message) for message in new
        ]

    def _remember(self, message: dict[str, Any], calls: Sequence[ParsedCall]) -> None:
        """Keep the model's turn unchanged, except arguments that are not JSON, which its API might refuse."""
        said = {"role": "assistant", "content": None, **message}
        if calls:
            said["tool_calls"] = [
                call if parsed.arguments is not None else {**call, "function": {**call["function"], "arguments": "{}"}}
                for call, parsed in zip(message["tool_calls"], calls, strict=True)
            ]
        self._call_ids = [str(call.get("id")) for call in said.get("tool_calls") or []]
        self._history.append(said)

    def _count(self, reply: ChatReply, seconds: float) -> None:
        metrics = self._trajectory.metrics
        self.sampled += reply.completion_tokens
        counts = {PROMPT_TOKENS: float(reply.prompt_tokens), COMPLETION_TOKENS: float(reply.completion_tokens)}
        for name, count in {**counts, "request_seconds": seconds}.items():
            metrics[name] = metrics.get(name, 0.0) + count
        if reply.cost is None:
            metrics.pop(COST, None)
            metrics[_PRICE_UNKNOWN] = 1.0
        elif _PRICE_UNKNOWN not in metrics:
            metrics[COST] = metrics.get(COST, 0.0) + reply.cost


def _written(message: dict[str, Any], content: str) -> str:
    """The text of the turn, for the record of a call whose JSON cannot be parsed."""
    calls = message.get("tool_calls") or []
    arguments = (whole_characters(str(call["function"].get("arguments"))) for call in calls)
    return "\n".join([*([content] if content else []), *arguments])


def _call(function: dict[str, Any]) -> ParsedCall:
    """Parse a call in OpenAI's form, whose arguments are a JSON object in a string."""
    name, text = whole_characters(str(function.get("name") or "")), function.get("arguments") or "{}"
    return parsed_call(name, text if isinstance(text, str) else json.dumps(text))
