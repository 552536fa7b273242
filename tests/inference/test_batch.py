import random

import pytest
import torch

from mcp_rl.inference.batch import Batch, Row, Turn
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.sampler import Draws
from tests.inference.models import STOP, plain_logprobs, prompt, tiny_model


@pytest.mark.parametrize("seed", [0, 1])
def test_any_order_of_opening_sampling_dropping_and_closing_gives_right_logprobs(seed: int) -> None:
    """Few slots, few prompts: slots are reused, exchanged and copied from all the time."""
    chance = random.Random(seed)
    model = tiny_model()
    batch = Batch(Policy(model), frozenset([STOP]), 7)
    prompts = [prompt(trunk=i % 2, request=i, length=3 + 4 * i) for i in range(4)]
    idle: list[Row] = []
    finished: list[tuple[list[int], int, list[float]]] = []

    def settle(ended: list[Row]) -> None:
        for row in ended:
            assert row.turn is not None
            finished.append((list(row.ids), len(row.turn.ids), row.turn.logprobs))
            idle.append(row)

    with torch.inference_mode():
        for order in range(80):
            if idle and chance.random() < 0.3:
                batch.release(idle.pop(chance.randrange(len(idle))))
            rows = [idle.pop() for _ in range(chance.randint(0, len(idle)))] if chance.random() < 0.5 else []
            for row in rows:
                row.ids += [chance.randrange(STOP) for _ in range(chance.randint(0, 5))]
            for i in range(chance.randint(0, batch.room)):
                rows.append(Row(order * 10 + i, Draws(order * 10 + i), ids=list(chance.choice(prompts))))
            for row in rows:
                row.turn = Turn(Sampling(), chance.randint(1, 6))
            if rows:
                settle(batch.start(rows))
            if batch.active and chance.random() < 0.1:
                batch.release(chance.choice(batch.sampled_rows()))
            for _ in range(chance.randint(0, 4)):
                if batch.active:
                    settle(batch.step())
    assert len(finished) > 50
    assert batch.stats.cached_tokens > batch.stats.prefill_tokens
    for ids, count, logprobs in finished:
        assert logprobs == pytest.approx(plain_logprobs(model, ids)[-count:].tolist(), abs=1e-5)
