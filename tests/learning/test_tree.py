"""The prefix tree: nothing is lost, shared tokens are stored once, and a token sees exactly its own sequence."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.learning.forward.tree import build_tree, split_by_tokens
from mcp_rl.learning.forward.tree_mask import TreeMask

# few distinct tokens and copies of each other's beginnings: deep and wide trees, duplicates, prefixes of others
token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@st.composite
def branching(draw: st.DrawFn) -> list[list[int]]:
    sequences = [draw(token_lists)]
    for _ in range(draw(st.integers(0, 9))):
        earlier = draw(st.sampled_from(sequences))
        cut = draw(st.integers(0, len(earlier)))
        sequences.append(earlier[:cut] + draw(token_lists))
    return sequences


@given(branching(), st.integers(1, 9))
@settings(deadline=None, max_examples=150)
def test_every_sequence_can_be_read_back_from_the_tree(sequences: list[list[int]], min_shared: int) -> None:
    tree = build_tree(sequences, min_shared)
    for i, sequence in enumerate(sequences):
        path = tree.sequence(i)
        assert tree.tokens[path].tolist() == sequence
        assert tree.positions[path].tolist() == list(range(len(sequence)))
    assert len(tree.tokens) <= tree.unshared_tokens == sum(map(len, sequences))


@given(branching())
@settings(deadline=None, max_examples=100)
def test_with_no_threshold_no_prefix_is_there_twice(sequences: list[list[int]]) -> None:
    distinct = {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}
    assert len(build_tree(sequences, 1).tokens) == len(distinct)


@given(branching(), st.integers(5, 60), st.booleans())
@settings(deadline=None, max_examples=60)
def test_parts_cover_all_sequences_once_and_keep_the_budget(
    sequences: list[list[int]], budget: int, shared: bool
) -> None:
    parts = split_by_tokens(sequences, budget, shared=shared)
    assert sorted(i for part in parts for i in part) == list(range(len(sequences)))
    for part in parts:
        tree = build_tree([sequences[i] for i in part], shared=shared)
        assert len(part) == 1 or len(tree.tokens) <= budget
    for part, after in pairwise(parts):
        more = build_tree([sequences[i] for i in [*part, after[0]]], shared=shared)
        assert len(more.tokens) > budget


@given(branching(), st.integers(5, 60))
@settings(deadline=None, max_examples=40)
def test_a_part_is_cut_only_where_it_would_not_fit(sequences: list[list[int]], budget: int) -> None:
    fits = len(build_tree(sequences).tokens) <= budget
    assert (len(split_by_tokens(sequences, budget)) == 1) == (fits or len(sequences) == 1)
    assert len(split_by_tokens(sequences, None)) == 1


@given(branching(), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_a_token_sees_its_own_sequence_up_to_itself(sequences: list[list[int]], min_shared: int) -> None:
    tree = build_tree(sequences, min_shared)
    seen = TreeMask.of(tree).visible(slice(None), slice(None))
    for i in range(len(sequences)):
        path = torch.from_numpy(tree.sequence(i))
        for depth, position in enumerate(path.tolist()):
            assert seen[position].nonzero().squeeze(1).tolist() == sorted(path[: depth + 1].tolist())


@given(branching())
@settings(deadline=None, max_examples=40)
def test_without_sharing_every_sequence_is_a_chain_of_its_own(sequences: list[list[int]]) -> None:
    tree = build_tree(sequences, shared=False)
    assert len(tree.tokens) == tree.unshared_tokens == sum(map(len, sequences))
    assert len(tree.tokens) == tree.unshared_tokens
    for i, sequence in enumerate(sequences):
        assert tree.tokens[tree.sequence(i)].tolist() == sequence


@given(branching(), st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_a_window_limits_what_a_token_sees(sequences: list[list[int]], window: int) -> None:
    tree = build_tree(sequences)
    seen = TreeMask.of(tree).visible(slice(None), slice(None), window)
    for i in range(len(sequences)):
        path = torch.from_numpy(tree.sequence(i))
        for depth, position in enumerate(path.tolist()):
            near = path[max(0, depth + 1 - window) : depth + 1]
            assert seen[position].nonzero().squeeze(1).tolist() == sorted(near.tolist())


def test_no_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_tree([])
