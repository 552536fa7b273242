"""The last batch on disk, for whoever wants to see what was trained on: `tensors/batch.safetensors`.

All tensors are [T], over packed tokens. What a trajectory was given before it sampled lies in nodes that others share;
the rest of it is a node of its own, so every sampled token stands there as often as it was trained on. A token attends
to those before it in its own node, and to the nodes that lead there.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mcp_rl.learning.samples import Sample
from mcp_rl.learning.tree import build_tree

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
    """Samples as packed tensors; empty ones where there are none.

    tokens, input_pos (position in its own sequence), group_ids (its node), parent_ids (the node before; the root is its
    own) are int32; assistant_mask (the policy sampled it) is bool; logprobs (the sampler's), advantages and weights (of
    the token in the loss) are float32, and 0 where the mask is off.
    """
    columns: dict[str, list[Array]] = {name: [] for name in _TYPES}

    def node(parent: int, tokens: Array, first: int, number: int, **sampled: Array) -> None:
        given = {"tokens": tokens, "input_pos": np.arange(first, first + len(tokens))}
        given |= {"group_ids": np.full(len(tokens), number), "parent_ids": np.full(len(tokens), parent)}
        for name, column in columns.items():
            column.append((given | sampled).get(name, np.zeros(len(tokens))))

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
    """Columns [count] of what follows the first `start` tokens of a sample."""
    where = sample.at + 1 - start
    columns = {name: np.zeros(count) for name in ("assistant_mask", "logprobs", "advantages", "weights")}
    columns["assistant_mask"][where] = 1
    columns["logprobs"][where] = sample.logprobs
    columns["advantages"][where] = sample.advantage
    columns["weights"][where] = sample.weights
    return dict(columns)


def batch_file(samples: Sequence[Sample]) -> bytes:
    """The same as a safetensors file; the same samples give the same bytes."""
    return save({name: np.ascontiguousarray(values) for name, values in batch_tensors(samples).items()})
