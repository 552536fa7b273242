"""The packed batch on disk holds every sequence, and the training columns of each sampled token."""

import numpy as np
from safetensors.numpy import load

from mcp_rl.learning.disk.tensors import batch_file, batch_tensors
from mcp_rl.learning.samples import Sample, take_in
from tests.learning.models import make_groups, make_learner


def make_samples() -> list[Sample]:
    samples = take_in(make_groups(make_learner(), groups=3, size=4)).samples
    for number, sample in enumerate(samples):
        sample.weights = np.linspace(0.5, 1.5, len(sample.targets), dtype=np.float32) + number
    return samples


def test_every_sequence_can_be_read_back_along_its_nodes() -> None:
    samples = make_samples()
    batch = batch_tensors(samples)
    assert len({len(column) for column in batch.values()}) == 1
    groups, parents = batch["group_ids"], batch["parent_ids"]
    ends = sorted(set(groups.tolist()) - set(parents.tolist()))  # a sample's own node has no children
    assert len(ends) == len(samples)
    for end, sample in zip(ends, samples, strict=True):
        path = [end]
        while (parent := int(parents[groups == path[0]][0])) != path[0]:
            path.insert(0, parent)
        where = np.concatenate([np.flatnonzero(groups == node) for node in path])
        assert batch["tokens"][where].tolist() == [*sample.tokens, sample.targets[-1]]
        assert batch["input_pos"][where].tolist() == list(range(len(where)))
        sampled = where[batch["assistant_mask"][where]]
        assert batch["tokens"][sampled].tolist() == sample.targets.tolist()
        np.testing.assert_array_equal(batch["logprobs"][sampled], sample.logprobs)
        np.testing.assert_array_equal(batch["weights"][sampled], sample.weights)
        np.testing.assert_array_equal(batch["advantages"][sampled], np.float32(sample.advantage))


def test_shared_prompts_are_stored_once() -> None:
    samples = make_samples()
    batch = batch_tensors(samples)
    assert len(batch["tokens"]) == 20 + 3 * 6 + sum(len(sample.tokens) + 1 - 26 for sample in samples)
    assert batch["assistant_mask"].sum() == sum(len(sample.targets) for sample in samples)


def test_the_file_holds_the_tensors_and_is_reproducible() -> None:
    content = batch_file(make_samples())
    assert content == batch_file(make_samples())
    read = load(content)
    for name, values in batch_tensors(make_samples()).items():
        assert read[name].dtype == values.dtype
        np.testing.assert_array_equal(read[name], values)
    assert load(batch_file([]))["tokens"].shape == (0,)
