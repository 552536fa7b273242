"""Ask a language model for JSON of a given form: replies are checked, and asked for again if that can help."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from anyio import to_thread
from pydantic import BaseModel, ValidationError

from mcp_rl.errors import ConfigError, McpRlError
from mcp_rl.inference.apis.chat_client import (
    ChatReply,
    LiteLLM,
    RequestError,
    failure,
    has_price,
    import_litellm,
    readable,
    retrying,
    within,
)
from mcp_rl.system.periods import timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORMAT_WORDS = re.compile(r"response_format|json_schema|structured|schema", re.IGNORECASE)
_CUT_NUMBER = re.compile(r"\d[\d.eE+-]*\s*\Z")
Message = dict[str, str]
Reply = TypeVar("Reply", bound=BaseModel)


class LanguageModelError(McpRlError):
    """A language model gave no usable reply."""


class Barred(LanguageModelError):
    """The model refuses the key, or does not exist."""

    exit_code = 2


class CostLimitReached(LanguageModelError):
    """Another request could cost more than is left."""


class Unusable(RequestError):
    """A reply that cannot be used. The message tells the model what is wrong with it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, passing=True)


@dataclass
class Spent:
    """Usage of all requests, refused replies included."""

    calls: int = 0
    refused: int = 0
    """Replies that could not be used, and requests that failed."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    """0 if LiteLLM knows no price for the model."""
    seconds: float = 0.0
    """Sum over all requests, however many were in flight."""


@dataclass
class ModelRequest:
    """A request and its outcome."""

    model: str
    problem: str | None = "interrupted"
    """Why the reply could not be used; None if it was used."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    unix_seconds: Sequence[float] = ()
    """The Unix times at which it was sent and answered."""


@dataclass
class LanguageModel:
    """A model that LiteLLM can reach. Its key comes from the environment."""

    name: str
    base_url: str | None = None
    role: str = "model"
    """The model's name in errors."""
    deadline: float = 120.0
    """Seconds for one reply."""
    retries: int = 3
    """Repetitions after an unusable reply, a rate limit or a failed connection."""
    backoff: float = 1.0
    """Seconds of the first wait at most; see `chat_client.retrying`."""
    max_cost: float | None = None
    """US dollars for all requests together. A request in flight counts as much as the dearest one so far."""
    spent: Spent = field(default_factory=Spent)
    on_call: Callable[[ModelRequest], None] | None = None
    """Called with every request when it is over."""

    _in_flight: int = 0
    _dearest: float = 0.0
    _structured: bool = True
    """False once the model has refused a response format."""

    async def ask(
        self,
        messages: Sequence[Message],
        form: type[Reply],
        check: Callable[[Reply], str | None] = lambda reply: None,
        *,
        seed: int | None = None,
        temperature: float = 0.0,
        on_call: Callable[[ModelRequest], None] | None = None,
    ) -> Reply:
        """Return a reply of this form in which `check` finds nothing wrong. `on_call` is called with its requests too.

        `form` must forbid unknown keys and have no defaults, as strict structured output requires. Raises
        LanguageModelError if there is no usable reply, CostLimitReached before a request that could cost too much.
        """
        client = LiteLLM(await to_thread.run_sync(import_litellm), self.name, self.base_url, self.deadline)
        sampling = {"seed": seed, "temperature": temperature}
        asked = _Question(self, client, list(messages), form, check, sampling, on_call)
        try:
            reply: Reply = await retrying(self.retries, self.backoff)(asked.once)
        except RequestError as error:
            kind = Barred if error.status in (401, 403, 404) else LanguageModelError
            what = f"gave no usable reply in {asked.tries} {'try' if asked.tries == 1 else 'tries'}"
            raise kind(failure(f"{self.role} {self.name}", self.base_url, what, error)) from error
        return reply


def check_language_model(name: str, base_url: str | None, *, role: str, max_cost: float | None = None) -> None:
    """Check before a start that the name is known, its key is set, and a cost limit can be kept. Raises ConfigError."""
    litellm = import_litellm()
    try:
        litellm.get_llm_provider(name, api_base=base_url)
    except Exception as error:
        raise ConfigError(
            f"LiteLLM does not know the {role} {name!r}: write it with its provider, as in openai/gpt-4.1-mini, or as "
            "openai/NAME with a base URL."
        ) from error
    if base_url is None:
        missing = litellm.validate_environment(name).get("missing_keys") or []
        if missing:
            raise ConfigError(f"The {role} {name!r} needs {' and '.join(missing)} in the environment.")
    if max_cost is not None and not has_price(name):
        raise ConfigError(
            f"LiteLLM knows no price for the {role} {name!r}, so no cost limit can be kept: leave it out."
        )


