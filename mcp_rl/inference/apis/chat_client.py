"""Requests to chat models: directly, if the server speaks OpenAI's protocol, else through LiteLLM.

LiteLLM knows every provider and takes 4 ms of the processor for each request; the OpenAI client takes 0.7 ms, with one
pool of connections for all episodes. LiteLLM is used for models whose sampling parameters it would rename or drop and
for models that it reaches through another endpoint, so both clients send the same.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio import to_thread
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from mcp_rl.errors import ConfigError
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    Messages = Sequence[Mapping[str, Any]]
    Tools = Sequence[dict[str, Any]]

_DIRECT = ("openai", "hosted_vllm")
"""LiteLLM's names of the providers that take an OpenAI client's requests unchanged."""
_PROBE = {"temperature": 0.5, "max_tokens": 7, "seed": 3}
_LONGEST_WAIT = 60.0
_KEY = re.compile(r"\b(sk|key)-[\w*-]+")


@dataclass(frozen=True)
class ChatReply:
    """A turn of the model."""

    message: dict[str, Any]
    """OpenAI's form without null fields; empty if the reply has no message."""
    cut_off: bool = False
    """True if `max_tokens` ended it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """US dollars; None if LiteLLM knows no price for the model."""


class RequestError(Exception):
    """A request that got no usable turn. The message says why and may hold secrets."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        passing: bool = False,
        too_long: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, if there was one."""
        self.passing = passing
        """True if another try may succeed."""
        self.too_long = too_long
        """True if the messages do not fit the model."""
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""

    @property
    def busy(self) -> bool:
        """True if the model exists but has too much to do."""
        return self.status == 429


class ChatClient(Protocol):
    """A client of one model."""

    async def ask(self, messages: Messages, tools: Tools, sampling: Mapping[str, Any]) -> ChatReply:
        """Send one request. Raises RequestError if it gets no turn."""
        ...

    async def aclose(self) -> None: ...


def import_litellm() -> Any:
    """Import LiteLLM, quiet and with its own copy of the price list.

    The import takes about three seconds, and by default fetches the price list from the network. Raises ConfigError if
    LiteLLM is not installed.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise ConfigError(
            f"Models behind an API need LiteLLM, which cannot be imported ({error}): pip install 'mcp-rl[apis]'."
        ) from error

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


async def chat_client(name: str, base_url: str | None, deadline: float) -> ChatClient:
    """Return the fastest client that can ask this model. `deadline`: seconds for one request."""
    litellm = await to_thread.run_sync(import_litellm)
    if base_url is not None:
        model, provider, key, url = litellm.get_llm_provider(name, api_base=base_url)
        if provider in _DIRECT and not _changed(litellm, model, provider):
            return OpenAIServer(litellm, name, model, url or base_url, key)
    return LiteLLM(litellm, name, base_url, deadline)


async def within(seconds: float, reply: Awaitable[ChatReply]) -> ChatReply:
    """Await a reply for so many seconds. Raises RequestError if none comes in time."""
    try:
        with anyio.fail_after(seconds):
            return await reply
    except TimeoutError:
        raise RequestError(f"no reply in {seconds:g} seconds", passing=True) from None


def split_address(name: str) -> tuple[str, str | None]:
    """Split a model's name with an address, `NAME@http…`, into both; None without an address. Raises ConfigError."""
    model, at, rest = name.partition("@http")
    address = f"http{rest}" if at else None
    check_address(address)
    return model, address


def check_address(address: str | None) -> None:
    """Check the address of an API. Raises ConfigError where it holds a password."""
    if address and re.match(r"https?://[^/?#]*@", address):
        raise ConfigError(
            "A base URL must not hold a user name or password, since it is written to files; use the environment."
        )


def retrying(retries: int, backoff: float) -> AsyncRetrying:
    """Repeat a request after passing errors, at most `retries` times, and reraise the last error.

    Waits as long as the server asks, else for a random time of up to `backoff` seconds, then twice, four times … as
    long; at most a minute.
    """
    randomly = wait_random_exponential(multiplier=backoff, max=_LONGEST_WAIT)

    def seconds(state: RetryCallState) -> float:
        asked = getattr(state.outcome.exception() if state.outcome else None, "retry_after", None)
        return float(randomly(state)) if asked is None else min(asked, _LONGEST_WAIT)

    return AsyncRetrying(
        stop=stop_after_attempt(retries + 1),
        wait=seconds,
        retry=retry_if_exception(lambda e: isinstance(e, RequestError) and e.passing and not e.too_long),
        reraise=True,
    )


def readable(error: BaseException) -> str:
    """The message of an error, on one line and without keys."""
    return " ".join(_KEY.sub(r"\1-…", without_secrets(str(error))).split()) or type(error).__name__


def failure(model: str, base_url: str | None, what: str, error: BaseException) -> str:
    """A sentence that says which model failed, and why."""
    where = f" at {base_url}" if base_url else ""
    return f"The {model}{where} {what}: {readable(error)[:400].rstrip('.')}."


def _changed(litellm: Any, model: str, provider: str) -> bool:
    """Return whether LiteLLM would change a request."""
    sent = litellm.utils.get_optional_params(model=model, custom_llm_provider=provider, drop_params=True, **_PROBE)
    return {name: sent.get(name) for name in _PROBE} != _PROBE or _about(litellm, model).get("mode", "chat") != "chat"


def _about(litellm: Any, name: str) -> dict[str, Any]:
    """Prices and limits that LiteLLM knows for a model; empty for an unknown one."""
    try:
        return dict(litellm.get_model_info(name))
    except Exception:  # several kinds for an unknown model
        return {}


def has_price(name: str) -> bool:
    """Return whether LiteLLM knows a price for the model."""
    return bool(_about(import_litellm(), name).get("input_cost_per_token"))


