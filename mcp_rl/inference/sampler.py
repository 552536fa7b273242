"""Drawing tokens from logits, with their exact log-probabilities.

One uniform number for each token, from a Philox stream keyed by the episode's seed; the k-th sampled token of an
episode uses the k-th number, whatever else is in the batch.
"""

import numpy as np
import torch
from torch import Tensor


class Draws:
    """The uniform numbers of one episode, in [0, 1)."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
        self._block: list[float] = []

    def next(self) -> float:
        if not self._block:
            self._block = self._generator.random(64).tolist()[::-1]
        return self._block.pop()


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token for each row of logits [N, vocabulary] by inverting the cumulative distribution.

    temperatures [N]: 0 is greedy. uniforms [N] in float64. Returns ids [N] and natural-log probabilities [N] in float32
    under softmax(logits / temperature), at temperature 1 for greedy rows.
    """
    greedy = temperatures == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]
    logprobs = scaled.log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # Kept below the total, so that a token of probability 0 at the end is never drawn.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    ids = torch.where(greedy, logprobs.argmax(-1), drawn)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]
