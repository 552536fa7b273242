"""One verdict from a judge: a request through LiteLLM, its reply checked, tried again where that can help.

LiteLLM takes about three seconds to import, and by default fetches its price list from the network at import; so it is
imported at the first verdict, in a thread, with its own copy of the list.
"""

import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from mcp_rl.errors import ConfigError, JudgeError

_LONGEST_WAIT = 60.0
Message = dict[str, str]


@dataclass(frozen=True)
class Score:
    """What the judge says about one trajectory."""

    value: float
    """0 to 1."""
    explanation: str


@dataclass
class Usage:
    """What a verdict took, refused replies included."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    """0 where LiteLLM knows no price for the model."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Judge:
    """A model that scores, anything that LiteLLM can reach. Its key comes from the environment."""

    model: str
    base_url: str | None = None
    deadline: float = 120.0
    """Seconds for one reply."""
    retries: int = 3
    """New tries after a refused reply, a rate limit or a failed connection."""
    backoff: float = 1.0
    """Seconds of the first wait; the later ones grow to twice, four times … of it, at random in between."""

    async def scores(self, messages: Sequence[Message], ids: Sequence[str]) -> "Verdict":
        """A score for each id. Raises JudgeError where no usable reply came."""
        litellm = await to_thread.run_sync(_litellm)
        asked = _Asked(self, litellm, list(messages), ids)
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=self._wait,
            retry=retry_if_exception(lambda error: _may_pass(error, litellm)),
            reraise=True,
        )
        try:
            scores: dict[str, Score] = await retrying(asked.once)
        except (_Refused, TimeoutError, litellm.exceptions.OpenAIError) as error:
            raise JudgeError(self._failure(error, asked.usage)) from error
        except Exception as error:
            if not type(error).__module__.startswith(("litellm", "openai", "httpx")):
                raise
            raise JudgeError(self._failure(error, asked.usage)) from error
        return Verdict(scores, asked.usage)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = _retry_after(error)
        if asked is not None:
            return min(asked, _LONGEST_WAIT)
        return float(wait_random_exponential(multiplier=self.backoff, max=_LONGEST_WAIT)(state))

    def _failure(self, error: BaseException, usage: Usage) -> str:
        tries = f"{usage.calls} {'try' if usage.calls == 1 else 'tries'}"
        where = f" at {self.base_url}" if self.base_url else ""
        said = re.sub(r"\b(sk|key)-[\w*-]+", r"\1-…", str(error)).strip() or type(error).__name__
        return f"The judge {self.model}{where} gave no usable verdict in {tries}: {said[:400]}"


@dataclass(frozen=True)
class Verdict:
    """Scores by id, and what they took."""

    scores: dict[str, Score]
    usage: Usage = field(default_factory=Usage)


def check_judge(model: str, base_url: str | None = None) -> None:
    """Before a run: the judge's name is known and its key is there. Raises ConfigError."""
    litellm = _litellm()
    try:
        litellm.get_llm_provider(model, api_base=base_url)
    except Exception as error:
        raise ConfigError(
            f"The judge {model!r} is no model name that LiteLLM knows; write it with its provider, "
            "as in openai/gpt-4.1-mini, or openai/NAME with a base URL of your own."
        ) from error
    if base_url is None:
        missing = litellm.validate_environment(model).get("missing_keys") or []
        if missing:
            raise ConfigError(f"The judge {model!r} needs {' and '.join(missing)} in the environment.")


class _Refused(Exception):
    """A reply that came and cannot be used."""


