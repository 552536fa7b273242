"""A chat model behind an API plays real episodes: its turns come through LiteLLM, its calls go to the live server.

It has OpenAI tools instead of token ids, so its trajectories hold messages and no segments; what an episode took is
kept among its metrics. Rules, limits and tool messages are those of every rollout.
"""

import json
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from mcp_rl.boundary import without_secrets
from mcp_rl.chat.hermes import ParsedCall, ParsedCompletion
from mcp_rl.errors import ConfigError, ContextOverflow, EngineError
from mcp_rl.language_model import import_litellm
from mcp_rl.rollout import Limits, SaidTurn
from mcp_rl.scenario import McpScenario
from mcp_rl.toolserver.results import truncate_middle
from mcp_rl.tracking.measure import COMPLETION_TOKENS, COST, PROMPT_TOKENS
from mcp_rl.trajectory import StopReason, Trajectory

if TYPE_CHECKING:
    from mcp_rl.toolserver.pool import Session

_LONGEST_WAIT = 60.0
_KEY = re.compile(r"\b(sk|key)-[\w*-]+")
_PASSING = ("RateLimitError", "Timeout", "APIConnectionError", "InternalServerError", "ServiceUnavailableError",
            "BadGatewayError")  # fmt: skip
"""Errors of LiteLLM that another try may not meet."""
_PRICE_UNKNOWN = "price_unknown"


@dataclass(frozen=True)
class ChatModel:
    """A model that LiteLLM can reach. Its key comes from the environment."""

    name: str
    base_url: str | None = None
    deadline: float = 120.0
    """Seconds for one turn."""
    retries: int = 4
    """New tries of a turn after a rate limit, a failed connection or a server's error."""
    backoff: float = 1.0
    """Seconds of the first wait; the later ones grow to twice, four times … of it, at random in between."""

    async def check(self, tools: Sequence[dict[str, Any]]) -> None:
        """One small request with these tools, before any episode. Raises ConfigError where the model refuses it."""
        litellm = await to_thread.run_sync(import_litellm)
        messages = [{"role": "user", "content": "Reply with the word ready."}]
        try:
            await self._request(litellm, messages, tools, max_tokens=64, temperature=0.0, seed=0)
        except Exception as error:
            if not _foreseen(error):
                raise
            if _kind(error) != "RateLimitError":  # which only says that it is there, and busy
                raise ConfigError(self._sentence("cannot be used", error)) from error

    async def complete(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], **sampling: Any
    ) -> Any:
        """LiteLLM's response to one request, tried again where that can help.

        Raises ContextOverflow where the messages are too long for the model, EngineError where no response came.
        """
        litellm = await to_thread.run_sync(import_litellm)
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=self._wait,
            retry=retry_if_exception(lambda error: isinstance(error, TimeoutError) or _kind(error) in _PASSING),
            reraise=True,
        )
        try:
            return await retrying(self._request, litellm, messages, tools, **sampling)
        except litellm.exceptions.ContextWindowExceededError as error:
            raise ContextOverflow(self._sentence("has no room for the conversation", error)) from error
        except Exception as error:
            if not _foreseen(error):
                raise
            raise EngineError(self._sentence("gave no turn", error)) from error

    async def _request(
        self, litellm: Any, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], **sampling: Any
    ) -> Any:
        try:
            with anyio.fail_after(self.deadline):
                return await litellm.acompletion(
                    model=self.name,
                    messages=list(messages),
                    tools=list(tools) or None,
                    base_url=self.base_url,
                    # A server of one's own often wants no key, and the client refuses to start without one.
                    api_key="none" if self.base_url and not os.environ.get("OPENAI_API_KEY") else None,
                    timeout=self.deadline,
                    drop_params=True,
                    num_retries=0,
                    max_retries=0,
                    **sampling,
                )
        except TimeoutError:
            raise TimeoutError(f"no reply in {self.deadline:g} seconds") from None

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        try:
            return min(float(headers["retry-after"]), _LONGEST_WAIT)
        except (KeyError, TypeError, ValueError):
            return float(wait_random_exponential(multiplier=self.backoff, max=_LONGEST_WAIT)(state))

    def _sentence(self, what: str, error: BaseException) -> str:
        where = f" at {self.base_url}" if self.base_url else ""
        said = " ".join(_KEY.sub(r"\1-…", without_secrets(str(error))).split()) or type(error).__name__
        return f"The model {self.name}{where} {what}: {said[:300].rstrip('.')}."


@dataclass(frozen=True)
class ChatSetting:
    """What a rollout of a chat model touches."""

    model: ChatModel
    session: "Session"
    system_prompt: str | None = None

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator["ChatSpeaker"]:
        yield ChatSpeaker(self.model, self.session, trajectory, temperature, limits)


