"""Questions over real HTTP to a server that misbehaves in every way that has been seen."""

import json
from typing import Any

import anyio
import httpx
import pytest
from pydantic import BaseModel, ConfigDict
from scenarios.chat_server import Answer, Asked, ChatServer, completion, failure, serve
from tenacity import RetryCallState

from mcp_rl.errors import ConfigError
from mcp_rl.inference.apis.chat_client import RequestError, retry_after, retrying
from mcp_rl.inference.apis.language_model import (
    CostLimitReached,
    LanguageModel,
    LanguageModelError,
    Unusable,
    check_language_model,
    read_reply,
)

GOOD = '{"words": ["a", "b"]}'
MESSAGES = [{"role": "user", "content": "Two words."}]


class Words(BaseModel):
    model_config = ConfigDict(extra="forbid")
    words: list[str]


def two(reply: Words) -> str | None:
    return None if len(reply.words) == 2 else f"it has {len(reply.words)} of 2 words"


def model(server: ChatServer, **options: Any) -> LanguageModel:
    return LanguageModel("openai/gpt-4.1-mini", server.url, role="author", backoff=0.01, **options)


def first(*answers: Any) -> Answer:
    """Give these answers in turn, the last one for ever."""
    return lambda asked: answers[min(asked.number, len(answers) - 1)]


async def test_a_reply_has_a_strict_form_and_a_cost() -> None:
    with serve(first(GOOD)) as server:
        asked = model(server)
        assert (await asked.ask(MESSAGES, Words, two)).words == ["a", "b"]
    [body] = [asked.body for asked in server.asked]
    assert body["response_format"]["json_schema"]["strict"] is True
    assert body["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
    spent = asked.spent
    assert (spent.calls, spent.refused, spent.prompt_tokens, spent.completion_tokens) == (1, 0, 1000, 100)
    assert spent.cost_usd == pytest.approx(1000 * 0.4e-6 + 100 * 1.6e-6)
    assert spent.seconds > 0


@pytest.mark.parametrize(
    "text",
    [
        f"Sure!\n```json\n{GOOD}\n```\nAnything else?",
        '{"words": ["a", "b",]}',
        "{'words': ['a', 'b']}",
        '{"words": ["a", "b"]',
        '{words: ["a", "b"]} // done',
    ],
)
async def test_json_is_found_and_repaired_without_a_new_question(text: str) -> None:
    with serve(first(text)) as server:
        assert (await model(server).ask(MESSAGES, Words, two)).words == ["a", "b"]
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("I would rather not.", "no JSON object"),
        ("", "it was empty"),
        ('{"words": ["a"]}', "it has 1 of 2 words"),
        ('{"words": "a b"}', "words: Input should be a valid list"),
        ('{"words": ["a", "b"], "more": 1}', "more: Extra inputs"),
        ("[1, 2]", "no JSON object"),
        ('{"words": ' + "[" * 5000, "no JSON object"),
        (completion('{"words": ["a", "b"', finish="length"), "it was cut off"),
    ],
)
async def test_an_unusable_reply_is_asked_for_again(bad: Any, said: str) -> None:
    with serve(first(bad, GOOD)) as server:
        asked = model(server)
        assert (await asked.ask(MESSAGES, Words, two)).words == ["a", "b"]
    assert said in server.asked[1].body["messages"][-1]["content"]
    assert (asked.spent.calls, asked.spent.refused) == (2, 1)


@pytest.mark.parametrize("trouble", [failure(429, headers={"retry-after": "0"}), failure(503), failure(500)])
async def test_rate_limits_and_failing_servers_are_retried(trouble: Any) -> None:
    with serve(first(trouble, trouble, GOOD)) as server:
        assert (await model(server).ask(MESSAGES, Words, two)).words == ["a", "b"]
    assert len(server.asked) == 3


async def test_a_refused_response_format_is_not_sent_again() -> None:
    def picky(asked: Asked) -> Any:
        return failure(400, "response_format is not supported") if "response_format" in asked.body else GOOD

    with serve(picky) as server:
        asked = model(server)
        for _ in range(2):
            assert (await asked.ask(MESSAGES, Words, two)).words == ["a", "b"]
    assert ["response_format" in asked.body for asked in server.asked] == [True, False, False]


