"""Equal tokens with different routes against sets of prefixes of (token, routes) written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import AdvantageRule, RouteBlock
from art_dataplane.batch import view_tensors
from art_dataplane.packing_plan import plan_packing

KEEP = AdvantageRule(zero_variance="keep")


def pack(groups, capacity, merge_routes):
    plan = plan_packing(
        groups,
        packed_sequence_length=capacity,
        policy_version=9,
        advantage=KEEP,
        merge_routes=merge_routes,
    )
    buffer = memoryview(bytearray(plan.byte_count))
    plan.write(buffer)
    return plan, view_tensors(plan.tensors, buffer)


def paths(plan, out):
    """For each loss entry its record, the tokens and routes that it is predicted from, and its target."""
    found = []
    for row in range(plan.counts.row_count):
        part = slice(*out["row_offsets"][row : row + 2])
        tokens, ends, routes = (out[name][part] for name in ("token_ids", "subtree_end", "routes"))
        for entry in range(*out["loss_row_offsets"][row : row + 2]):
            source = out["loss_source"][entry]
            seen = np.flatnonzero((np.arange(len(tokens)) <= source) & (source < ends))
            found.append(
                (
                    plan.record_ids[out["loss_record"][entry]],
                    tuple(tokens[seen].tolist()),
                    tuple(routes[seen].reshape(len(seen), -1).sum(axis=1).tolist()),
                    int(out["loss_target"][entry]),
                )
            )
    return sorted(found)


@st.composite
def routed_records(draw, exchange, record):
    made = []
    for index in range(draw(st.integers(1, 9))):
        tokens = draw(st.lists(st.integers(0, 1), min_size=2, max_size=5))
        prompt = draw(st.integers(1, len(tokens) - 1))
        size = {"min_size": len(tokens), "max_size": len(tokens)}
        experts = np.array(draw(st.lists(st.integers(0, 1), **size)), np.uint8).reshape(-1, 1, 1)
        made.append(
            record(
                f"r{index}",
                exchanges=[exchange(tokens[:prompt], tokens[prompt:], routes=RouteBlock(experts))],
                reward=float(index),
            )
        )
    return made


@given(st.data(), st.integers(5, 12), st.randoms(use_true_random=False))
def test_every_token_keeps_its_routes_and_what_is_equal_is_there_once(
    exchange, record, data, capacity, chance
):
    made = data.draw(routed_records(exchange, record))
    plan, out = pack([made], capacity, "equal")
    expected, pairs = [], set()
    for each in made:
        only = each.exchanges[0]
        tokens = [*only.prompt_ids.tolist(), *only.completion_ids.tolist()]
        experts = only.routes.experts[:, 0, 0].tolist()
        expected += [
            (each.record_id, tuple(tokens[:place]), tuple(experts[:place]), tokens[place])
            for place in range(len(only.prompt_ids), len(tokens))
        ]
        pairs |= {tuple(zip(tokens[:place], experts[:place], strict=True)) for place in range(1, len(tokens))}
    assert paths(plan, out) == sorted(expected)
    if len(pairs) <= capacity:
        assert plan.counts.physical_tokens == len(pairs)
    again, mixed = pack([chance.sample(made, len(made))], capacity, "equal")
    assert again.tensors == plan.tensors
    for name in ("token_ids", "subtree_end", "routes"):
        np.testing.assert_array_equal(mixed[name], out[name])


@given(st.data(), st.integers(5, 12))
def test_told_to_take_the_first_equal_tokens_are_merged_whatever_their_routes(
    exchange, record, data, capacity
):
    made = data.draw(routed_records(exchange, record))
    plan, out = pack([made], capacity, "first")
    texts = [[*e.prompt_ids.tolist(), *e.completion_ids.tolist()] for r in made for e in r.exchanges]
    prefixes = {tuple(text[:place]) for text in texts for place in range(1, len(text))}
    if len(prefixes) <= capacity:
        assert plan.counts.physical_tokens == len(prefixes)
    assert [path[1] + (path[3],) for path in paths(plan, out)] == [
        tuple(text[: place + 1])
        for each, text in zip(made, texts, strict=True)
        for place in sorted(
            range(len(each.exchanges[0].prompt_ids), len(text)),
            key=lambda place, text=text: tuple(text[:place]),
        )
    ]


def test_the_routes_of_one_sample_differ_in_the_middle_of_the_prompt(exchange, record):
    def routes(changed):
        experts = np.arange(8, dtype=np.uint16).reshape(8, 1, 1).repeat(2, axis=2)
        experts[3] += changed
        return RouteBlock(experts)

    made = [
        record(f"r{i}", exchanges=[exchange(range(6), [9, 10 + i], routes=routes(i == 1))], reward=i)
        for i in range(3)
    ]
    plan, out = pack([made], 64, "equal")
    assert plan.counts.physical_tokens == 3 + 4 + 4  # 0 to 2 once, 3 to 5 and 9 for both kinds of routes
    assert out["token_ids"].tolist() == [0, 1, 2, 3, 4, 5, 9, 3, 4, 5, 9]
    assert out["routes"][:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 4, 5, 6]
    plan, out = pack([made], 64, "first")
    assert plan.counts.physical_tokens == 7
    assert out["routes"][:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("merge_routes", ["equal", "first"])
def test_equal_routes_are_merged_either_way(exchange, record, merge_routes):
    block = RouteBlock(np.zeros((8, 2, 2), np.uint8))
    made = [record(f"r{i}", exchanges=[exchange(range(6), [9, i], routes=block)], reward=i) for i in range(4)]
    plan, _ = pack([made], 64, merge_routes)
    assert plan.counts.physical_tokens == 7
