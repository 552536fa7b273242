"""In any order of opening, sampling, dropping and closing, an episode's samples depend on the episode alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_rl.errors import CanaryError
from mcp_rl.inference import batch as batches
from mcp_rl.inference import grouping
from mcp_rl.inference import policy as policies
from mcp_rl.inference.batch import DecodingBatch
from mcp_rl.inference.drafts import Drafts, Pace
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.probe import decodes_as_it_prefills, is_batch_invariant
from mcp_rl.inference.row import Row, RowTurn
from mcp_rl.inference.sampler import Draws
from mcp_rl.inference.stops import StopRule
from tests.inference.models import STOP, plain_logprobs, prompt, tiny_model

STOPS = frozenset([STOP])


def turn(tokens: int) -> RowTurn:
    sampling = Sampling(max_tokens=tokens)
    return RowTurn(sampling, tokens, StopRule(sampling, STOPS, None))


@dataclass
class Life:
    """An episode: new ids, limit and sampled logprobs of each turn."""

    seed: int
    row: Row
    turns: list[tuple[list[int], int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)

    def ask(self, new: list[int], limit: int) -> None:
        self.row.ids += new
        self.row.turn = turn(limit)
        self.turns.append((new, limit))

    def settle(self) -> None:
        assert self.row.turn is not None
        self.logprobs.append(self.row.turn.logprobs)
        self.sampled.append(self.row.turn.ids)


def learned(lives: Sequence[Life]) -> Drafts:
    """Return guesses of which four of five are right in these episodes."""
    drafts = Drafts()
    for life in [*lives, *lives]:
        for end in range(5, len(life.row.ids) + 1):
            *before, last = life.row.ids[:end]
            drafts.learn([*before, last if end % 5 else (last + 1) % STOP])
    return drafts


class Always(Pace):
    """Checks every guess, however long that takes."""

    def guesses(self, rows: int) -> bool:
        return True


@cache
def policy_of(kind: str, *, native: bool = True) -> Policy:
    with pytest.MonkeyPatch.context() as patched:
        if not native:
            patched.setattr(policies, "NATIVE", 0)
        return Policy(tiny_model(kind, window=2048))


def alone(policy: Policy, life: Life) -> Life:
    """Play the same episode in a batch of its own."""
    batch = DecodingBatch(policy, STOPS, 1)
    again = Life(life.seed, Row(0, Draws(life.seed)))
    for new, limit in life.turns[: len(life.logprobs)]:
        again.ask(list(new), limit)
        ended = batch.start([again.row])
        while batch.active:
            ended = batch.step()
        assert ended == [again.row]
        again.settle()
    return again


def random_lives(
    policy: Policy, seed: int, *, rounds: int, long: int, drafts: Drafts | None = None
) -> tuple[list[Life], DecodingBatch]:
    """Play a random schedule with few slots and few prompts, so slots are reused, exchanged and copied all the time.

    Some prompts are earlier episodes, sampled ids included, cut anywhere and extended.
    """
    chance = random.Random(seed)
    batch = DecodingBatch(policy, STOPS, 6)
    batch.drafts = drafts
    batch.pace = Always()
    prompts = [prompt(trunk=i % 2, request=i, length=3 + 4 * i) for i in range(3)]
    prompts += [prompts[0][-5:], prompt(trunk=1, request=9, length=long)]
    idle: list[Life] = []
    running: dict[Row, Life] = {}
    done: list[Life] = []

    def settle(ended: list[Row]) -> None:
        for row in ended:
            life = running.pop(row)
            life.settle()
            idle.append(life)

    def opening() -> list[int]:
        known = [life.row.ids for life in (*done, *idle) if life.row.ids]
        if not known or chance.random() < 0.4:
            return list(chance.choice(prompts))
        ids = chance.choice(known)
        return [*ids[: chance.randint(1, len(ids))], *(chance.randrange(STOP) for _ in range(chance.randint(0, 3)))]

    for order in range(rounds):
        if idle and chance.random() < 0.4:
            life = idle.pop(chance.randrange(len(idle)))
            batch.release(life.row)
            done.append(life)
        lives = [idle.pop() for _ in range(chance.randint(0, len(idle)))] if chance.random() < 0.5 else []
        for life in lives:
            life.ask([chance.randrange(STOP) for _ in range(chance.randint(0, 5))], chance.randint(1, 6))
        for i in range(chance.randint(0, batch.room)):
            life = Life(order * 10 + i, Row(order * 10 + i, Draws(order * 10 + i)))
            life.ask(opening(), chance.randint(1, 6))
            lives.append(life)
        if lives:
            running |= {life.row: life for life in lives}
            settle(batch.start([life.row for life in lives]))
        if batch.active and chance.random() < 0.1:
            row = chance.choice(batch.sampled_rows())
            batch.release(row)
            done.append(running.pop(row))
        for _ in range(chance.randint(0, 4)):
            if batch.active:
                settle(batch.step())
        if chance.random() < 0.03 and not batch.active:
            batch.clear()
    return [*done, *idle], batch


@torch.inference_mode()
def test_the_probe_detects_batch_dependent_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = policy_of("qwen2", native=False)
    with monkeypatch.context() as patched:
        patched.setattr(policy, "logits", lambda ids, *rest: Policy.logits(policy, ids, *rest) * (1 + len(ids) / 1e6))
        assert not is_batch_invariant(policy)
    native = policy_of("qwen2")
    assert is_batch_invariant(native) and decodes_as_it_prefills(native)
    if torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert is_batch_invariant(policy) and decodes_as_it_prefills(policy), "the machine has not changed, so we did"


@pytest.mark.parametrize("native", [True, False])
@torch.inference_mode()
def test_episodes_sample_the_same_bits_alone_and_in_a_batch(native: bool) -> None:
    accepted = refused = 0

    @settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32), st.sampled_from(["qwen2", "qwen3", "llama"]), st.sampled_from([8, 90, 400]))
    def check(seed: int, kind: str, long: int) -> None:
        nonlocal accepted, refused
        policy = policy_of(kind, native=native)
        if not (is_batch_invariant(policy) and decodes_as_it_prefills(policy)):
            pytest.skip("results depend on the batch on this machine, and the engine finds that out")
        before, _ = random_lives(policy, seed, rounds=20, long=long)
        lives, batch = random_lives(policy, seed, rounds=20, long=long, drafts=learned(before))
        assert batch.stats.copied_tokens > 0
        accepted += batch.stats.accepted_tokens
        refused += batch.stats.guessed_tokens - batch.stats.accepted_tokens
        for life in lives:
            again = alone(policy, life)
            assert (again.sampled, again.logprobs) == (life.sampled, life.logprobs)

    check()
    assert accepted > 0 and refused > 0


@torch.inference_mode()
def test_groups_and_their_order_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are sorted and grouped at every chance, then each episode is played in other groups."""
    policy = policy_of("qwen2", native=False)
    if not (is_batch_invariant(policy) and decodes_as_it_prefills(policy)):
        pytest.skip("results depend on the batch on this machine, and the engine finds that out")
    seen: list[int] = []

    def spied(lengths: list[int]) -> list[tuple[int, int]]:
        seen.append(len(groups := grouping.decoding_groups(lengths)))
        return groups

    monkeypatch.setattr(batches, "decoding_groups", spied)
    for name, value in {"GROUP": 1, "SORT": 1, "WASTE": 1, "ALONE": 1 << 30}.items():
        monkeypatch.setattr(grouping, name, value)
    lives, _ = random_lives(policy, 3, rounds=20, long=400)
    assert max(seen) > 2
    for name, value in {"GROUP": 1 << 30, "WASTE": 1 << 30, "ALONE": 0}.items():
        monkeypatch.setattr(grouping, name, value)
    for life in lives:
        again = alone(policy, life)
        assert (again.sampled, again.logprobs) == (life.sampled, life.logprobs)


