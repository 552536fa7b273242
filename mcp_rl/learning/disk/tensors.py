"""The last training batch on disk, for inspection: `tensors/batch.safetensors`.

All tensors are [T], over packed tokens. The prompt of a trajectory, up to its first sampled token, lies in nodes that
trajectories share; the rest is a node of its own, so every sampled token is there as often as it was trained on. A
token attends to those before it in its own node, and to the nodes that lead there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mcp_rl.learning.forward.tree import build_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.learning.samples import Sample

Array = npt.NDArray[np.generic]
_TYPES = {
    "tokens": np.int32,
    "input_pos": np.int32,
    "group_ids": np.int32,
    "parent_ids": np.int32,
    "assistant_mask": np.bool_,
    "logprobs": np.float32,
    "advantages": np.float32,
    "weights": np.float32,
}


def batch_tensors(samples: Sequence[Sample]) -> dict[str, Array]:
    """Pack samples into tensors; without samples these are empty.

    tokens, input_pos (position in its own sequence), group_ids (its node), parent_ids (the node before; the root is its
    own) are int32; assistant_mask (the policy sampled it) is bool; logprobs (the sampler's), advantages and weights (of
    the token in the loss) are float32, and 0 where the mask is off.
    """
    columns: dict[str, list[Array]] = {name: [] for name in _TYPES}

    def node(parent: int, tokens: Array, first: int, number: int, **sampled: Array) -> None:
        known = {
            "tokens": tokens,
            "input_pos": np.arange(first, first + len(tokens)),
            "group_ids": np.full(len(tokens), number),
            "parent_ids": np.full(len(tokens), parent),
            **sampled,
        }
        for name, column in columns.items():
            column.append(known.get(name, np.zeros(len(tokens))))

    if samples:
        prompts = [tuple(sample.tokens[: int(sample.at[0]) + 1]) for sample in samples]
        distinct = list(dict.fromkeys(prompts))
        tree = build_tree(distinct, min_shared=1)
        for number, run in enumerate(tree.nodes):
            node(max(0, run.parent), tree.tokens[run.start : run.stop], run.depth, number)
        leaf = dict(zip(distinct, tree.leaf_of, strict=True))
        for number, (prompt, sample) in enumerate(zip(prompts, samples, strict=True), len(tree.nodes)):
            tokens = np.asarray([*sample.tokens[len(prompt) :], sample.targets[-1]])
            node(leaf[prompt], tokens, len(prompt), number, **_sampled(sample, len(tokens), len(prompt)))
    return {name: np.concatenate([*column, np.zeros(0)]).astype(_TYPES[name]) for name, column in columns.items()}


def _sampled(sample: Sample, count: int, start: int) -> dict[str, Array]:
    """Return columns [count] of a sample's tokens after the first `start`."""
    where = sample.at + 1 - start
    columns = {name: np.zeros(count) for name in ("assistant_mask", "logprobs", "advantages", "weights")}
    columns["assistant_mask"][where] = 1
    columns["logprobs"][where] = sample.logprobs
    columns["advantages"][where] = sample.advantage
    columns["weights"][where] = sample.weights
    return dict(columns)


def batch_file(samples: Sequence[Sample]) -> bytes:
    """Return the tensors as a safetensors file; the same samples give the same bytes."""
    return save({name: np.ascontiguousarray(values) for name, values in batch_tensors(samples).items()})
