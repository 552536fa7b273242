"""One verdict from one judge: a language model is asked for a score of each trajectory, and its reply is checked.

Each id exactly once and each score from 0 to 1, or the reply is refused and asked for again with the reason.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from mcp_rl.errors import ConfigError, JudgeBarred, JudgeDown, JudgeError
from mcp_rl.language_model import (
    Call,
    CostLimitReached,
    LanguageModel,
    LanguageModelError,
    Message,
    Spent,
    Unusable,
    check_language_model,
    import_litellm,
    read_reply,
)

_calls: ContextVar[list[Call] | None] = ContextVar("the requests of this verdict", default=None)


@dataclass(frozen=True)
class Score:
    """What the judge says about one trajectory."""

    value: float
    """0 to 1."""
    explanation: str


@dataclass(frozen=True)
class Verdict:
    """Scores by id, and what they took."""

    scores: dict[str, Score]
    calls: list[Call] = field(default_factory=list)
    cached: bool = False


class Judge:
    """A model that scores, anything that LiteLLM can reach. Its key comes from the environment.

    `deadline` is seconds for one reply, `retries` and `backoff` (seconds) rule further tries, `max_cost` (US dollars)
    bounds what all judges with the same `spent` take together. `on_call` hears of every request.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        deadline: float = 120.0,
        retries: int = 3,
        backoff: float = 1.0,
        *,
        max_cost: float | None = None,
        spent: Spent | None = None,
        on_call: Callable[[Call], None] = lambda call: None,
    ) -> None:
        self.model, self.base_url = model, base_url
        self._on_call = on_call
        self._asked = LanguageModel(
            model,
            base_url,
            role="judge",
            deadline=deadline,
            retries=retries,
            backoff=backoff,
            max_cost=max_cost,
            spent=Spent() if spent is None else spent,
            on_call=self._heard,
        )

    async def scores(self, messages: Sequence[Message], ids: Sequence[str]) -> Verdict:
        """A score for each id. Raises JudgeError where no usable reply came: JudgeDown where another try later may
        help, JudgeBarred where the judge refuses us or the cost limit is reached."""
        calls: list[Call] = []
        before = _calls.set(calls)
        try:
            reply: Any = await self._asked.ask(messages, _form(ids), partial(_problem, ids))
        except LanguageModelError as error:
            raise _typed(error) from error
        finally:
            _calls.reset(before)
        return Verdict(_scores(reply), calls)

    def _heard(self, call: Call) -> None:
        if (calls := _calls.get()) is not None:
            calls.append(call)
        self._on_call(call)


def check_judge(
    model: str,
    base_url: str | None = None,
    *,
    max_cost: float | None = None,
    price: tuple[float, float] | None = None,
) -> None:
    """Before a run: the judge's name is known, its key is there, and a cost limit can be kept. Raises ConfigError.

    `price` is US dollars for a million prompt and completion tokens, for a model that LiteLLM knows no price for.
    """
    if price is not None:
        name_price(model, price)
    try:
        check_language_model(model, base_url, role="judge", max_cost=max_cost)
    except ConfigError as error:
        hint = " Or say what it costs with judge.price=[PROMPT, COMPLETION]." if "no price" in str(error) else ""
        raise ConfigError(f"{error}{hint}") from error


def name_price(model: str, price: tuple[float, float]) -> None:
    """Tell LiteLLM what a million prompt and completion tokens of a model cost in US dollars."""
    provider, _, name = model.partition("/")
    entry = {
        "input_cost_per_token": price[0] / 1e6,
        "output_cost_per_token": price[1] / 1e6,
        "cache_creation_input_token_cost": price[0] / 1e6,
        "cache_read_input_token_cost": price[0] / 1e6,
        "litellm_provider": provider if name else "openai",
        "mode": "chat",
    }
    import_litellm().register_model({model: entry})


class _Entries(BaseModel):
    """Unknown keys are forgiven, though the schema forbids them, as strict structured output wants it."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, value: Any) -> Any:
        return {"scores": value} if isinstance(value, list) else value


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": False})


def _form(ids: Sequence[str]) -> type[BaseModel]:
    """The form of a reply: a list of scores for these ids."""
    one_of: Any = Literal[tuple(ids)]
    entry = create_model(
        "Score",
        __base__=_Entry,
        id=(one_of, ...),
        explanation=(str, ...),
        score=(Annotated[float, Field(strict=True, allow_inf_nan=False)], ...),
    )
    return create_model("Scores", __base__=_Entries, scores=(list[entry], ...))  # type: ignore[valid-type]


def _problem(ids: Sequence[str], reply: Any) -> str | None:
    seen: set[str] = set()
    for entry in reply.scores:
        if entry.id in seen:
            return f"it scores {entry.id} twice"
        if not 0 <= entry.score <= 1:
            return f"the score of {entry.id} is {entry.score}, which is not between 0 and 1"
        seen.add(entry.id)
    return None if len(seen) == len(ids) else f"it scores {len(seen)} of {len(ids)} trajectories"


def _scores(reply: Any) -> dict[str, Score]:
    return {entry.id: Score(float(entry.score), entry.explanation) for entry in reply.scores}


def _typed(error: LanguageModelError) -> JudgeError:
    """The same failure, in the class that says what can be done about it."""
    kinds = import_litellm().exceptions
    cause = error.__cause__
    if isinstance(error, CostLimitReached):
        return JudgeBarred(f"{error} Raise it with --max-judge-cost; the same command then continues.")
    if isinstance(cause, CostLimitReached):
        return JudgeBarred(f"{cause} Raise it with --max-judge-cost; the same command then continues.")
    if getattr(cause, "status_code", None) in (401, 403, 404):
        return JudgeBarred(str(error))
    passing = (
        TimeoutError,
        kinds.RateLimitError,
        kinds.Timeout,
        kinds.APIConnectionError,
        kinds.InternalServerError,
        kinds.ServiceUnavailableError,
        kinds.BadGatewayError,
    )
    return JudgeDown(str(error)) if isinstance(cause, passing) else JudgeError(str(error))


def read_cached(path: Path, ids: Sequence[str], asker: str | None = None) -> Verdict | None:
    """A verdict that was stored earlier; None where there is none, or it cannot be used.

    Where the same `asker` stored it, its step is played again after a kill: the verdict is then told as the new one
    that it was, with the requests that it took, so that the record of a run does not depend on when it was stopped.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        reply = read_reply(json.dumps({"scores": stored["scores"]}), _form(ids))
        if _problem(ids, reply):
            return None
        if asker is None or stored.get("asker") != asker:
            return Verdict(_scores(reply), cached=True)
        return Verdict(_scores(reply), [Call(**call) for call in stored["calls"]])
    except (OSError, ValueError, KeyError, TypeError, Unusable):
        return None


def write_cached(path: Path, verdict: Verdict, asker: str) -> None:
    """Store a verdict, whole or not at all, with who asked for it and what it took."""
    entries = [{"id": id, "explanation": s.explanation, "score": s.value} for id, s in verdict.scores.items()]
    content = {"scores": entries, "asker": asker, "calls": [asdict(call) for call in verdict.calls]}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    temporary.replace(path)


def usage(calls: Sequence[Call]) -> dict[str, float]:
    """What requests took together."""
    fields = [asdict(call) for call in calls]
    totals = {
        key: sum(entry[key] for entry in fields)
        for key in ("prompt_tokens", "completion_tokens", "cost_usd", "seconds")
    }
    return {"calls": len(calls), "refused": sum(call.problem is not None for call in calls), **totals}
