"""The forest against sets of prefixes written out, over rows chosen at random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane.prefix_forest import (
    common_prefixes,
    find_neighbours,
    lay_out_rows,
    sort_sequences,
    write_forest,
    write_sources,
)

sequences_strategy = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=9)


def flatten(sequences):
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    tokens = np.array([token for sequence in sequences for token in sequence], np.int32)
    return tokens, np.cumsum(lengths) - lengths, lengths


def sort(sequences, tie_breakers=None):
    return sort_sequences(*flatten(sequences), tie_breakers)


def write(sequences, rows=None, tie_breakers=None):
    """Sorts, lays out and writes sequences; ``rows`` has the row of each, all are in one otherwise."""
    parts = sort(sequences, tie_breakers)
    used = sorted(set(rows or [0]))
    row = np.array([used.index(rows[index]) if rows else 0 for index in parts.order], np.int64)
    forest = lay_out_rows(parts, row, len(used))
    neighbours = find_neighbours(forest.shared)
    tokens, starts, _ = flatten(sequences)
    given_index = parts.order[forest.chosen]
    out = [np.full(forest.row_offsets[-1], -1, np.int32) for _ in range(3)]
    write_forest(forest, neighbours, tokens, starts[given_index], *out)
    return parts, forest, neighbours, out


def of_row(forest, out, row):
    begin, end = forest.row_offsets[row : row + 2]
    return [array[begin:end] for array in out]


def prefixes(sequences):
    return {tuple(sequence[: count + 1]) for sequence in sequences for count in range(len(sequence))}


@st.composite
def rows_of_sequences(draw):
    sequences = draw(sequences_strategy)
    size = {"min_size": len(sequences), "max_size": len(sequences)}
    return sequences, draw(st.lists(st.integers(0, 2), **size))


@given(rows_of_sequences())
def test_every_prefix_of_a_row_is_one_token_whose_visible_tokens_spell_it(problem):
    sequences, rows = problem
    _, forest, _, out = write(sequences, rows)
    for number, row in enumerate(sorted(set(rows))):
        tokens, positions, ends = of_row(forest, out, number)
        spelled = []
        for query in range(len(tokens)):
            visible = [key for key in range(query + 1) if query < ends[key]]
            spelled.append(tuple(tokens[visible].tolist()))
            assert positions[visible].tolist() == list(range(len(visible)))
        assert len(spelled) == len(set(spelled))
        assert set(spelled) == prefixes([each for each, of in zip(sequences, rows, strict=True) if of == row])


@given(rows_of_sequences(), st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_does_not_matter(problem, random):
    pairs = list(zip(*problem, strict=True))
    random.shuffle(pairs)
    for left, right in zip(write(*problem)[3], write(*map(list, zip(*pairs, strict=True)))[3], strict=True):
        np.testing.assert_array_equal(left, right)


@given(rows_of_sequences(), st.data())
def test_the_places_of_any_part_of_a_sequence_spell_it(problem, data):
    sequences, rows = problem
    parts, forest, neighbours, out = write(sequences, rows)
    chosen = [sequences[parts.order[index]] for index in forest.chosen.tolist()]
    which = data.draw(st.lists(st.integers(0, len(chosen) - 1), min_size=1, max_size=6))
    first = [data.draw(st.integers(0, len(chosen[index]) - 1)) for index in which]
    counts = [
        data.draw(st.integers(1, len(chosen[index]) - begin))
        for index, begin in zip(which, first, strict=True)
    ]
    sources = np.full(sum(counts), -1, np.int32)
    write_sources(forest, neighbours, *(np.array(each, np.int64) for each in (which, first, counts)), sources)
    end = 0
    for index, begin, count in zip(which, first, counts, strict=True):
        tokens, positions, ends = of_row(forest, out, forest.row[index])
        for depth in range(begin, begin + count):
            place = sources[end]
            visible = [key for key in range(place + 1) if place < ends[key]]
            assert tokens[visible].tolist() == chosen[index][: depth + 1]
            assert positions[place] == depth
            end += 1


@given(sequences_strategy)
def test_sorting_loses_nothing_and_counts_what_neighbours_share(sequences):
    parts = sort(sequences)
    ordered = [sequences[index] for index in parts.order.tolist()]
    assert ordered == sorted(sequences)
    assert parts.lengths.tolist() == [len(each) for each in ordered]
    for index, shared in enumerate(parts.shared.tolist()):
        before = ordered[index - 1] if index else []
        common = next(
            (
                place
                for place, pair in enumerate(zip(before, ordered[index], strict=False))
                if pair[0] != pair[1]
            ),
            min(len(before), len(ordered[index])),
        )
        assert shared == common


def test_equal_sequences_are_ordered_by_their_tie_breakers():
    sequences = [[1, 2], [1], [1, 2], [1, 2], [3], [3]]
    assert sort(sequences, list("cxbaed")).order.tolist() == [1, 3, 2, 0, 5, 4]
    assert sort(sequences).order.tolist() == [1, 0, 2, 3, 4, 5]


def test_token_ids_sort_as_integers_and_not_as_bytes():
    assert sort([[256], [1], [70000], [2], [2**31 - 1]]).order.tolist() == [1, 3, 0, 2, 4]


def test_prefixes_longer_than_what_is_compared_at_once():
    """One text twice, once with another token after 9,999 of 30,000, and once ending earlier."""
    random = np.random.default_rng(0)
    text = random.integers(0, 9, 30_000).tolist()
    other = [*text[:9_999], 9, *text[10_000:]]
    parts = sort([text, other, text[:20_000], text])
    assert parts.order.tolist() == [2, 0, 3, 1]
    assert parts.shared.tolist() == [0, 20_000, 30_000, 9_999]


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [
        ([], [1], 0),
        ([1, 2], [1, 2, 3], 2),
        ([5], [6], 0),
        ([1, 2, 3], [1, 9, 3], 1),
        ([7] * 40, [7] * 41, 40),
    ],
)
def test_common_prefixes(left, right, count):
    tokens = np.array(left + right + [0] * 4096, np.int32)
    limit = min(len(left), len(right))
    found = common_prefixes(tokens, *(np.array([each]) for each in (0, len(left), limit)))
    assert found.tolist() == [count]
