"""The forest against a trie made of dictionaries, and the cuts against all possible ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane.prefix_forest import (
    build_forest,
    common_prefix,
    size_of_parts,
    sort_sequences,
    split_at_branches,
    write_forest,
)

sequences_strategy = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=8)


def write(sequences, begin=0, end=None, base=0):
    parts = sort_sequences([np.array(sequence, np.int32) for sequence in sequences])
    forest = build_forest(parts, begin, len(sequences) if end is None else end)
    out = [np.full(forest.size, -1, np.int32) for _ in range(3)]
    write_forest(forest, *out, base)
    return parts, forest, out


def prefixes(sequences):
    return {tuple(sequence[: count + 1]) for sequence in sequences for count in range(len(sequence))}


@given(sequences_strategy, st.integers(0, 100))
def test_every_prefix_is_one_token_whose_visible_tokens_spell_it(sequences, base):
    _, forest, (tokens, positions, ends) = write(sequences, base=base)
    spelled = []
    for query in range(forest.size):
        visible = [key for key in range(query + 1) if base + query < ends[key]]
        spelled.append(tuple(tokens[visible].tolist()))
        assert positions[visible].tolist() == list(range(len(visible)))
    assert len(spelled) == len(set(spelled))
    assert set(spelled) == prefixes(sequences)


@given(sequences_strategy, st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_does_not_matter(sequences, random):
    shuffled = random.sample(sequences, len(sequences))
    for left, right in zip(write(sequences)[2], write(shuffled)[2], strict=True):
        np.testing.assert_array_equal(left, right)


@given(sequences_strategy)
def test_starts_and_shared_prefixes_find_each_sequence_again(sequences):
    parts, forest, (tokens, _, _) = write(sequences)
    assert forest.size == size_of_parts(parts) == len(prefixes(sequences))
    path = np.zeros(0, np.int64)
    for sequence, length, depth, start in zip(*forest[:4], strict=True):
        path = np.concatenate((path[:depth], start + np.arange(length - depth)))
        np.testing.assert_array_equal(tokens[path], sequence)
    given_back = [parts.sequences[index].tolist() for index in np.argsort(parts.order)]
    assert given_back == sequences


@given(sequences_strategy, st.integers(7, 20))
def test_cuts_fit_and_repeat_the_fewest_tokens(sequences, capacity):
    parts = sort_sequences([np.array(sequence, np.int32) for sequence in sequences])
    runs = split_at_branches(parts, capacity)
    count = len(sequences)
    assert [begin for begin, _ in runs] == [0, *(end for _, end in runs[:-1])]
    assert runs[-1][1] == count
    found = [len(prefixes([s.tolist() for s in parts.sequences[begin:end]])) for begin, end in runs]
    assert max(found) <= capacity
    best = min(
        sum(sizes)
        for cuts in itertools.chain.from_iterable(
            itertools.combinations(range(1, count), number) for number in range(count)
        )
        if max(
            sizes := [
                len(prefixes([s.tolist() for s in parts.sequences[begin:end]]))
                for begin, end in itertools.pairwise([0, *cuts, count])
            ]
        )
        <= capacity
    )
    assert sum(found) == best


def test_a_sequence_longer_than_a_row_cannot_be_cut():
    parts = sort_sequences([np.arange(5, dtype=np.int32)])
    with pytest.raises(ValueError, match="5 tokens exceeds the 4"):
        split_at_branches(parts, 4)


def test_token_ids_sort_as_integers_and_not_as_bytes():
    parts = sort_sequences([np.array(ids, np.int32) for ids in ([256], [1], [70000], [2])])
    assert [sequence.tolist() for sequence in parts.sequences] == [[1], [2], [256], [70000]]


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([5], [6], 0), ([1, 2, 3], [1, 9, 3], 1)],
)
def test_common_prefixes(left, right, count):
    assert common_prefix(np.array(left, np.int32), np.array(right, np.int32)) == count
