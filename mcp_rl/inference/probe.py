"""Does what an episode computes depend on what else is in the batch, on this machine with this model?

Matrix products may sum in another order when they have another number of rows. With the shapes that `attention` and
`batch` choose, that does not happen with MKL on the CPUs that we have seen; but it is measured rather than believed,
in a few passes.
"""

import torch

from mcp_rl.inference.batch import Batch
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.row import Row, Turn
from mcp_rl.inference.sampler import Draws
from mcp_rl.inference.stops import StopRule

TURN = 2
STOP = 7
TRUNK = [*(i % 5 for i in range(20)), STOP]
LONG = 260
"""Ids of a row beside which short ones are sampled."""


def is_batch_invariant(policy: Policy) -> bool:
    """Compare the logprobs of one short episode alone and among others, one of them long, bit by bit."""
    return _turns(policy, list(range(19)))[0] == _turns(policy, [0])[0]


@torch.inference_mode()
def decodes_as_it_prefills(policy: Policy) -> bool:
    """Compare keys and values, and so all that follows, of ids as they were sampled and of the same ids when given."""
    batch = Batch(policy, frozenset(), 1)
    row = _row(0, 5, TURN + 2)
    _run(batch, [row])
    sampled = batch.keys_and_values(row)
    batch.clear()
    again = Row(1, Draws(1), ids=row.ids[: row.computed])
    batch.release(row)
    again.turn = _turn(1)
    _run(batch, [again])
    return torch.equal(sampled, batch.keys_and_values(again))


@torch.inference_mode()
def _turns(policy: Policy, seeds: list[int]) -> list[list[float]]:
    batch = Batch(policy, frozenset([STOP]), len(seeds))
    long = min(LONG, policy.window - TURN - len(TRUNK) - 1)
    rows = [_row(seed, long if seed == 1 else 3 + seed % 2, TURN, [] if seed % 5 == 4 else TRUNK) for seed in seeds]
    _run(batch, rows)
    return [row.turn.logprobs for row in rows if row.turn is not None]


def _row(seed: int, length: int, tokens: int, trunk: list[int] | None = None) -> Row:
    row = Row(seed, Draws(seed), ids=[*(trunk or []), seed % 7, *(i % 7 for i in range(length))])
    row.turn = _turn(tokens)
    return row


def _turn(tokens: int) -> Turn:
    sampling = Sampling(max_tokens=tokens)
    return Turn(sampling, tokens, StopRule(sampling, (), None))


def _run(batch: Batch, rows: list[Row]) -> None:
    batch.start(rows)
    while batch.active:
        batch.step()