def test_groups_cover_all_rows_and_cost_less() -> None:
    lengths = [1500, 40, 40, 900, *[50] * 200]
    assert grouping.decoding_groups(lengths) == [(0, 1), (1, 4), (4, 204)]
    order = grouping.in_order([*[50] * 200, 1500])
    assert order == [200, *range(200)]
    assert grouping.decoding_groups([1500, *[50] * 200]) == [(0, 1), (1, 201)]
    assert grouping.in_order(lengths) is None, "moving rows would gain little"
    assert grouping.decoding_groups([30, 90, 60]) == [(0, 3)]
    pieces = [(20, 50, 0), (20, 60, 0), (20, 2000, 0), (400, 400, 900), (10, 10, 0), (10, 12, 0)]
    assert grouping.given_groups(pieces) == [(0, 2), (2, 3), (3, 4), (4, 6)]


@pytest.mark.parametrize("native", [True, False])
@torch.inference_mode()
def test_rows_grow_under_a_group_that_stays(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long row outgrows the store while a short one of another group goes on as before."""
    monkeypatch.setattr(grouping, "GROUP", 1)
    if not native:
        monkeypatch.setattr(policies, "NATIVE", 0)
    model = tiny_model(window=512)
    batch = DecodingBatch(Policy(model), frozenset(), 2)
    rows = [Row(i, Draws(i), ids=[(i + 7 * k) % STOP for k in range(length)]) for i, length in enumerate((120, 20))]
    for row in rows:
        row.turn = turn(12)
    batch.start(rows)
    capacity = batch._store.capacity
    while batch.active:
        batch.step()
    assert batch._store.capacity > capacity
    for row in rows:
        assert row.turn is not None
        reference = plain_logprobs(model, row.ids)[-len(row.turn.logprobs) :]
        assert row.turn.logprobs == pytest.approx(reference.tolist(), abs=1e-5)


@torch.inference_mode()
def test_a_recomputed_episode_continues_bit_by_bit() -> None:
    """A sampled stop token does not turn the ids before it into a trunk."""
    policy = policy_of("qwen3")
    if not (is_batch_invariant(policy) and decodes_as_it_prefills(policy)):
        pytest.skip("results depend on the batch on this machine, and the engine finds that out")
    ids = [*range(21), *prompt()[-3:]]
    forgetful, plain = Life(0, Row(0, Draws(0))), Life(0, Row(0, Draws(0)))
    batch, other = DecodingBatch(policy, STOPS, 1), DecodingBatch(policy, STOPS, 1)
    for new in (ids, [STOP, 5], [6, 7]):
        for life, engine in ((forgetful, batch), (plain, other)):
            life.ask(list(new), 4)
            engine.start([life.row])
            while engine.active:
                engine.step()
            life.settle()
        batch.clear()
    assert (forgetful.sampled, forgetful.logprobs) == (plain.sampled, plain.logprobs)


@pytest.mark.parametrize("seed", [0, 1])
def test_logprobs_are_right_with_copied_keys(seed: int) -> None:
    model = tiny_model(window=2048)
    with torch.inference_mode():
        lives, batch = random_lives(Policy(model), seed, rounds=40, long=300)
    assert batch.stats.copied_tokens > 300
    for life in lives:
        ids: list[int] = []
        reference = plain_logprobs(model, life.row.ids).tolist() if life.logprobs else []
        for (new, _), logprobs in zip(life.turns, life.logprobs, strict=False):
            start = len(ids) + len(new)
            ids += life.row.ids[len(ids) : start + len(logprobs)]
            assert logprobs == pytest.approx(reference[start - 1 : start - 1 + len(logprobs)], abs=1e-5)


def run_alone(batch: DecodingBatch, ids: list[int], seed: int = 0, tokens: int = 3) -> Row:
    row = Row(seed, Draws(seed), ids=list(ids))
    row.turn = turn(tokens)
    batch.start([row])
    while batch.active:
        batch.step()
    return row


@torch.inference_mode()
def test_the_longest_stored_beginning_is_copied() -> None:
    batch = DecodingBatch(policy_of("qwen2"), frozenset(), 8)
    first = run_alone(batch, [*range(40)], tokens=10)
    held = first.ids[: first.computed]
    assert batch.stats.prefill_tokens == 40
    batch.release(first)
    for ids, new in (
        ([*held, 1, 2, 3], 3),  # a conversation continued as a new prompt, sampled ids included
        ([*held[:25], 90, 91], 2),  # a branch inside a prompt
        ([*held[:44], 90], 1),  # and inside a sampled turn
        (held[:30], 1),  # a beginning: its last id is forwarded for its logits
        ([90, *held], len(held) + 1),  # no common beginning
    ):
        before = batch.stats.prefill_tokens, batch.stats.copied_tokens
        run_alone(batch, ids)
        assert batch.stats.prefill_tokens - before[0] == new
        assert batch.stats.copied_tokens - before[1] == len(ids) - new


@torch.inference_mode()
@pytest.mark.parametrize("waves", [1, 2, 5, 9])
def test_cached_tokens_depend_on_the_episodes_alone(waves: int) -> None:
    """They do not depend on how many start together or whose slot was reused, so a resumed run counts alike."""
    prompts = [prompt(trunk=i % 2, request=i // 3, length=5 + i // 3) for i in range(9)]
    batch = DecodingBatch(policy_of("qwen2"), STOPS, 9 if waves == 1 else 5)
    order = list(range(9))
    random.Random(waves).shuffle(order)
    for wave in range(waves):
        rows = [Row(i, Draws(i), ids=list(prompts[i])) for i in order[wave::waves]]
        for row in rows:
            row.turn = turn(2)
        batch.start(rows)
        while batch.active:
            batch.step()
        for row in rows:
            batch.release(row)
    beginnings = {tuple(ids[: n + 1]) for ids in prompts for n in range(len(ids))}
    assert batch.stats.cached_tokens == sum(map(len, prompts)) - len(beginnings)


@torch.inference_mode()
def test_rows_that_start_together_share_new_beginnings() -> None:
    batch = DecodingBatch(policy_of("qwen2"), frozenset(), 8)
    common = [*range(40)]
    rows = [Row(i, Draws(i), ids=[*common, i, 5]) for i in (0, 0, 1, 2)] + [Row(9, Draws(9), ids=[*common, 1, 7, 8])]
    for row in rows:
        row.turn = turn(1)
    batch.start(rows)
    assert batch.stats.prefill_tokens == 40 + 3 * 2 + 3  # the last shares one id more, which is not worth waiting for
    assert batch.stats.copied_tokens == sum(len(row.ids) - 1 for row in rows) - batch.stats.prefill_tokens


@torch.inference_mode()
def test_trunks_with_equal_beginnings_share_them() -> None:
    batch = DecodingBatch(policy_of("qwen2"), STOPS, 8)
    run_alone(batch, [*range(50), STOP, 1, 2])
    before = batch.stats.prefill_tokens
    run_alone(batch, [*range(45), 60, 61, STOP, 1, 2])
    assert batch.stats.prefill_tokens - before == 3 + 2


@torch.inference_mode()
def test_only_given_ids_are_copied_where_bits_differ() -> None:
    batch = DecodingBatch(policy_of("qwen2"), frozenset(), 8)
    batch.share_sampled = False
    first = run_alone(batch, [*range(20)], tokens=10)
    before = batch.stats.prefill_tokens
    run_alone(batch, [*first.ids, 1])
    assert batch.stats.prefill_tokens - before == len(first.ids) + 1 - 20


@torch.inference_mode()
def test_keys_of_an_older_policy_are_never_read() -> None:
    """Skip `clear`, which discards them, in each place that keeps something."""
    policy = Policy(tiny_model())
    plain, chat = [*range(30)], prompt()
    for ids in (plain, chat):
        batch = DecodingBatch(policy, STOPS, 4)
        run_alone(batch, ids)
        policy.load({}, policy.version + 1)
        with pytest.raises(CanaryError, match=f"what policy version {policy.version - 1} computed"):
            run_alone(batch, ids)
    batch = DecodingBatch(policy, STOPS, 4)
    row = Row(0, Draws(0), ids=plain)
    row.turn = turn(9)
    batch.start([row])
    policy.load({}, policy.version + 1)
    with pytest.raises(CanaryError, match="prefix cache"):
        batch.step()


@torch.inference_mode()
def test_rows_keep_their_slots_in_the_native_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("qwen2")
    assert policy.native is not None
    batch = DecodingBatch(policy, STOPS, 8)
    lives = [Life(seed, Row(seed, Draws(seed))) for seed in range(4)]
    for life in lives:
        life.ask([life.seed, *prompt()], 3 + 5 * life.seed)
    monkeypatch.setattr(batch, "_exchange", lambda _: pytest.fail("keys and values were exchanged"))
    batch.start([life.row for life in lives])
    slots = [life.row.slot for life in lives]
    while batch.active:
        batch.step()
    assert [life.row.slot for life in lives] == slots
