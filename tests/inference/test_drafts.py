"""Guesses of the next ids: what is guessed, and that samples, draws and ends are those of one id at a time."""

import pytest

from mcp_rl.inference.drafts import MOST, STEADY, TRIES, Drafts, Pace
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from tests.inference.models import STOP, tiny_model
from tests.inference.test_local_engine import mixed_episodes, play_all


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
        pace.took(20, guessed, seconds)
    assert [pace.guesses(20) for _ in range(TRIES)].count(False) == 1
    assert pace.guesses(64) is True  # another size, of which nothing is known
    for _ in range(9):
        pace.took(20, True, 3.0)
    assert [pace.guesses(31) for _ in range(TRIES)].count(True) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_guesses_change_no_bit(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same episodes again and again: from the second time on, nearly all guesses are right."""
    monkeypatch.setattr(Pace, "guesses", lambda self, rows: True)
    model, episodes = tiny_model(), mixed_episodes(40)
    sampling = Sampling(temperature=temperature, max_tokens=12, top_logprobs=2)
    played = []
    for guess in (False, True):
        async with LocalEngine(model, stop_token_ids=[STOP], guess=guess) as engine:
            if engine.gang:
                pytest.skip("results depend on the batch on this machine, and the engine has found that out")
            for _ in range(3):
                played.append(await play_all(engine, episodes, sampling))
            stats = engine.stats
            assert guess == (stats.accepted_tokens > 0)
            assert stats.accepted_tokens <= stats.guessed_tokens <= MOST * stats.decoded_tokens
    assert stats.accepted_tokens > stats.decoded_tokens / 5
    assert all(one == played[0] for one in played[1:])


async def test_a_gang_guesses_nothing() -> None:
    async with LocalEngine(tiny_model(), stop_token_ids=[STOP], gang=True) as engine:
        for _ in range(2):
            await play_all(engine, mixed_episodes(12), Sampling(temperature=0, max_tokens=8))
        assert engine.stats.guessed_tokens == 0