class ChatSpeaker:
    """One conversation with a chat model. It is sent back its own messages as they came, ids and all."""

    def __init__(
        self, model: ChatModel, session: "Session", trajectory: Trajectory, temperature: float, limits: Limits
    ) -> None:
        self.sampled = 0
        self._model, self._session, self._trajectory = model, session, trajectory
        self._temperature, self._limits = temperature, limits
        self._history: list[dict[str, Any]] = []
        self._call_ids: list[str] = []
        """The model's own ids of the calls of its last turn."""

    async def turn(self, new: Sequence[dict[str, Any]]) -> SaidTurn:
        """Ask for the next turn. Raises ContextOverflow, EngineError."""
        self._hear(new)
        left = self._limits.max_tokens - self.sampled
        budget = min(self._limits.max_turn_tokens, left)
        started = time.perf_counter()
        response = await self._model.complete(
            self._history,
            self._session.schemas.openai,
            temperature=self._temperature,
            max_tokens=budget,
            seed=self._trajectory.seed % 2**31,
        )
        self._count(response, time.perf_counter() - started)
        choice = response.choices[0] if response.choices else None
        message = choice.message if choice else None
        calls = [_call(call.function) for call in (getattr(message, "tool_calls", None) or [])]
        self._remember(message, calls)
        content = str(getattr(message, "content", None) or "")
        cut_off = None
        if choice is not None and choice.finish_reason == "length":
            cut_off = StopReason.MAX_TOKENS if left < self._limits.max_turn_tokens else StopReason.MAX_TURN_TOKENS
        return SaidTurn(ParsedCompletion(content.strip(), calls), self._written(message, content), cut_off)

    def cut(self, text: str, limit: int) -> str:
        """Counted with the tokenizer that LiteLLM uses for models whose own it does not know."""
        if len(text.encode()) <= limit:
            return text
        litellm = import_litellm()
        return truncate_middle(text, limit, lambda part: len(litellm.encode(model="", text=part)), "tokens")

    def _hear(self, new: Sequence[dict[str, Any]]) -> None:
        """New messages, with the model's own ids of the calls that they answer."""
        ids = iter(self._call_ids)
        self._history += [
            {**message, "tool_call_id": next(ids)} if message["role"] == "tool" else dict(message) for message in new
        ]

    def _remember(self, message: Any, calls: Sequence[ParsedCall]) -> None:
        """The model's turn as it came, but for arguments that are no JSON, which its own API might not take back."""
        said: dict[str, Any] = {"role": "assistant", "content": None}
        if message is not None:
            said |= message.model_dump(exclude_none=True)
        for call, parsed in zip(said.get("tool_calls") or [], calls, strict=False):
            if parsed.arguments is None:
                call["function"]["arguments"] = "{}"
        self._call_ids = [str(call.get("id")) for call in said.get("tool_calls") or []]
        self._history.append(said)

    def _count(self, response: Any, seconds: float) -> None:
        metrics, usage = self._trajectory.metrics, getattr(response, "usage", None)
        said = int(getattr(usage, "completion_tokens", 0) or 0)
        self.sampled += said
        counts = {PROMPT_TOKENS: float(getattr(usage, "prompt_tokens", 0) or 0), COMPLETION_TOKENS: float(said)}
        for name, count in {**counts, "request_seconds": seconds}.items():
            metrics[name] = metrics.get(name, 0.0) + count
        if _PRICE_UNKNOWN in metrics:
            return
        try:
            cost = float(import_litellm().completion_cost(response, model=self._model.name))
        except Exception:  # LiteLLM raises a bare Exception where it has no price
            metrics.pop(COST, None)
            metrics[_PRICE_UNKNOWN] = 1.0
            return
        metrics[COST] = metrics.get(COST, 0.0) + cost

    def _written(self, message: Any, content: str) -> str:
        """The turn as it was written, for the record of a call whose JSON cannot be read."""
        calls = getattr(message, "tool_calls", None) or []
        return "\n".join([*([content] if content else []), *(str(call.function.arguments) for call in calls)])


def _call(function: Any) -> ParsedCall:
    """A call as OpenAI writes it, its arguments a JSON object in a string."""
    name, text = str(function.name or ""), function.arguments or "{}"
    try:
        arguments = text if isinstance(text, dict) else json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return ParsedCall(name, None, f"The arguments are not valid JSON: {error}.")
    if not isinstance(arguments, dict):
        return ParsedCall(name, None, "The arguments must be a JSON object.")
    return ParsedCall(name, arguments)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _kind(error: BaseException) -> str:
    return type(error).__name__ if type(error).__module__.startswith("litellm") else ""


def _foreseen(error: BaseException) -> bool:
    """Whether it comes out of the request, and is not a bug of ours."""
    return isinstance(error, TimeoutError) or type(error).__module__.startswith(("litellm", "openai", "httpx"))
