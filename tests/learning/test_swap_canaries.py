"""The comparisons after a swap, with the rounding of 16 bits and without."""

import random

import pytest

from mcp_rl.errors import CanaryError
from mcp_rl.learning.canaries import LogprobProbe, check_arrived, check_cache, check_not_base, check_same_policy

TOKENS = 300


class Pair:
    """A policy that moves, seen by a learner and a sampler through rounding of `noise` nats."""

    def __init__(self, noise: float, seed: int) -> None:
        self.random, self.noise, self.step = random.Random(seed), noise, 0
        self.true = [-abs(self.random.gauss(0, 3)) for _ in range(TOKENS)]

    def move(self, size: float) -> None:
        self.true = [value + self.random.gauss(0, size) for value in self.true]
        self.step += 1

    def seen(self) -> list[float]:
        return [value + self.random.gauss(0, self.noise) for value in self.true]

    def probe(self, sampled: list[float] | None = None) -> LogprobProbe:
        return LogprobProbe(self.step, self.seen() if sampled is None else sampled, self.seen())


@pytest.mark.parametrize("noise", [1e-6, 0.03])
def test_a_policy_that_arrives_raises_no_alarm(noise: float) -> None:
    for seed in range(20):
        pair = Pair(noise, seed)
        first = pair.probe()
        check_same_policy(first, first)
        earlier = [first]
        for number in range(20):
            pair.move(10 ** -(1 + number % 7))
            probe = pair.probe()
            check_arrived(probe, earlier)
            check_same_policy(probe, first)
            check_cache(
                probe, range(100, 108), [probe.sampled[i] + pair.random.gauss(0, noise) for i in range(100, 108)]
            )
            earlier = [first, *earlier[-7:], probe]


@pytest.mark.parametrize(("noise", "size", "within"), [(1e-6, 1e-4, 1), (0.0, 0.005, 1), (0.03, 0.02, 60)])
def test_a_policy_that_does_not_arrive_is_noticed(noise: float, size: float, within: int) -> None:
    for seed in range(10):
        pair = Pair(noise, seed)
        earlier = [pair.probe()]
        stuck = pair.true
        for _ in range(within):
            pair.move(size)
            old = [value + pair.random.gauss(0, noise) for value in stuck]
            probe = pair.probe(old)
            try:
                check_arrived(probe, earlier)
            except CanaryError as error:
                assert "did not arrive in the sampler" in str(error)
                break
            earlier = [earlier[0], *earlier[-7:], probe]
        else:
            pytest.fail(f"not noticed in {within} steps")


def test_a_policy_that_hardly_moved_raises_no_alarm() -> None:
    pair = Pair(0.0, 1)
    first = pair.probe()
    pair.step += 1
    check_arrived(pair.probe(), [first])
    pair.true[:5] = [value - 1 for value in pair.true[:5]]
    check_arrived(pair.probe(sampled=list(first.sampled)), [first])


def test_sampling_the_base_instead_is_noticed() -> None:
    pair = Pair(0.02, 1)
    base = pair.seen()
    pair.move(0.005)
    check_not_base(pair.probe(), base)
    pair.move(0.4)
    check_not_base(pair.probe(), base)
    with pytest.raises(CanaryError, match="have the base model's"):
        check_not_base(pair.probe(sampled=base), base)


def test_kernels_that_round_differently_raise_no_alarm() -> None:
    """They round in the same way each time: with a negligible adapter the sampler gives the base's bits."""
    for seed in range(20):
        pair = Pair(0.0, seed)
        learned = [value + pair.random.gauss(0, 0.08) for value in pair.true]
        check_not_base(LogprobProbe(1, pair.true, learned), pair.true)


def test_another_scale_and_another_model_are_noticed() -> None:
    pair = Pair(1e-6, 1)
    first = pair.probe()
    before = list(pair.true)
    pair.move(0.02)
    louder = [old + 1.5 * (new - old) for old, new in zip(before, pair.true, strict=True)]
    check_same_policy(pair.probe(), first)
    with pytest.raises(CanaryError, match="not have the learner's policy of step 1"):
        check_same_policy(pair.probe(sampled=louder), first)
    other = Pair(1e-6, 2).probe(sampled=Pair(1e-6, 3).seen())
    with pytest.raises(CanaryError, match="another base model"):
        check_same_policy(other, other)
    with pytest.raises(CanaryError):  # no number is no agreement
        check_same_policy(LogprobProbe(1, [float("nan")] * TOKENS, pair.seen()), first)


def test_a_cache_of_an_older_policy_is_noticed() -> None:
    pair = Pair(1e-6, 1)
    old = pair.seen()
    pair.move(0.01)
    probe, places = pair.probe(), range(150, 158)
    check_cache(probe, places, [probe.sampled[place] for place in places])
    half = [(old[place] + probe.sampled[place]) / 2 for place in places]
    with pytest.raises(CanaryError, match="prefix cache is not of the policy of step 1"):
        check_cache(probe, places, half)
