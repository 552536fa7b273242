"""The native forward pass and sampler: on other processors, in several threads, beyond the store; what is drawn."""

import platform
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from mcp_rl.inference.batch import DecodingBatch
from mcp_rl.inference.cache import PAGE, KvStore
from mcp_rl.inference.native import model as native
from mcp_rl.inference.native.guesses import NOTHING
from mcp_rl.inference.native.model import TokenPlaces
from mcp_rl.inference.native.together import together
from mcp_rl.inference.native_turns import NativeTurns
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.row import Row
from mcp_rl.inference.sampler import Draws, draw
from tests.inference.models import STOP, plain_logprobs, tiny_model
from tests.inference.other_lanes import passes_with_other_lanes
from tests.inference.test_batch import alone, random_lives, turn


@pytest.mark.skipif(platform.machine() != "x86_64", reason="vectors of other processors have one length")
def test_vectors_of_the_other_length_compute_the_same(tmp_path: Path) -> None:
    passes_with_other_lanes(tmp_path, "tests/inference/test_forward.py", "native and share-4")


@torch.inference_mode()
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(tiny_model(window=2048))
    assert policy.native is not None
    monkeypatch.setattr(native, "WORK", 1)
    monkeypatch.setattr(policy.native, "_most", 3)
    used: list[int] = []
    monkeypatch.setattr(native, "together", lambda *a, threads: (used.append(threads), together(*a, threads=threads)))
    lives, _ = random_lives(policy, 5, rounds=12, long=90)
    assert max(used) == 3
    monkeypatch.setattr(policy.native, "_most", 1)
    for life in lives:
        again = alone(policy, life)
        assert (again.sampled, again.logprobs) == (life.sampled, life.logprobs)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@torch.inference_mode()
def test_trunks_and_rows_of_several_pages_are_read_whole(kind: str) -> None:
    """Four rows on one trunk, so their queries read it together, and one on none; each row is longer than a page."""
    model = tiny_model(kind, window=1024)
    batch = DecodingBatch(Policy(model), frozenset([STOP]), 5)
    trunk = [*(i % 11 for i in range(3 * PAGE + 5)), STOP]
    rows = [
        Row(i, Draws(i), ids=[*(trunk if i else []), *((i + 5 * k) % STOP for k in range(PAGE + 20 * i))])
        for i in range(5)
    ]
    for row in rows:
        row.turn = turn(6)
    batch.start(rows)
    while batch.active:
        batch.step()
    for row in rows:
        assert row.turn is not None and row.start == (len(trunk) if row.order else 0)
        wanted = plain_logprobs(model, row.ids)[-len(row.turn.logprobs) :]
        assert row.turn.logprobs == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize("vocabulary", [64, 97, 4608])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_draw_inverts_the_cumulative_distribution(vocabulary: int, temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(500, vocabulary) * 3
    logits[:, vocabulary // 2] = -torch.inf
    uniforms = torch.rand(500, dtype=torch.float64)
    ids, logprobs = draw(logits, [temperature] * 500, uniforms.tolist())
    exact = (logits / temperature).double().log_softmax(-1)
    sums = exact.exp().cumsum(-1)
    for row, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        before = sums[row, token - 1].item() if token else 0.0
        assert before - 1e-6 <= uniforms[row] <= sums[row, token].item() + 1e-6
        assert logprob == pytest.approx(exact[row, token].item(), abs=1e-5)
    assert vocabulary // 2 not in ids


def test_the_ends_of_the_distribution_can_be_drawn() -> None:
    logits = torch.full((2, 100), -torch.inf)
    logits[:, 40] = logits[:, 60] = 0.0
    ids, logprobs = draw(logits, [1.0, 1.0], [0.0, 1.0 - 2**-53])
    assert ids == [40, 60] and logprobs == pytest.approx([-0.6931472] * 2)
    assert draw(torch.tensor([[1.0, 5.0, 5.0]]), [0.0], [0.9])[0] == [1], "greedy takes the first of equals"


@pytest.mark.parametrize("seed", [5, 2**64 + 7, -1])
def test_a_stream_gives_the_numbers_of_philox_however_they_are_taken(seed: int) -> None:
    whole = np.random.Generator(np.random.Philox(key=seed % 2**128)).random(500).tolist()
    parts, taken = Draws(seed), list[float]()
    for count, unused in [(3, 0), (60, 59), (1, 0), (130, 65), (64, 64), (2, 1), (63, 0), (90, 7)] * 2:
        Draws(6).next()
        taken += parts.take(count).tolist()[: count - unused]
        parts.give_back(unused)
        taken.append(parts.next())
    assert len(set(whole)) == 500 and taken == whole[: len(taken)]


@pytest.mark.parametrize(("token", "position", "row"), [(97, 0, 0), (-1, 0, 0), (5, 64, 0), (5, 0, 2)])
def test_nothing_is_read_or_written_beyond_the_store(token: int, position: int, row: int) -> None:
    policy = Policy(tiny_model())
    assert policy.native is not None
    store = KvStore(policy.shape, 2, 64)
    with pytest.raises(IndexError, match=r"are not all below 97, 2 and 64"):
        policy.native.logits(store, TokenPlaces.of([(row, 0, None)]).tokens([token], [position]), [])
    out = policy.native.logits(store, TokenPlaces.of([(1, 0, None)]).tokens([5], [63]), [])
    assert np.isfinite(out[:, :97].numpy()).all()


@pytest.mark.parametrize(("ids", "limit", "refused"), [([5] * 60, 6, True), ([97], 1, True), ([5] * 60, 5, False)])
def test_no_call_samples_beyond_the_store(ids: list[int], limit: int, refused: bool) -> None:
    policy, row = Policy(tiny_model()), Row(0, Draws(0), ids=ids, slot=1, turn=turn(limit))
    assert policy.native is not None
    store, turns = KvStore(policy.shape, 2, 64), NativeTurns([row]).arrays(99)
    beyond = pytest.raises(IndexError, match=r"are not all below 97, 2 and 64")
    with beyond if refused else nullcontext():
        policy.native.decode(store, turns, [], NOTHING, np.array([], np.int64), passes=9, most=0)
    assert turns.counts.tolist() == [0 if refused else limit]
