"""Asks a language model for JSON of a given form: through LiteLLM, checked, tried again where that can help.

LiteLLM takes about three seconds to import, and by default fetches its price list from the network at import; so it is
imported at the first question, in a thread, with its own copy of the list.
"""

import functools
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio
from anyio import to_thread
from pydantic import BaseModel, ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from mcp_rl.boundary import without_secrets
from mcp_rl.errors import ConfigError, McpRlError

_LONGEST_WAIT = 60.0
_FORMAT_WORDS = re.compile(r"response_format|json_schema|structured|schema", re.IGNORECASE)
_CUT_NUMBER = re.compile(r"\d[\d.eE+-]*\s*\Z")
_KEY = re.compile(r"\b(sk|key)-[\w*-]+")
Message = dict[str, str]
Reply = TypeVar("Reply", bound=BaseModel)


class LanguageModelError(McpRlError):
    """A language model gave no usable reply."""


class Barred(LanguageModelError):
    """The model refuses our key, or there is none of that name."""

    exit_code = 2


class CostLimitReached(LanguageModelError):
    """Another question would cost more than is left."""


class Unusable(Exception):
    """A reply that came and cannot be used; the message tells the model what is wrong with it."""


@dataclass
class Spent:
    """What questions took, refused replies included."""

    calls: int = 0
    refused: int = 0
    """Replies that could not be used, and calls that failed."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    """0 where LiteLLM knows no price for the model."""
    seconds: float = 0.0
    """All calls together, however many were in flight."""


@dataclass
class Call:
    """One request and what became of it."""

    model: str
    problem: str | None = "interrupted"
    """Why the reply was of no use; None where it was."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0


@dataclass
class LanguageModel:
    """A model that LiteLLM can reach. Its key comes from the environment."""

    name: str
    base_url: str | None = None
    role: str = "model"
    """What errors call it."""
    deadline: float = 120.0
    """Seconds for one reply."""
    retries: int = 3
    """New tries after an unusable reply, a rate limit or a failed connection."""
    backoff: float = 1.0
    """Seconds of the first wait; later ones grow to twice, four times … of it, at random in between."""
    max_cost: float | None = None
    """US dollars for all questions together. Calls in flight count as dear as the dearest so far."""
    spent: Spent = field(default_factory=Spent)
    on_call: Callable[[Call], None] | None = None
    """Hears of every request when it is over."""

    _in_flight: int = 0
    _dearest: float = 0.0
    _structured: bool = True
    """Whether it takes a response format, as far as we know."""

    async def ask(
        self,
        messages: Sequence[Message],
        form: type[Reply],
        check: Callable[[Reply], str | None] = lambda reply: None,
        *,
        seed: int | None = None,
        temperature: float = 0.0,
    ) -> Reply:
        """A reply of this form in which `check` finds nothing wrong.

        `form` forbids unknown keys and has no defaults, as strict structured output wants it. Raises
        LanguageModelError where no usable reply came, CostLimitReached before a call that would cost too much.
        """
        litellm = await to_thread.run_sync(import_litellm)
        asked = _Question(self, litellm, list(messages), form, check, {"seed": seed, "temperature": temperature})
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=self._wait,
            retry=retry_if_exception(lambda error: _may_pass(error, litellm)),
            reraise=True,
        )
        try:
            reply: Reply = await retrying(asked.once)
        except (Unusable, TimeoutError, litellm.exceptions.OpenAIError) as error:
            raise self._failure(error, asked.tries) from error
        except Exception as error:
            if not type(error).__module__.startswith(("litellm", "openai", "httpx")):
                raise
            raise self._failure(error, asked.tries) from error
        return reply

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = _retry_after(error)
        if asked is not None:
            return min(asked, _LONGEST_WAIT)
        return float(wait_random_exponential(multiplier=self.backoff, max=_LONGEST_WAIT)(state))

    def _failure(self, error: BaseException, tries: int) -> LanguageModelError:
        where = f" at {self.base_url}" if self.base_url else ""
        times = f"{tries} {'try' if tries == 1 else 'tries'}"
        kind = Barred if getattr(error, "status_code", None) in (401, 403, 404) else LanguageModelError
        return kind(
            f"The {self.role} {self.name}{where} gave no usable reply in {times}: {_said(error)[:400].rstrip('.')}."
        )


def _said(error: BaseException) -> str:
    """What an error says, in one line and without a key."""
    return " ".join(_KEY.sub(r"\1-…", without_secrets(str(error))).split()) or type(error).__name__


def check_language_model(name: str, base_url: str | None, *, role: str, max_cost: float | None = None) -> None:
    """Before anything starts: the name is known, its key is there, and a cost limit can be kept. Raises ConfigError."""
    litellm = import_litellm()
    try:
        litellm.get_llm_provider(name, api_base=base_url)
    except Exception as error:
        raise ConfigError(
            f"The {role} {name!r} is no model name that LiteLLM knows; write it with its provider, "
            "as in openai/gpt-4.1-mini, or openai/NAME with a base URL of your own."
        ) from error
    if base_url is None:
        missing = litellm.validate_environment(name).get("missing_keys") or []
        if missing:
            raise ConfigError(f"The {role} {name!r} needs {' and '.join(missing)} in the environment.")
    if max_cost is not None and not _has_price(litellm, name):
        raise ConfigError(
            f"LiteLLM knows no price for the {role} {name!r}, so no cost limit can be kept: leave it out."
        )


