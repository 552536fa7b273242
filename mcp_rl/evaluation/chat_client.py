"""Asks a chat model for one turn: directly, where its server speaks OpenAI's protocol, else through LiteLLM.

LiteLLM knows every provider and takes 4 ms of the processor for each request; the OpenAI client takes 0.7, with one
pool of connections for all episodes. A model whose sampling parameters LiteLLM would rename or drop, and one that it
asks through another endpoint, goes through LiteLLM, so that both ways send the same.
"""

import copy
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2
from anyio import to_thread

from mcp_rl.language_model import import_litellm

Messages = Sequence[dict[str, Any]]
Tools = Sequence[dict[str, Any]]

_DIRECT = ("openai", "hosted_vllm")
"""LiteLLM's names of the providers that take an OpenAI client's requests as they are."""
_PROBE = {"temperature": 0.5, "max_tokens": 7, "seed": 3}
_PASSING = ("RateLimitError", "Timeout", "APIConnectionError", "InternalServerError", "ServiceUnavailableError",
            "BadGatewayError")  # fmt: skip
"""Errors of LiteLLM that another try may not meet."""


@dataclass(frozen=True)
class Reply:
    """One turn as it came."""

    message: dict[str, Any]
    """OpenAI's form, what is null left out; empty where there was none."""
    cut_off: bool = False
    """Ended by `max_tokens`."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """US dollars; None where nobody knows the price."""


class RequestError(Exception):
    """A request that brought no turn; the message says why, and may hold secrets."""

    def __init__(
        self,
        message: str,
        *,
        passing: bool = False,
        busy: bool = False,
        too_long: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.passing = passing
        """Another try may succeed."""
        self.busy = busy
        """The model is there, and has too much to do."""
        self.too_long = too_long
        """The messages do not fit the model."""
        self.retry_after = retry_after
        """Seconds that the server asks to wait for."""


class ChatClient(Protocol):
    """A way to ask one model."""

    async def ask(self, messages: Messages, tools: Tools, sampling: Mapping[str, Any]) -> Reply:
        """One request. Raises RequestError where no turn came."""
        ...

    async def aclose(self) -> None: ...


async def chat_client(name: str, base_url: str | None, deadline: float) -> ChatClient:
    """The faster client of those that can ask this model. `deadline`, in seconds, is for one request."""
    litellm = await to_thread.run_sync(import_litellm)
    if base_url is not None:
        model, provider, key, url = litellm.get_llm_provider(name, api_base=base_url)
        if provider in _DIRECT and not _changed(litellm, model, provider):
            return OpenAIServer(litellm, name, model, url or base_url, key)
    return LiteLLM(litellm, name, base_url, deadline)


def _changed(litellm: Any, model: str, provider: str) -> bool:
    """Whether LiteLLM would not send a request of ours as it is."""
    sent = litellm.utils.get_optional_params(model=model, custom_llm_provider=provider, drop_params=True, **_PROBE)
    return {name: sent.get(name) for name in _PROBE} != _PROBE or _about(litellm, model).get("mode", "chat") != "chat"


def _about(litellm: Any, name: str) -> dict[str, Any]:
    """What LiteLLM knows of a model, its prices and limits."""
    try:
        return dict(litellm.get_model_info(name))
    except Exception:  # LiteLLM raises several kinds where it does not know the model
        return {}


class LiteLLM:
    """Any model that LiteLLM can reach."""

    def __init__(self, litellm: Any, name: str, base_url: str | None, deadline: float) -> None:
        self._litellm, self._name, self._base_url, self._deadline = litellm, name, base_url, deadline

    async def ask(self, messages: Messages, tools: Tools, sampling: Mapping[str, Any]) -> Reply:
        try:
            response = await self._litellm.acompletion(
                model=self._name,
                messages=list(messages),
                tools=copy.deepcopy(list(tools)) or None,  # for some providers it takes keywords out of them in place
                base_url=self._base_url,
                # A server of one's own often wants no key, and the client refuses to start without one.
                api_key="none" if self._base_url and not os.environ.get("OPENAI_API_KEY") else None,
                timeout=self._deadline,
                drop_params=True,
                num_retries=0,
                max_retries=0,
                **sampling,
            )
        except Exception as error:
            if not type(error).__module__.startswith(("litellm", "openai", "httpx")):
                raise  # a bug of ours
            raise self._problem(error) from error
        choice = response.choices[0] if response.choices else None
        usage = getattr(response, "usage", None)
        return Reply(
            choice.message.model_dump(exclude_none=True) if choice else {},
            choice is not None and choice.finish_reason == "length",
            int(getattr(usage, "prompt_tokens", 0) or 0),
            int(getattr(usage, "completion_tokens", 0) or 0),
            cost(self._litellm, response, self._name),
        )

    async def aclose(self) -> None:
        """Its clients are LiteLLM's own."""

    def _problem(self, error: Exception) -> RequestError:
        kind = type(error).__name__ if type(error).__module__.startswith("litellm") else ""
        return RequestError(
            str(error),
            passing=kind in _PASSING,
            busy=kind == "RateLimitError",
            too_long=isinstance(error, self._litellm.exceptions.ContextWindowExceededError),
            retry_after=_retry_after(error),
        )


