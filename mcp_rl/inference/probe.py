"""Does what an episode computes depend on what else is in the batch, on this machine with this model?

Matrix products may sum in another order when they have another number of rows. With the shapes that `attention` and
`batch` choose, that does not happen with MKL on the CPUs that we have seen; but it is measured rather than believed,
in a few passes.
"""

import torch

from mcp_rl.inference.batch import Batch, Row, Turn
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.sampler import Draws

TURN = 3


def is_batch_invariant(policy: Policy) -> bool:
    """Compare the logprobs of one short episode alone and among others, bit by bit."""
    alone = _turn(policy, [0])
    return all(_turn(policy, others)[0] == alone[0] for others in ([0, 1], list(range(19))))


@torch.inference_mode()
def _turn(policy: Policy, seeds: list[int]) -> list[list[float]]:
    batch = Batch(policy, frozenset(), len(seeds))
    rows = [Row(seed, Draws(seed), ids=[seed, *range(3 + seed % 2)]) for seed in seeds]
    turns = [Turn(Sampling(max_tokens=TURN), TURN) for _ in rows]
    for row, turn in zip(rows, turns, strict=True):
        row.turn = turn
    batch.start(rows)
    while batch.active:
        batch.step()
    return [turn.logprobs for turn in turns]
