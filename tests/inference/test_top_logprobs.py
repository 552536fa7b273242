"""The likeliest tokens beside each sampled one, under the distribution that it was drawn from."""

import pytest
import torch

from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.sampler import draw, likeliest
from tests.inference.models import STOP, prompt, tiny_model


@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_the_likeliest_tokens_match_the_models_distribution(temperature: float) -> None:
    model, given = tiny_model(), prompt()
    turns: dict[int, Completion] = {}
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        for wanted in (0, 1, 5, 1000):
            async with engine.episode(seed=3) as episode:
                sampling = Sampling(temperature=temperature, max_tokens=8, top_logprobs=wanted)
                turns[wanted] = await episode.generate(given, sampling)
    ids = turns[5].token_ids
    assert all(turn.token_ids == ids for turn in turns.values()), "asking for them changed what is drawn"
    assert turns[0].top_logprobs == [] and len(turns[1000].top_logprobs[0]) == 97
    with torch.no_grad():
        logits = model(torch.tensor([[*given, *ids]])).logits[0, len(given) - 1 : -1]
    reference = (logits / (temperature or 1.0)).log_softmax(-1)
    for place, (top, logprob) in enumerate(zip(turns[5].top_logprobs, turns[5].logprobs, strict=True)):
        values, tokens = reference[place].topk(5)
        assert [token for token, _ in top] == tokens.tolist()
        assert [value for _, value in top] == pytest.approx(values.tolist(), abs=1e-5)
        assert dict(turns[1000].top_logprobs[place])[ids[place]] == logprob
        assert turns[1].top_logprobs[place] == top[:1]
        assert temperature or top[0] == (ids[place], logprob)


def test_a_token_without_probability_has_a_finite_logprob() -> None:
    """JSON knows no infinity."""
    logits = torch.tensor([[0.0, 300.0, -300.0, -torch.inf]])
    [top] = likeliest(logits, [1.0], 4)
    assert top[0] == (1, 0.0) and [token for token, _ in top] == [1, 0, 2, 3]
    assert all(value == pytest.approx(-87.336, abs=1e-3) for _, value in top[1:])
    assert draw(logits, [1.0], [0.999999]) == ([1], [0.0])
