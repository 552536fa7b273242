"""Guesses of the next ids: what is guessed, and that samples, draws and ends are those of one id at a time."""

import pytest

from mcp_rl.inference import policy as policies
from mcp_rl.inference.batch import EngineStats
from mcp_rl.inference.drafts import CALL, MOST, PASSES, TRIES, Drafts, Pace
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.native.guesses import STEADY
from tests.inference.models import STOP, tiny_model
from tests.inference.test_local_engine import Played, mixed_episodes, play_all


def learned(*texts: list[int]) -> Drafts:
    drafts = Drafts()
    for text in texts:
        for end in range(5, len(text) + 1):
            drafts.learn(text[:end])
    return drafts


def test_what_was_sampled_twice_is_guessed() -> None:
    text = list(range(10, 20))
    assert learned(text).guess(text[:4], 8) == []
    assert learned(text, text).guess([1, 2, *text[:4]], 3) == text[4:7]
    assert learned(text, text).guess(text[:5], 99) == text[5:]


def test_a_guess_follows_the_policy() -> None:
    old, new = [1, 2, 3, 4, 5], [1, 2, 3, 4, 6]
    assert learned(*[old] * 9, new).guess(old[:4], 1) == [5]
    assert learned(*[old] * 9, *[new] * STEADY).guess(old[:4], 1) == [6]


def test_what_is_faster_is_done_and_the_other_is_tried_now_and_then() -> None:
    pace = Pace()
    for guessed, seconds in ((True, 1.0), (False, 2.0)):
        assert pace.guesses(20) is guessed
        pace.took(20, guessed, seconds, 1, 1)
    assert [pace.guesses(20) for _ in range(TRIES)].count(False) == 1
    assert pace.guesses(64) is True  # another size, of which nothing is known
    for _ in range(9):
        pace.took(20, True, 3.0, 1, 1)
    assert [pace.guesses(31) for _ in range(TRIES)].count(True) == 1


async def played_thrice(
    episodes: int, sampling: Sampling, *, guess: bool
) -> tuple[list[dict[int, Played]], EngineStats]:
    """The same episodes again and again: from the second time on, nearly all guesses are right."""
    model = tiny_model()
    async with LocalEngine(model, stop_token_ids=[STOP], decode=str, guess=guess) as engine:
        if engine.gang:
            pytest.skip("results depend on the batch on this machine, and the engine has found that out")
        return [await play_all(engine, mixed_episodes(episodes), sampling) for _ in range(3)], engine.stats


def test_a_call_has_as_many_passes_as_fit_its_time() -> None:
    pace = Pace()
    assert pace.passes(20, False) == 1  # nothing is known
    pace.took(20, False, CALL, 100, 5)
    assert pace.passes(31, False) == 5
    assert pace.passes(20, True) == pace.passes(64, False) == 1
    pace.took(20, False, CALL, 100, 10 * PASSES)
    assert pace.passes(20, False) == PASSES  # at once: the rows have become shorter


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_guesses_change_no_bit(native: bool, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "guesses", lambda self, rows: True)
    monkeypatch.setattr(policies, "NATIVE", policies.NATIVE if native else 0)
    sampling = Sampling(temperature=temperature, max_tokens=12, top_logprobs=0 if native else 2)
    plain, stats = await played_thrice(40, sampling, guess=False)
    assert stats.accepted_tokens == stats.guessed_tokens == 0
    guessed, stats = await played_thrice(40, sampling, guess=True)
    assert stats.accepted_tokens > stats.decoded_tokens / 5
    assert stats.accepted_tokens <= stats.guessed_tokens <= MOST * stats.decoded_tokens
    assert all(one == plain[0] for one in [*plain, *guessed])


@pytest.mark.parametrize("guess", [True, False])
async def test_passes_of_one_call_change_no_bit(guess: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a turn ends inside a call, at an id or a text that no pass knows: the next one draws what it would."""
    ends = (11, 12, 13)
    sampling = Sampling(max_tokens=8, stop=("1,",), stop_token_ids=ends)  # `str` puts a comma behind all ids but one
    played = []
    for passes in (1, 2, 16):
        monkeypatch.setattr(Pace, "passes", lambda self, rows, guessed, passes=passes: passes)
        played += (await played_thrice(24, sampling, guess=guess))[0]
    turns = [turn for episode in played[0].values() for turn in episode.turns]
    stopped = [turn.token_ids[-1] for turn in turns if turn.finish == "stop"]
    assert len(stopped) < len(turns)
    assert {STOP, *ends} & set(stopped) and set(stopped) - {STOP, *ends}, "not both at ids and at texts"
    assert all(one == played[0] for one in played[1:])


async def test_a_gang_guesses_nothing() -> None:
    async with LocalEngine(tiny_model(), stop_token_ids=[STOP], gang=True) as engine:
        for _ in range(2):
            await play_all(engine, mixed_episodes(12), Sampling(temperature=0, max_tokens=8))
        assert engine.stats.guessed_tokens == 0