class _Asked:
    """One verdict being asked for."""

    def __init__(self, judge: Judge, litellm: Any, messages: list[Message], ids: Sequence[str]) -> None:
        self._judge, self._litellm, self._messages, self._ids = judge, litellm, messages, ids
        self._structured = True
        self._complaint: str | None = None
        self.usage = Usage()

    async def once(self) -> dict[str, Score]:
        try:
            text = await self._reply()
            return _read(text, self._ids)
        except _Refused as refused:
            self._complaint = str(refused)
            raise
        except self._litellm.exceptions.BadRequestError as error:
            if self._structured and re.search(r"response_format|json_schema|structured", str(error)):
                self._structured = False
                raise _Refused("it takes no response format") from error
            raise

    async def _reply(self) -> str:
        judge, started = self._judge, time.perf_counter()
        messages = self._messages
        if self._complaint:
            again = f"Your last reply could not be used: {self._complaint}. Answer again, with JSON alone."
            messages = [*messages, {"role": "user", "content": again}]
        self.usage.calls += 1
        try:
            with anyio.fail_after(judge.deadline):
                response = await self._litellm.acompletion(
                    model=judge.model,
                    messages=messages,
                    base_url=judge.base_url,
                    # A server of one's own often wants no key, and the client refuses to start without one.
                    api_key="none" if judge.base_url and not os.environ.get("OPENAI_API_KEY") else None,
                    response_format=_format(self._ids) if self._structured else None,
                    temperature=0,
                    timeout=judge.deadline,
                    drop_params=True,
                    num_retries=0,
                    max_retries=0,
                )
        except TimeoutError:
            raise TimeoutError(f"no reply in {judge.deadline:g} seconds") from None
        finally:
            self.usage.seconds += time.perf_counter() - started
        self._count(response)
        content = response.choices[0].message.content if response.choices else None
        if not content:
            raise _Refused("it was empty")
        return str(content)

    def _count(self, response: Any) -> None:
        usage = getattr(response, "usage", None)
        self.usage.prompt_tokens += getattr(usage, "prompt_tokens", 0) or 0
        self.usage.completion_tokens += getattr(usage, "completion_tokens", 0) or 0
        try:
            self.usage.cost_usd += float(self._litellm.completion_cost(response))
        except Exception:  # LiteLLM raises a bare Exception where it has no price
            return


def _litellm() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


def _format(ids: Sequence[str]) -> dict[str, Any]:
    entry = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "enum": list(ids)},
            "explanation": {"type": "string"},
            "score": {"type": "number"},
        },
        "required": ["id", "explanation", "score"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"scores": {"type": "array", "items": entry}},
        "required": ["scores"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "scores", "schema": schema, "strict": True}}


def _read(text: str, ids: Sequence[str]) -> dict[str, Score]:
    """The scores in a reply, each id exactly once and each score from 0 to 1. Raises _Refused."""
    entries = _entries(text)
    scores: dict[str, Score] = {}
    for entry in entries:
        id, value = str(entry.get("id")), entry.get("score")
        if id not in ids:
            raise _Refused(f"it scores {id[:40]!r}, which is no id of a trajectory")
        if id in scores:
            raise _Refused(f"it scores {id} twice")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _Refused(f"the score of {id} is no number")
        if not 0 <= value <= 1:
            raise _Refused(f"the score of {id} is {value}, which is not between 0 and 1")
        scores[id] = Score(float(value), str(entry.get("explanation") or ""))
    if len(scores) != len(ids):
        raise _Refused(f"it scores {len(scores)} of {len(ids)} trajectories")
    return scores


def _entries(text: str) -> list[dict[str, Any]]:
    """The list of scores in a reply that may have words or a code fence around its JSON."""
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"[{\[]", text)):
        try:
            value, _ = decoder.raw_decode(text, start)
        except ValueError:
            continue
        if isinstance(value, dict):
            value = value.get("scores")
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            return value
    raise _Refused("it holds no JSON object with a list of scores")


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
    return isinstance(error, (_Refused, TimeoutError, *passing))


def _retry_after(error: BaseException | None) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None


def read_cached(path: Path, ids: Sequence[str]) -> dict[str, Score] | None:
    """Scores that were stored earlier; None where there are none, or they cannot be used."""
    try:
        return _read(path.read_text(encoding="utf-8"), ids)
    except (OSError, ValueError, _Refused):
        return None


def write_cached(path: Path, scores: dict[str, Score]) -> None:
    """Store scores whole or not at all."""
    entries = [{"id": id, "explanation": score.explanation, "score": score.value} for id, score in scores.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"scores": entries}, ensure_ascii=False), encoding="utf-8")
    temporary.replace(path)