class OpenAIServer:
    """A model behind a server that speaks OpenAI's protocol, on one `AsyncOpenAI` client for all episodes."""

    def __init__(self, litellm: Any, name: str, model: str, url: str, key: str | None) -> None:
        import openai

        self._openai, self._litellm, self._name, self._model = openai, litellm, name, model
        self._priced = bool(_about(litellm, name))
        # With 64 requests in flight, HTTPX2's pool of connections costs half of what the client's own one does. The
        # caller has a deadline of its own, so none is kept for each read and write.
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=key or os.environ.get("OPENAI_API_KEY") or "none",
            organization=os.environ.get("OPENAI_ORGANIZATION"),
            max_retries=0,
            timeout=None,
            http_client=openai.DefaultAsyncHttpx2Client(timeout=None),
        )

    async def ask(self, messages: Messages, tools: Tools, sampling: Mapping[str, Any]) -> Reply:
        body = {"model": self._model, "messages": messages, **({"tools": tools} if tools else {}), **sampling}
        try:
            # Sent as it is: the client's own method would look for files to encode in every part of it.
            response: Any = await self._client.post(
                "/chat/completions", content=_encoded(body), cast_to=httpx2.Response
            )
        except self._openai.APIStatusError as error:
            raise self._refused(error) from error
        except self._openai.APIError as error:
            cause = f": {error.__cause__}" if str(error.__cause__ or "") else ""
            raise RequestError(f"{error.message.rstrip('.')}{cause}", passing=True) from error
        return self._read(response.content)

    async def aclose(self) -> None:
        await self._client.close()

    def _read(self, content: bytes) -> Reply:
        try:
            completion = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the reply is no JSON: {error}", passing=True) from error
        if not isinstance(completion, dict) or not isinstance(completion.get("choices"), list):
            raise RequestError(f"the reply is no chat completion: {str(completion)[:200]}", passing=True)
        choice = completion["choices"][0] if completion["choices"] else {}
        if not isinstance(choice, dict) or not _is_message(choice.get("message") or {}):
            raise RequestError(f"the reply holds no message: {str(choice)[:200]}", passing=True)
        usage = completion.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return Reply(
            {key: value for key, value in (choice.get("message") or {}).items() if value is not None},
            choice.get("finish_reason") == "length",
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
            self._cost(completion) if self._priced else None,
        )

    def _cost(self, completion: dict[str, Any]) -> float | None:
        try:
            response = self._litellm.ModelResponse(**completion)
        except Exception:  # pydantic's, and whatever LiteLLM's own reading raises
            return None
        return cost(self._litellm, response, self._name)

    def _refused(self, error: Any) -> RequestError:
        status, about = int(error.status_code), error.body if isinstance(error.body, dict) else {}
        said = str(about.get("message") or error.response.text or error.message)
        checks = self._litellm.litellm_core_utils.exception_mapping_utils.ExceptionCheckers
        too_long = about.get("code") == "context_length_exceeded" or checks.is_error_str_context_window_exceeded(said)
        return RequestError(
            f"HTTP status {status}: {said}",
            passing=status in (408, 429) or status >= 500,
            busy=status == 429,
            too_long=status < 500 and too_long,
            retry_after=_retry_after(error),
        )


def _encoded(body: dict[str, Any]) -> bytes:
    """JSON in ASCII: half of a surrogate pair, which a model can say, goes through."""
    return json.dumps(body, separators=(",", ":")).encode()


def _is_message(message: Any) -> bool:
    calls = message.get("tool_calls") if isinstance(message, dict) else 0
    return calls is None or (
        isinstance(calls, list)
        and all(isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls)
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def cost(litellm: Any, response: Any, name: str) -> float | None:
    """US dollars of one response; None where LiteLLM has no price for the model."""
    try:
        return float(litellm.completion_cost(response, model=name))
    except Exception:  # LiteLLM raises a bare Exception
        return None


def _retry_after(error: Exception) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if math.isnan(seconds) else max(0.0, seconds)