def import_litellm() -> Any:
    """LiteLLM, quiet and without looking anything up on the network."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


class _Question(Generic[Reply]):
    """One reply being asked for."""

    def __init__(
        self,
        model: LanguageModel,
        litellm: Any,
        messages: list[Message],
        form: type[Reply],
        check: Callable[[Reply], str | None],
        sampling: dict[str, Any],
    ) -> None:
        self._model, self._litellm, self._messages = model, litellm, messages
        self._form, self._check, self._sampling = form, check, sampling
        self._complaint: str | None = None
        self._call: Call | None = None
        self._structured = False
        self.tries = 0

    async def once(self) -> Reply:
        self._call = None
        try:
            return await self._once()
        finally:
            if self._call is not None and self._model.on_call is not None:
                self._model.on_call(self._call)

    async def _once(self) -> Reply:
        try:
            reply = read_reply(await self._text(), self._form)
            if problem := self._check(reply):
                raise Unusable(problem)
        except Exception as error:
            if self._call is not None:
                self._call.problem = f"{type(error).__name__}: {_said(error)}"[:300]
            self._model.spent.refused += not isinstance(error, CostLimitReached)
            if isinstance(error, Unusable):
                self._complaint = str(error)
            elif isinstance(error, self._litellm.exceptions.BadRequestError) and self._was_structured(error):
                raise Unusable("it takes no response format") from error
            raise
        if self._call is not None:
            self._call.problem = None
        return reply

    def _was_structured(self, error: Exception) -> bool:
        """Whether the model complains about the response format that it was sent; if so, it is not sent again."""
        if not self._structured or not _FORMAT_WORDS.search(str(error)):
            return False
        self._model._structured = False
        return True

    async def _text(self) -> str:
        model = self._model
        messages = self._messages
        if self._complaint:
            again = f"Your last reply could not be used: {self._complaint}. Answer again, with JSON alone."
            messages = [*messages, {"role": "user", "content": again}]
        limit = model.max_cost
        if limit is not None and model.spent.cost_usd + (model._in_flight + 1) * model._dearest >= limit:
            raise CostLimitReached(f"The {model.role} {model.name} has used up its cost limit of ${limit:g}.")
        self.tries += 1
        model.spent.calls += 1
        model._in_flight += 1
        self._call = Call(model.name)
        self._structured = model._structured
        started = time.perf_counter()
        try:
            with anyio.fail_after(model.deadline):
                response = await self._litellm.acompletion(
                    model=model.name,
                    messages=messages,
                    base_url=model.base_url,
                    # A server of one's own often wants no key, and the client refuses to start without one.
                    api_key="none" if model.base_url and not os.environ.get("OPENAI_API_KEY") else None,
                    response_format=_response_format(self._form) if self._structured else None,
                    **self._sampling,
                    timeout=model.deadline,
                    drop_params=True,
                    num_retries=0,
                    max_retries=0,
                )
            self._count(response)
        except TimeoutError:
            raise TimeoutError(f"no reply in {model.deadline:g} seconds") from None
        finally:
            self._call.seconds = time.perf_counter() - started
            model.spent.seconds += self._call.seconds
            model._in_flight -= 1
        return _content(response)

    def _count(self, response: Any) -> None:
        spent, usage = self._model.spent, getattr(response, "usage", None)
        spent.prompt_tokens += getattr(usage, "prompt_tokens", 0) or 0
        spent.completion_tokens += getattr(usage, "completion_tokens", 0) or 0
        try:
            cost = float(self._litellm.completion_cost(response, model=self._model.name))
        except Exception:  # LiteLLM raises a bare Exception where it has no price
            cost = 0.0
        spent.cost_usd += cost
        if self._call is not None:
            self._call.prompt_tokens = getattr(usage, "prompt_tokens", 0) or 0
            self._call.completion_tokens = getattr(usage, "completion_tokens", 0) or 0
            self._call.cost_usd = cost
        self._model._dearest = max(self._model._dearest, cost)


def read_reply(text: str, form: type[Reply]) -> Reply:
    """The reply in a text that may have words or a code fence around its JSON, or slips in it. Raises Unusable."""
    problem = "it holds no JSON object"
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"\{", text)):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        try:
            return form.model_validate(value)
        except ValidationError as error:
            problem = _first_problem(error)
            break
    try:
        return form.model_validate(_repaired(text))
    except ValidationError:
        raise Unusable(problem) from None


def _repaired(text: str) -> Any:
    import json_repair

    if _CUT_NUMBER.search(text):  # nobody knows how the number would have gone on
        return None

    try:
        return json_repair.loads(text[text.find("{") :]) if "{" in text else None
    except (ValueError, RecursionError):
        return None


def _content(response: Any) -> str:
    if not response.choices or not response.choices[0].message.content:
        raise Unusable("it was empty")
    choice = response.choices[0]
    if choice.finish_reason == "length":  # a repaired half of a reply would look whole
        raise Unusable("it was cut off, since it was too long")
    return str(choice.message.content)


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


@functools.lru_cache(maxsize=256)  # the same for every try of a question
def _response_format(form: type[BaseModel]) -> dict[str, Any]:
    name = form.__name__.strip("_").lower()
    return {"type": "json_schema", "json_schema": {"name": name, "schema": form.model_json_schema(), "strict": True}}


def _may_pass(error: BaseException, litellm: Any) -> bool:
    """Whether another try can help."""
    kinds = litellm.exceptions
    passing = (
        kinds.RateLimitError,
        kinds.Timeout,
        kinds.APIConnectionError,
        kinds.InternalServerError,
        kinds.ServiceUnavailableError,
        kinds.BadGatewayError,
    )
    return isinstance(error, (Unusable, TimeoutError, *passing))


def _retry_after(error: BaseException | None) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if math.isnan(seconds) else max(0.0, seconds)


def _has_price(litellm: Any, name: str) -> bool:
    try:
        return bool(litellm.get_model_info(name).get("input_cost_per_token"))
    except Exception:  # LiteLLM raises several kinds where it does not know the model
        return False
