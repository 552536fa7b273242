"""Measure whether an episode's results depend on the rest of the batch, on this machine with this model.

Matrix products with another number of rows may sum in another order. With the shapes that `attention` and `batch`
choose, MKL and oneDNN have not done so on any CPU tested; a few forward passes make sure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mcp_rl.inference.batch import DecodingBatch
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.row import Row, RowTurn
from mcp_rl.inference.sampler import Draws
from mcp_rl.inference.stops import StopRule

if TYPE_CHECKING:
    from mcp_rl.inference.policy import Policy

TURN = 2
STOP = 7
TRUNK = [*(i % 5 for i in range(150)), STOP]
"""Longer than a block, so sums over a trunk are split."""
LONG = 260
"""Ids of the long row in the batch."""


def is_batch_invariant(policy: Policy) -> bool:
    """Compare the logprobs of a short episode bit by bit: alone, and in a batch that includes a long one."""
    return _turns(policy, list(range(19)))[0] == _turns(policy, [0])[0]


@torch.inference_mode()
def decodes_as_it_prefills(policy: Policy) -> bool:
    """Compare the keys and values of sampled ids, bit by bit, with those of the same ids given in a prompt."""
    batch = DecodingBatch(policy, frozenset(), 1)
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
    batch = DecodingBatch(policy, frozenset([STOP]), len(seeds))
    long = min(LONG, policy.window - TURN - len(TRUNK) - 1)
    rows = [_row(seed, long if seed == 1 else 3 + seed % 2, TURN, [] if seed % 5 == 4 else TRUNK) for seed in seeds]
    _run(batch, rows)
    return [row.turn.logprobs for row in rows if row.turn is not None]


def _row(seed: int, length: int, tokens: int, trunk: list[int] | None = None) -> Row:
    row = Row(seed, Draws(seed), ids=[*(trunk or []), seed % 7, *(i % 7 for i in range(length))])
    row.turn = _turn(tokens)
    return row


def _turn(tokens: int) -> RowTurn:
    sampling = Sampling(max_tokens=tokens)
    return RowTurn(sampling, tokens, StopRule(sampling, (), None))


def _run(batch: DecodingBatch, rows: list[Row]) -> None:
    batch.start(rows)
    while batch.active:
        batch.step()