class _Question(Generic[Reply]):
    """A question, asked until a reply can be used."""

    def __init__(
        self,
        model: LanguageModel,
        client: LiteLLM,
        messages: list[Message],
        form: type[Reply],
        check: Callable[[Reply], str | None],
        sampling: dict[str, Any],
        on_call: Callable[[ModelRequest], None] | None,
    ) -> None:
        self._model, self._client, self._messages = model, client, messages
        self._form, self._check, self._sampling = form, check, sampling
        self._heard = [heard for heard in (on_call, model.on_call) if heard is not None]
        self._complaint: str | None = None
        self.tries = 0

    async def once(self) -> Reply:
        """Ask once. Raises RequestError, CostLimitReached."""
        model = self._model
        limit = model.max_cost
        if limit is not None and model.spent.cost_usd + (model._in_flight + 1) * model._dearest >= limit:
            raise CostLimitReached(f"The {model.role} {model.name} has used up its cost limit of ${limit:g}.")
        self.tries += 1
        request, structured = ModelRequest(model.name), model._structured
        try:
            reply = read_reply(_content(await self._answer(request, structured)), self._form)
            if problem := self._check(reply):
                raise Unusable(problem)
            request.problem = None
            return reply
        except Exception as error:
            request.problem = f"{type(error.__cause__ or error).__name__}: {readable(error)}"[:300]
            model.spent.refused += 1
            if isinstance(error, Unusable):
                self._complaint = str(error)
            elif structured and _refuses_format(error):
                model._structured = False
                raise Unusable("it takes no response format") from error
            raise
        finally:
            for heard in self._heard:
                heard(request)

    async def _answer(self, request: ModelRequest, structured: bool) -> ChatReply:
        """Send the question and count what it took."""
        model, spent, messages = self._model, self._model.spent, self._messages
        if self._complaint:
            again = f"Your last reply could not be used: {self._complaint}. Answer again, with JSON alone."
            messages = [*messages, {"role": "user", "content": again}]
        sampling = {**self._sampling, "response_format": _response_format(self._form) if structured else None}
        spent.calls += 1
        model._in_flight += 1
        try:
            with timed() as period:
                reply = await within(model.deadline, self._client.ask(messages, (), sampling))
            request.prompt_tokens, request.completion_tokens = reply.prompt_tokens, reply.completion_tokens
            request.cost_usd = reply.cost or 0.0
        finally:
            request.unix_seconds = period()
            request.seconds = request.unix_seconds[1] - request.unix_seconds[0]
            spent.prompt_tokens += request.prompt_tokens
            spent.completion_tokens += request.completion_tokens
            spent.cost_usd += request.cost_usd
            spent.seconds += request.seconds
            model._dearest = max(model._dearest, request.cost_usd)
            model._in_flight -= 1
        return reply


def _refuses_format(error: Exception) -> bool:
    """Return whether the model refused a request because of its response format."""
    return isinstance(error, RequestError) and error.status == 400 and bool(_FORMAT_WORDS.search(str(error)))


def read_reply(text: str, form: type[Reply]) -> Reply:
    """Read a reply whose JSON may be surrounded by words or a code fence, or hold slips. Raises Unusable."""
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

    if _CUT_NUMBER.search(text):  # the rest of the number is unknown
        return None

    try:
        return json_repair.loads(text[text.find("{") :]) if "{" in text else None
    except (ValueError, RecursionError):
        return None


def _content(reply: ChatReply) -> str:
    if not reply.message.get("content"):
        raise Unusable("it was empty")
    if reply.cut_off:  # half of a reply would look whole once repaired
        raise Unusable("it was cut off, since it was too long")
    return str(reply.message["content"])


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


@functools.lru_cache(maxsize=256)  # the same for every try of a question
def _response_format(form: type[BaseModel]) -> dict[str, Any]:
    name = form.__name__.strip("_").lower()
    return {"type": "json_schema", "json_schema": {"name": name, "schema": form.model_json_schema(), "strict": True}}
