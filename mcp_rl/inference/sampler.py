"""Draw tokens from logits, with their exact log-probabilities.

Each token takes one uniform number from a Philox stream keyed by the episode's seed; the k-th sampled token of an
episode takes the k-th number, whatever else is in the batch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcp_rl.inference.cache import round_up
from mcp_rl.inference.native.draws import draw_rows, logprobs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 32
"""Tokens whose probabilities are added before the running sum."""
AT_ONCE = 64
"""Fewest numbers that a stream generates at once."""
AT_A_COUNT = 4
"""Numbers that Philox makes of one state of its counter (Salmon et al., 2011)."""


class _Philox(threading.local):
    """A generator for each thread, which takes up any stream at any place: to make one takes ten times as long."""

    def __init__(self) -> None:
        bits = np.random.Philox(key=0)
        self._bits, self._state, self._generator = bits, bits.state, np.random.Generator(bits)

    def numbers(self, key: int, first: int, count: int) -> Any:
        """Return numbers of a stream from one on: float64 [count] in [0, 1). first: a multiple of `AT_A_COUNT`."""
        place = self._state["state"]
        place["key"][:] = key % 2**64, key >> 64
        place["counter"][:] = first // AT_A_COUNT, 0, 0, 0
        self._bits.state = self._state
        return self._generator.random(count)


_philox = _Philox()


class Draws:
    """The stream of uniform numbers of one episode, in [0, 1)."""

    def __init__(self, seed: int) -> None:
        self._key, self._made = seed % 2**128, 0
        self._numbers, self._taken = np.empty(0), 0

    def next(self) -> float:
        """Return the next number."""
        return float(self.take(1)[0])

    def take(self, count: int) -> Any:
        """Return the next numbers: float64 [count]."""
        first, self._taken = self._taken, self._taken + count
        if self._taken > len(self._numbers):
            more = round_up(max(AT_ONCE, count), AT_A_COUNT)
            self._numbers = np.concatenate((self._numbers[first:], _philox.numbers(self._key, self._made, more)))
            self._made += more
            first, self._taken = 0, count
        return self._numbers[first : self._taken]

    def give_back(self, count: int) -> None:
        """Take back the last numbers of the last call, which the next calls give again."""
        self._taken -= count


def draw(logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Draw one token for each row of logits [N, vocabulary] by inverting the cumulative distribution.

    temperatures, uniforms: one for each row; temperature 0 is greedy. Returns ids and natural-log probabilities in
    float32 under softmax(logits / temperature), at temperature 1 for greedy rows.
    """
    device = logits.device
    if device.type == "cpu":
        tokens, found = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
        draw_rows(_numbers(logits), np.array(temperatures, float), np.array(uniforms, float), tokens, found)
        return tokens.tolist(), found.tolist()
    scores = _scores(logits, temperatures)
    probabilities = scores.softmax(-1)
    ids = _inverted(probabilities, torch.tensor(uniforms, dtype=torch.float64)[:, None].to(device))[:, 0]
    if 0 in temperatures:
        greedy = torch.tensor([temperature == 0 for temperature in temperatures]).to(device)
        ids = torch.where(greedy, scores.argmax(-1), ids)
    logprobs = _logprobs(probabilities, ids[:, None])[:, 0]
    # A single transfer from the device; float64 holds every id exactly.
    drawn, taken = torch.stack([ids.double(), logprobs.double()]).tolist()
    return [int(token) for token in drawn], taken


def _numbers(logits: Tensor) -> Any:
    """Return logits on the CPU as an array of float32, without a call of torch's where they are: each lets other
    threads have the interpreter."""
    return (logits if logits.dtype == torch.float32 else logits.float()).numpy()


def _inverted(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the places [N, 1] at which sums of the first probabilities [N, V] pass the shares `uniforms` of the total.

    First the block of `BLOCK` tokens is found, then the token in it: a running sum is not vectorised.
    """
    if missing := -probabilities.shape[1] % BLOCK:
        probabilities = F.pad(probabilities, (0, missing))
    padded = probabilities.view(len(probabilities), -1, BLOCK)
    sums = padded.sum(-1).double()
    block, before = _passed(sums, uniforms * sums.sum(-1, keepdim=True))
    inside = padded.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double()
    return block * BLOCK + _passed(inside, before)[0]


def _passed(sizes: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the cumulative sums of sizes [N, n] exceed a target [N, 1], and what is left of it there.

    The target is kept below the total, so that a place of size 0 is never found.
    """
    cumulative = sizes.cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(cumulative, target, right=True)
    return place, (target - cumulative.gather(1, place) + sizes.gather(1, place)).clamp_(min=0)


def likeliest(logits: Tensor, temperatures: Sequence[float], most: int) -> list[list[tuple[int, float]]]:
    """Return the `most` most likely tokens of each row in descending order, with log-probabilities as from `draw`."""
    scores = _scores(logits, temperatures)
    ids = scores.topk(most).indices
    if logits.device.type == "cpu":
        logprobs = torch.empty(ids.shape)
        logprobs_of(_numbers(logits), np.array(temperatures, float), ids.numpy(), logprobs.numpy())
    else:
        logprobs = _logprobs(scores.softmax(-1), ids)
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]


def _logprobs(probabilities: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities of tokens [N, n]; -87.3 for those below float32's smallest normal number."""
    return probabilities.gather(1, ids).clamp_(min=torch.finfo(torch.float32).tiny).log_()


def _scores(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Return logits / temperature, those of greedy rows as they are, in float32."""
    scores = logits.float()
    if any(temperature not in (0, 1) for temperature in temperatures):
        divisors = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float64).to(logits.device)
        scores = scores / divisors[:, None].float()
    return scores
