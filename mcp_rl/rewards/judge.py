"""A judge: a language model that is asked for a score of each trajectory, and whose reply is checked.

A reply must have each id exactly once and scores from 0 to 1; otherwise it is refused and asked for again with the
reason.
"""

from __future__ import annotations

import json
import os
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from mcp_rl.errors import ConfigError, JudgeBarred, JudgeDown, JudgeError
from mcp_rl.inference.apis.chat_client import RequestError, import_litellm
from mcp_rl.inference.apis.language_model import (
    Barred,
    CostLimitReached,
    LanguageModel,
    LanguageModelError,
    Message,
    ModelRequest,
    Spent,
    Unusable,
    check_language_model,
    read_reply,
)
from mcp_rl.system.chain import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_calls: ContextVar[list[ModelRequest] | None] = ContextVar("the requests of this verdict", default=None)


@dataclass(frozen=True)
class Score:
    """A judge's score of one trajectory."""

    value: float
    """From 0 to 1."""
    explanation: str


@dataclass(frozen=True)
class JudgeVerdict:
    """Scores by id, and the requests that they took."""

    scores: dict[str, Score]
    calls: list[ModelRequest] = field(default_factory=list)
    cached: bool = False


class Judge:
    """A model that scores: any that LiteLLM can reach. Its key comes from the environment.

    `deadline` is seconds for one reply, `retries` and `backoff` (seconds) rule further tries, `max_cost` (US dollars)
    limits the cost of all judges with the same `spent` together. `on_call` receives every request.
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
        on_call: Callable[[ModelRequest], None] = lambda call: None,
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

    async def scores(self, messages: Sequence[Message], ids: Sequence[str]) -> JudgeVerdict:
        """Ask for a score for each id. Raises JudgeError where no usable reply came: JudgeDown where another try later
        may help, JudgeBarred where the judge refuses access or the cost limit is reached."""
        calls: list[ModelRequest] = []
        before = _calls.set(calls)
        try:
            reply: Any = await self._asked.ask(messages, _form(ids), partial(_problem, ids))
        except LanguageModelError as error:
            raise _typed(error) from error
        finally:
            _calls.reset(before)
        return JudgeVerdict(_scores(reply), calls)

    def _heard(self, call: ModelRequest) -> None:
        if (calls := _calls.get()) is not None:
            calls.append(call)
        self._on_call(call)


def check_judge(
    model: str, base_url: str | None = None, *, max_cost: float | None = None, price: tuple[float, float] | None = None
) -> None:
    """Check before a run that the judge is known, has a key, and can keep a cost limit. Raises ConfigError otherwise.

    `price` is US dollars for a million prompt and completion tokens, for a model without a price in LiteLLM.
    """
    if price is not None:
        name_price(model, price)
    try:
        check_language_model(model, base_url, role="judge", max_cost=max_cost)
    except ConfigError as error:
        hint = " Or set its price with judge.price=[PROMPT, COMPLETION]." if "no price" in str(error) else ""
        raise ConfigError(f"{error}{hint}") from error


def name_price(model: str, price: tuple[float, float]) -> None:
    """Tell LiteLLM the price in US dollars of a million prompt and completion tokens of a model."""
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
    """Base of replies. Unknown keys are ignored; the schema forbids them, as strict structured output requires."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, value: Any) -> Any:
        return {"scores": value} if isinstance(value, list) else value


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": False})


def _form(ids: Sequence[str]) -> type[BaseModel]:
    """Return the form of a reply: a list of scores for these ids."""
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
    """Return the failure as a JudgeError of the class that tells what can be done about it."""
    if isinstance(error, CostLimitReached):
        return JudgeBarred(f"{error} Raise it with --max-judge-cost; the same command then continues.")
    if isinstance(error, Barred):
        return JudgeBarred(str(error))
    cause = error.__cause__
    passing = isinstance(cause, RequestError) and cause.passing and not isinstance(cause, Unusable)
    return JudgeDown(str(error)) if passing else JudgeError(str(error))


def read_cached(path: Path, ids: Sequence[str], asker: str | None = None) -> JudgeVerdict | None:
    """Return a stored verdict, or None where there is none that can be used.

    A verdict that the same `asker` stored belongs to a step that is played again after a kill. It is returned as a new
    one, with the requests that it took, so that the record of a run does not depend on when it was stopped.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.pop("digest") != _digest(stored):  # the verdict was not stored so
            return None
        reply = read_reply(json.dumps({"scores": stored["scores"]}), _form(ids))
        if _problem(ids, reply):
            return None
        if asker is None or stored.get("asker") != asker:
            return JudgeVerdict(_scores(reply), cached=True)
        return JudgeVerdict(_scores(reply), [ModelRequest(**call) for call in stored["calls"]])
    except (OSError, ValueError, KeyError, TypeError, Unusable):
        return None


def write_cached(path: Path, verdict: JudgeVerdict, asker: str) -> None:
    """Store a verdict atomically, with its asker and the requests that it took."""
    entries = [{"id": id, "explanation": s.explanation, "score": s.value} for id, s in verdict.scores.items()]
    content = {"scores": entries, "asker": asker, "calls": [asdict(call) for call in verdict.calls]}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    text = json.dumps({**content, "digest": _digest(content)}, ensure_ascii=False)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _digest(content: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(content, sort_keys=True).encode())


def usage(calls: Sequence[ModelRequest]) -> dict[str, float]:
    """Return the totals of requests: counts, tokens, US dollars, seconds."""
    fields = [asdict(call) for call in calls]
    totals = {
        key: sum(entry[key] for entry in fields)
        for key in ("prompt_tokens", "completion_tokens", "cost_usd", "seconds")
    }
    return {"calls": len(calls), "refused": sum(call.problem is not None for call in calls), **totals}
