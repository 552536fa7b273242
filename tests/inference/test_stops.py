"""Ends of turns: stop tokens, stop texts, seeds and refused parameters."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_rl.errors import EngineError
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.stops import StopRule
from mcp_rl.tiny.tokenizer import build_tokenizer
from tests.inference.models import prompt, tiny_model
from tests.inference.test_local_engine import play

TEXTS = [*"abc", "ab", "bc", "ca", "abc", "", "é", "é{"]


def decode(ids: list[int]) -> str:
    """Decode each id to one or two characters."""
    letters = string.ascii_letters
    return "".join(letters[i % 7] + (letters[i // 7 % 5] if i % 3 else "") for i in ids)


@given(st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=40), st.lists(st.text("abcé{", min_size=1)))
def test_a_turn_ends_with_the_token_that_completes_a_stop_text(ids: list[int], stop: list[str]) -> None:
    ids = [i if TEXTS[i] else 0 for i in ids]  # tokens without text are tested below

    def text(some: list[int]) -> str:
        return "".join(TEXTS[i] for i in some)

    rule = StopRule(Sampling(stop=tuple(stop)), (), text)
    end = next((n for n in range(1, len(ids) + 1) if any(s in text(ids[:n]) for s in stop)), None)
    assert rule.kept([], ids) == ((len(ids), False) if end is None else (end, True))
    for before in range(end or len(ids)):
        assert rule.kept(ids[:before], ids[before:]) == ((end or len(ids)) - before, end is not None), (
            "in several parts, the turn ends at the same token"
        )


def test_stop_texts_are_found_with_a_real_tokenizer() -> None:
    tokenizer = build_tokenizer()
    for text, stop in (
        ('{"name": "add"}</tool_call> and', "</tool_call>"),
        ("the answer is 42.\n\nNext", "\n\n"),
        ("naïve café ☕ closed", "☕"),
        ("one two three", "o th"),
    ):
        ids = tokenizer.encode(text, add_special_tokens=False)
        rule = StopRule(Sampling(stop=("never", stop)), (), tokenizer.decode)
        end, found = rule.kept([], ids)
        assert found and stop in tokenizer.decode(ids[:end]) and stop not in tokenizer.decode(ids[: end - 1])


async def test_a_stopped_turn_begins_as_the_unstopped_one() -> None:
    async with LocalEngine(tiny_model(), stop_token_ids=[], decode=decode) as engine:
        whole = (await play(engine, 3, [prompt()], Sampling(max_tokens=40))).turns[0]
        text = decode(whole.token_ids)
        stop = text[21:25]
        end = next(n for n in range(1, 41) if stop in decode(whole.token_ids[:n]))
        cut = (await play(engine, 3, [prompt()], Sampling(max_tokens=40, stop=("ZZZ", stop)))).turns[0]
        assert end < 40 and cut.finish == "stop"
        assert (cut.token_ids, cut.logprobs) == (whole.token_ids[:end], whole.logprobs[:end])
        token = whole.token_ids[7]
        by_id = (await play(engine, 3, [prompt()], Sampling(max_tokens=40, stop_token_ids=(token,)))).turns[0]
        assert by_id.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1] and by_id.finish == "stop"
        goes_on = await play(engine, 3, [prompt(), [1, 2]], Sampling(max_tokens=40, stop=(stop,)))
        assert len(goes_on.turns) == 2


async def test_a_turns_seed_leaves_the_episodes_stream_alone() -> None:
    async with LocalEngine(tiny_model(), stop_token_ids=[]) as engine:
        seeded = [await play(engine, seed, [prompt()], Sampling(max_tokens=9, seed=5)) for seed in (1, 2)]
        assert seeded[0] == seeded[1] == await play(engine, 5, [prompt()], Sampling(max_tokens=9))
        async with engine.episode(seed=1) as one:
            first = await one.generate(prompt(), Sampling(max_tokens=9, seed=5))
            second = await one.generate([4], Sampling(max_tokens=9))
        assert first == seeded[0].turns[0]
        # the episode's stream has not moved, so the same ids as a prompt draw the same
        assert second == (await play(engine, 1, [[*prompt(), *first.token_ids, 4]], Sampling(max_tokens=9))).turns[0]


async def test_impossible_sampling_is_refused() -> None:
    async with LocalEngine(tiny_model(), stop_token_ids=[]) as engine, engine.episode(seed=1) as episode:
        with pytest.raises(EngineError, match="cannot stop at 'x': it was made without `decode`"):
            await episode.generate(prompt(), Sampling(stop=("x",)))
        assert len((await episode.generate(prompt(), Sampling(max_tokens=2))).token_ids) == 2
    for bad in ({"stop": "text"}, {"stop": ("",)}, {"max_tokens": 0}, {"temperature": -1.0}, {"temperature": 1e400}):
        with pytest.raises(ValueError, match=r"stop must be a tuple|max_tokens must be at least 1"):
            Sampling(**bad)