async def test_concurrent_questions_survive_a_refused_format() -> None:
    def picky(asked: Asked) -> Any:
        return failure(400, "response_format is not supported") if "response_format" in asked.body else GOOD

    found: list[Words] = []
    with serve(picky) as server:
        asked = model(server)

        async def ask() -> None:
            found.append(await asked.ask(MESSAGES, Words, two))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask)
    assert [reply.words for reply in found] == [["a", "b"]] * 8


@pytest.mark.parametrize(("said", "seconds"), [("0.25", 0.25), ("1e9", 60), ("inf", 60), ("-5", 0)])
def test_retry_after_is_bounded(said: str, seconds: float) -> None:
    assert waits_for(said) == seconds


@pytest.mark.parametrize("said", ["nan", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", ""])
def test_an_unreadable_retry_after_is_ignored(said: str) -> None:
    assert 0 <= waits_for(said) <= 0.01


def waits_for(said: str) -> float:
    error = httpx.HTTPStatusError(
        "429", request=httpx.Request("POST", "http://x"), response=httpx.Response(429, headers={"retry-after": said})
    )
    asked = RequestError("busy", passing=True, retry_after=retry_after(error))
    state = RetryCallState(retries := retrying(3, 0.01), None, (), {})
    state.set_exception((RequestError, asked, None))
    return float(retries.wait(state))


@pytest.mark.parametrize("cut", ["1e", "1E", "1e-", "1e+", "1.", "12", "-", "12 "])
def test_a_number_that_was_cut_is_not_completed(cut: str) -> None:
    with pytest.raises(Unusable):
        read_reply('{"value": ' + cut, Number)


class Number(BaseModel):
    value: float


@pytest.mark.parametrize(("status", "tries"), [(401, 1), (404, 1), (400, 1), (503, 3)])
async def test_a_lasting_error_is_one_sentence_without_a_key(
    status: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "abc-0123456789-very-secret")
    echo = failure(status, "bad key abc-0123456789-very-secret or sk-12345678")
    with serve(first(echo)) as server, pytest.raises(LanguageModelError) as error:
        await model(server, retries=2).ask(MESSAGES, Words, two)
    assert len(server.asked) == tries
    said = str(error.value)
    assert error.value.exit_code == (2 if status in (401, 404) else 1)
    assert said.startswith(f"The author openai/gpt-4.1-mini at {server.url} gave no usable reply in {tries} ")
    assert "very-secret" not in said and "sk-12345678" not in said and "\n" not in said


async def test_no_request_exceeds_the_cost_limit() -> None:
    with serve(first(GOOD)) as server:
        asked = model(server, max_cost=0.0015)  # each question costs 0.00056
        for _ in range(2):
            await asked.ask(MESSAGES, Words, two)
        with pytest.raises(CostLimitReached, match=r"used up its cost limit of \$0\.0015"):
            await asked.ask(MESSAGES, Words, two)
    assert len(server.asked) == 2 and asked.spent.cost_usd < 0.0015


async def test_a_reply_that_never_comes_is_given_up() -> None:
    with pytest.raises(LanguageModelError, match="gave no usable reply in 1 try"):
        nobody = LanguageModel("openai/x", "http://127.0.0.1:9/v1", retries=0, deadline=5)
        await nobody.ask(MESSAGES, Words, two)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nonsense", {}, "LiteLLM does not know the author"),
        ("openai/gpt-4.1-mini", {}, "needs OPENAI_API_KEY"),
        ("openai/mine", {"base_url": "http://127.0.0.1:9/v1", "max_cost": 1.0}, "no price"),
    ],
)
def test_impossible_models_are_refused_before_a_start(
    name: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=words):
        check_language_model(name, options.pop("base_url", None), role="author", **options)


def test_a_repaired_reply_must_have_the_form_too() -> None:
    assert read_reply(f"{{not json}} {json.dumps({'words': []})}", Words).words == []
    with pytest.raises(Unusable):
        read_reply('{"words": [1, 2]}', Words)