class LiteLLM:
    """A client of any model that LiteLLM can reach. Its connections are LiteLLM's own."""

    def __init__(self, litellm: Any, name: str, base_url: str | None, deadline: float) -> None:
        self._litellm, self._name, self._base_url, self._deadline = litellm, name, base_url, deadline

    async def ask(self, messages: Messages, tools: Tools, sampling: Mapping[str, Any]) -> ChatReply:
        try:
            response = await self._litellm.acompletion(
                model=self._name,
                messages=list(messages),
                tools=copy.deepcopy(list(tools)) or None,  # for some providers it removes keywords in place
                base_url=self._base_url,
                # A private server often needs no key, but the client refuses to start without one.
                api_key="none" if self._base_url and not os.environ.get("OPENAI_API_KEY") else None,
                timeout=self._deadline,
                drop_params=True,
                num_retries=0,
                max_retries=0,
                **sampling,
            )
        except Exception as error:
            if not type(error).__module__.startswith(("litellm", "openai", "httpx")):
                raise  # a bug of this package
            raise self._request_error(error) from error
        choice = response.choices[0] if response.choices else None
        usage = getattr(response, "usage", None)
        return ChatReply(
            choice.message.model_dump(exclude_none=True) if choice else {},
            choice is not None and choice.finish_reason == "length",
            int(getattr(usage, "prompt_tokens", 0) or 0),
            int(getattr(usage, "completion_tokens", 0) or 0),
            _cost(self._litellm, response, self._name),
        )

    async def aclose(self) -> None: ...

    def _request_error(self, error: Exception) -> RequestError:
        kinds = self._litellm.exceptions
        passing = (
            kinds.RateLimitError,
            kinds.Timeout,
            kinds.APIConnectionError,
            kinds.InternalServerError,
            kinds.ServiceUnavailableError,
            kinds.BadGatewayError,
        )
        return RequestError(
            str(error),
            status=getattr(error, "status_code", None),
            passing=isinstance(error, passing),
            too_long=isinstance(error, kinds.ContextWindowExceededError),
            retry_after=retry_after(error),
        )


class OpenAIServer:
    """A client of a server that speaks OpenAI's protocol, with one `AsyncOpenAI` for all episodes."""

    def __init__(self, litellm: Any, name: str, model: str, url: str, key: str | None) -> None:
        import openai

        self._openai, self._litellm, self._name, self._model = openai, litellm, name, model
        self._priced = bool(_about(litellm, name))
        # With 64 requests in flight, HTTPX2's pool of connections costs half of what the client's own one does. The
        # caller has a deadline, so single reads and writes need none.
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=key or os.environ.get("OPENAI_API_KEY") or "none",
            organization=os.environ.get("OPENAI_ORGANIZATION"),
            max_retries=0,
            timeout=None,
            http_client=openai.DefaultAsyncHttpx2Client(timeout=None),
        )

    async def ask(self, messages: Messages, tools: Tools, sampling: Mapping[str, Any]) -> ChatReply:
        import httpx2

        body = {"model": self._model, "messages": messages, **({"tools": tools} if tools else {}), **sampling}
        try:
            # Encoded here: the client's own method would look for files in every part of it.
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

    def _read(self, content: bytes) -> ChatReply:
        try:
            completion = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the reply is not JSON: {error}", passing=True) from error
        if not isinstance(completion, dict) or not isinstance(completion.get("choices"), list):
            raise RequestError(f"the reply is not a chat completion: {str(completion)[:200]}", passing=True)
        choice = completion["choices"][0] if completion["choices"] else {}
        if not isinstance(choice, dict) or not _is_message(choice.get("message") or {}):
            raise RequestError(f"the reply holds no message: {str(choice)[:200]}", passing=True)
        usage = completion.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return ChatReply(
            {key: value for key, value in (choice.get("message") or {}).items() if value is not None},
            choice.get("finish_reason") == "length",
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
            self._cost(completion) if self._priced else None,
        )

    def _cost(self, completion: dict[str, Any]) -> float | None:
        try:
            response = self._litellm.ModelResponse(**completion)
        except Exception:  # pydantic's, and others from LiteLLM's own parsing
            return None
        return _cost(self._litellm, response, self._name)

    def _refused(self, error: Any) -> RequestError:
        status, about = int(error.status_code), error.body if isinstance(error.body, dict) else {}
        said = str(about.get("message") or error.response.text or error.message)
        checks = self._litellm.litellm_core_utils.exception_mapping_utils.ExceptionCheckers
        too_long = about.get("code") == "context_length_exceeded" or checks.is_error_str_context_window_exceeded(said)
        return RequestError(
            f"HTTP status {status}: {said}",
            status=status,
            passing=status in (408, 429) or status >= 500,
            too_long=status < 500 and too_long,
            retry_after=retry_after(error),
        )


def _encoded(body: dict[str, Any]) -> bytes:
    """JSON in ASCII, so that half of a surrogate pair, which a model can say, is encoded too."""
    return json.dumps(body, separators=(",", ":")).encode()


def _is_message(message: Any) -> bool:
    calls = message.get("tool_calls") if isinstance(message, dict) else 0
    return calls is None or (
        isinstance(calls, list)
        and all(isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls)
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _cost(litellm: Any, response: Any, name: str) -> float | None:
    """US dollars of one response; None if LiteLLM has no price for the model."""
    try:
        return float(litellm.completion_cost(response, model=name))
    except Exception:  # LiteLLM raises a bare Exception
        return None


def retry_after(error: BaseException) -> float | None:
    """Seconds that a refusal's headers ask to wait; None if they name no number."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if math.isnan(seconds) else max(0.0, seconds)
