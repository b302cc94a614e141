"""Context plans against brute force: visibility pair by pair, and the best contiguous split by dynamic
programming.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_dataplane import PackingError, decode, encode
from art_dataplane.context_plan import (
    ContextCost,
    ContextPlan,
    ContextRule,
    KeyRange,
    TokenRange,
    plan_context,
    plan_rows,
)


@st.composite
def forests(draw, most=40):
    """Depths of tokens in depth-first order, and where the subtree of each ends."""
    depths = [0]
    size = draw(st.integers(0, most - 1))
    for step in draw(st.lists(st.integers(0, 6), min_size=size, max_size=size)):
        # Mostly one deeper than the token before, so that there are chains; else a branch or a root.
        depths.append(depths[-1] + 1 if step > 1 else draw(st.integers(0, depths[-1] + 1)))
    return arrays_of(depths)


def arrays_of(depths):
    ends = [
        next((later for later in range(token + 1, len(depths)) if depths[later] <= depth), len(depths))
        for token, depth in enumerate(depths)
    ]
    return np.array(depths, np.int32), np.array(ends, np.int32)


def large_forest(tokens, sequences, seed):
    """Sequences that each share a random part of the one before; ends found with a stack."""
    rng = np.random.default_rng(seed)
    bounds = [0, *np.sort(rng.choice(np.arange(1, tokens), sequences - 1, replace=False)), tokens]
    depths = np.empty(tokens, np.int32)
    depth = 0
    for begin, end in itertools.pairwise(bounds):
        shared = int(rng.integers(0, depth + 1)) if begin else 0
        depths[begin:end] = np.arange(shared, shared + end - begin)
        depth = shared + end - begin
    ends = np.full(tokens, tokens, np.int32)
    open_tokens = []
    for token, depth in enumerate(depths.tolist()):
        while open_tokens and depths[open_tokens[-1]] >= depth:
            ends[open_tokens.pop()] = token
        open_tokens.append(token)
    return depths, ends


def seen_by(query, ends, window=None):
    path = [key for key in range(query + 1) if query < ends[key]]
    return path if window is None else path[-window:]


def work_of(query, ends, cost):
    work = Fraction(cost.linear_cost) + Fraction(cost.attention_cost) * len(seen_by(query, ends))
    if cost.window is not None:
        work += Fraction(cost.window_attention_cost) * len(seen_by(query, ends, cost.window))
    return work


def best_split(works, ranks, alignment=1, most_tokens=None):
    """The least work of the busiest rank of any contiguous split at multiples of the alignment."""
    edges = [*range(0, len(works), alignment), len(works)]
    best = {0: Fraction(0)}
    for _ in range(ranks):
        options = {}
        for begin, busiest in best.items():
            for end in edges:
                if end >= begin and (most_tokens is None or end - begin <= most_tokens):
                    option = max(busiest, sum(works[begin:end], Fraction(0)))
                    options[end] = min(option, options.get(end, option))
        best = options
    return best.get(len(works))


costs = st.builds(
    ContextCost,
    st.integers(1, 30).map(float),
    st.integers(0, 5).map(float),
) | st.builds(
    ContextCost,
    st.integers(1, 30).map(float),
    st.integers(0, 1).map(float),
    st.integers(1, 6),
    st.integers(1, 5).map(float),
)


def tokens_of(share):
    return [token for each in share.ranges for token in range(each.start, each.end)]


@settings(max_examples=200, deadline=None)
@given(forests(), costs, st.integers(1, 6), st.integers(1, 4))
def test_no_contiguous_split_has_a_less_busy_busiest_rank(forest, cost, ranks, alignment):
    positions, ends = forest
    plan = plan_context(positions, ends, ContextRule(ranks, cost, alignment=alignment))
    works = [work_of(query, ends, cost) for query in range(len(ends))]
    assert [token for share in plan.ranks for token in tokens_of(share)] == list(range(len(ends)))
    assert all(len(share.ranges) <= 1 for share in plan.ranks)
    assert all(each.start % alignment == 0 for share in plan.ranks for each in share.ranges)
    for share in plan.ranks:
        assert share.work == pytest.approx(float(sum(works[token] for token in tokens_of(share))))
    busiest = max(share.work for share in plan.ranks)
    assert busiest == pytest.approx(float(best_split(works, ranks, alignment)), rel=1e-9)
    assert plan.imbalance == pytest.approx(busiest * ranks / float(sum(works)))
    assert plan.token_count == len(ends)
    if len(ends) > alignment * (ranks - 1):
        assert all(share.token_count for share in plan.ranks)


@settings(max_examples=200, deadline=None)
@given(forests(), costs, st.integers(1, 4), st.integers(1, 3), st.integers(1, 20))
def test_no_rank_gets_more_tokens_than_allowed(forest, cost, ranks, alignment, most_tokens):
    positions, ends = forest
    rule = ContextRule(ranks, cost, alignment=alignment, most_tokens=most_tokens)
    works = [work_of(query, ends, cost) for query in range(len(ends))]
    best = best_split(works, ranks, alignment, most_tokens // alignment * alignment)
    if best is None:
        with pytest.raises(PackingError, match=r"does not fit \d+ ranks of at most \d+ tokens"):
            plan_context(positions, ends, rule)
        return
    plan = plan_context(positions, ends, rule)
    assert max(share.token_count for share in plan.ranks) <= most_tokens
    assert max(share.work for share in plan.ranks) == pytest.approx(float(best), rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(forests(), costs, st.integers(1, 5), st.integers(1, 3))
def test_a_rank_is_told_exactly_the_keys_that_its_queries_see_elsewhere(forest, cost, ranks, ranges_per_rank):
    positions, ends = forest
    plan = plan_context(positions, ends, ContextRule(ranks, cost, ranges_per_rank=ranges_per_rank))
    window = cost.window if cost.attention_cost == 0 else None
    owners = {token: rank for rank, share in enumerate(plan.ranks) for token in tokens_of(share)}
    for rank, share in enumerate(plan.ranks):
        seen = {key for query in tokens_of(share) for key in seen_by(query, ends, window)}
        told = [(key, each.rank) for each in share.keys for key in range(each.start, each.end)]
        assert told == [(key, owners[key]) for key in sorted(seen) if owners[key] != rank]
        assert share.key_count == len(told)


@given(forests(), costs, st.integers(1, 5), st.integers(2, 4), st.integers(1, 3))
def test_several_ranges_give_every_rank_as_many_tokens(forest, cost, ranks, ranges_per_rank, alignment):
    positions, ends = forest
    rule = ContextRule(ranks, cost, ranges_per_rank, alignment)
    plan = plan_context(positions, ends, rule)
    assert sorted(token for share in plan.ranks for token in tokens_of(share)) == list(range(len(ends)))
    counts = [share.token_count for share in plan.ranks]
    assert max(counts) - min(counts) <= ranges_per_rank * alignment
    assert all(len(share.ranges) <= ranges_per_rank for share in plan.ranks)


def test_two_ranges_of_one_causal_sequence_are_the_zig_zag():
    positions, ends = np.arange(800, dtype=np.int32), np.full(800, 800, np.int32)
    plan = plan_context(positions, ends, ContextRule(4, ContextCost(1.0, 1.0), ranges_per_rank=2))
    pairs = sorted(tuple(each.start // 100 for each in share.ranges) for share in plan.ranks)
    assert pairs == [(0, 7), (1, 6), (2, 5), (3,)]
    assert [share.ranges for share in plan.ranks if len(share.ranges) == 1] == [(TokenRange(300, 500),)]
    assert plan.imbalance == pytest.approx(1.0)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_long_row_is_balanced_to_two_per_cent_of_what_no_split_can_beat(ranks):
    positions, ends = large_forest(60_000, 300, seed=ranks)
    cost = ContextCost(100.0, 3.0)
    plan = plan_context(positions, ends, ContextRule(ranks, cost))
    works = 100.0 + 3.0 * (positions.astype(np.int64) + 1)
    lower_bound = max(works.sum() / ranks, works.max())
    assert max(share.work for share in plan.ranks) <= 1.02 * lower_bound
    assert all(share.token_count for share in plan.ranks)


def test_a_heavy_end_leaves_no_rank_without_tokens():
    plan = plan_context(*arrays_of(range(12)), ContextRule(12, ContextCost(0.0, 1.0)))
    assert [share.token_count for share in plan.ranks] == [1] * 12


def test_where_the_bound_leaves_a_choice_the_shares_are_even():
    # One block of work 55 sets the bound; the four of work 10 behind it could be shared 3 to 1.
    rule = ContextRule(3, ContextCost(0.0, 1.0), alignment=10)
    plan = plan_context(*arrays_of([*range(10), *[0] * 40]), rule)
    assert [share.token_count for share in plan.ranks] == [10, 20, 20]
    assert [share.keys for share in plan.ranks] == [(), (), ()]


def test_more_ranks_than_tokens_leave_some_without():
    plan = plan_context(*arrays_of([0, 1]), ContextRule(3, ContextCost(1.0, 1.0)))
    assert sorted(share.token_count for share in plan.ranks) == [0, 1, 1]
    assert (plan.ranks[-1].ranges, plan.ranks[-1].keys, plan.ranks[-1].work) == ((), (), 0.0)


def test_keys_are_told_by_owner():
    # A prompt of 4 tokens and two answers of 4: the second answer sees the prompt, not the first answer.
    positions, ends = arrays_of([0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7])
    plan = plan_context(positions, ends, ContextRule(3))
    assert [share.ranges for share in plan.ranks] == [(TokenRange(at, at + 4),) for at in (0, 4, 8)]
    assert [share.keys for share in plan.ranks] == [(), (KeyRange(0, 4, 0),), (KeyRange(0, 4, 0),)]


def test_rows_of_a_batch_are_planned_one_by_one():
    one, two = arrays_of([0, 1, 2, 1]), arrays_of([0, 0, 1])
    rule = ContextRule(2, ContextCost(1.0, 1.0))
    plans = plan_rows(
        np.concatenate((one[0], two[0])), np.concatenate((one[1], two[1])), np.array([0, 4, 7]), rule
    )
    assert plans == (plan_context(*one, rule), plan_context(*two, rule))
    assert decode(encode(plans[0]), ContextPlan) == plans[0]


def test_the_cost_of_llama_3_8b_is_two_flop_for_each_weight_of_its_layers():
    cost = ContextCost.of_transformer(
        hidden_size=4096,
        intermediate_size=14336,
        heads=32,
        key_value_heads=8,
        head_dim=128,
        layers=32,
    )
    # 8,030,261,248 weights, without two embeddings of 128,256 x 4,096 and 65 norms of 4,096.
    assert cost.linear_cost == 2 * (8_030_261_248 - 2 * 128_256 * 4_096 - 65 * 4_096)
    assert cost.attention_cost == 32 * 4 * 4096
    windowed = ContextCost.of_transformer(
        hidden_size=4096,
        intermediate_size=14336,
        heads=32,
        key_value_heads=8,
        head_dim=128,
        layers=32,
        windowed_layers=24,
        window=512,
    )
    assert windowed == ContextCost(cost.linear_cost, 8 * 4 * 4096, 512, 24 * 4 * 4096)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContextRule(0), "ranks is 0; it must be at least 1"),
        (lambda: ContextRule(1, most_tokens=0), "most_tokens is 0"),
        (lambda: ContextCost(-1.0), "finite numbers of at least 0"),
        (lambda: ContextCost(0.0), "one above 0"),
        (lambda: ContextCost(window=4), "give both or neither"),
        (lambda: ContextCost(window=0, window_attention_cost=1.0), "a query sees at least itself"),
        (
            lambda: ContextCost.of_transformer(
                hidden_size=8,
                intermediate_size=8,
                heads=1,
                key_value_heads=1,
                head_dim=8,
                layers=1,
                windowed_layers=2,
            ),
            "2 of 1 layers cannot have a window",
        ),
        (
            lambda: plan_context(*arrays_of([0])[:1], np.zeros(2, np.int32), ContextRule(1)),
            "1 position_ids and 2",
        ),
        (
            lambda: plan_context(*arrays_of([0, 1, 2]), ContextRule(1, ranges_per_rank=2, most_tokens=2)),
            "gives one of 1 ranks 3; most_tokens is 2",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_numbers(make, message):
    with pytest.raises(ValueError, match=message):
        make()
