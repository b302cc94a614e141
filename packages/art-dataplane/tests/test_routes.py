"""Routes of mixture-of-experts models: dtypes, checks, alignment with physical tokens, binary form."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import PackingError, RecordError, RouteBlock, VersionSpan, encode
from art_dataplane.packing_plan import plan_packing
from art_dataplane.records import TokenRecord, TrajectoryRecord
from art_dataplane.routes import (
    RoutePlan,
    SequenceRoutes,
    check_routes,
    common_tokens,
    decode_routes,
    encode_routes,
    route_dtype,
)


def routes(tokens: int, layers: int = 3, topk: int = 2, *, experts: int = 256, seed: int = 0) -> np.ndarray:
    """Random routes without repetitions inside one token and layer."""
    generator = np.random.default_rng(seed)
    ids = generator.random((tokens, layers, experts)).argsort(axis=2)[:, :, :topk]
    return ids.astype(np.uint8 if experts <= 256 else np.uint16)


@pytest.mark.parametrize(
    ("experts", "name"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16")]
)
def test_the_dtype_is_the_smallest_that_names_every_expert(experts, name):
    assert route_dtype(experts).name == name
    assert np.iinfo(route_dtype(experts)).max >= experts - 1


@pytest.mark.parametrize("experts", [0, -1, 65_537])
def test_experts_that_cannot_be_named_are_refused(experts):
    with pytest.raises(RecordError, match=rf"routes among {experts} experts"):
        route_dtype(experts)


def test_routes_of_the_model_pass_the_check():
    check_routes(routes(20, experts=256), "r7", expert_count=256)
    check_routes(routes(20, experts=300), "r7", expert_count=300)
    check_routes(routes(20, topk=1, experts=4), "r7", expert_count=4)
    check_routes(np.zeros((0, 3, 2), np.uint8), "r7", expert_count=4)
    check_routes(np.zeros((5, 3, 1), np.uint8), "r7", expert_count=1)


@pytest.mark.parametrize(
    ("experts", "expert_count", "message"),
    [
        (
            routes(4).astype(np.uint16),
            256,
            r"record r7: routes among 256 experts must be uint8 .* not uint16",
        ),
        (routes(4), 300, "must be uint16 .* not uint8"),
        (routes(4).astype(np.int64), 256, "not int64"),
        (routes(4)[:, 0], 256, r"not uint8 \[4, 2\]"),
        (np.zeros((4, 3, 0), np.uint8), 256, r"not uint8 \[4, 3, 0\]"),
    ],
)
def test_routes_of_another_layout_are_refused_with_the_records_name(experts, expert_count, message):
    with pytest.raises(RecordError, match=message):
        check_routes(experts, "r7", expert_count=expert_count)


def test_an_expert_that_the_model_lacks_is_named_with_its_place():
    experts = routes(6, experts=16)
    experts[4, 2, 1] = 16
    with pytest.raises(
        RecordError, match="record r7: token 4 went to expert 16 in layer 2; the model has 16"
    ):
        check_routes(experts, "r7", expert_count=16)


def test_zeros_that_no_router_chose_are_refused():
    with pytest.raises(
        RecordError, match=r"record r7: the routes of 5 of 5 tokens, the first 0, are all zero"
    ):
        check_routes(np.zeros((5, 3, 2), np.uint8), "r7", expert_count=256)
    with pytest.raises(RecordError, match="of 5 of 5 tokens"):
        check_routes(np.zeros((5, 3, 1), np.uint8), "r7", expert_count=256)
    lost = routes(9)
    lost[6:8] = 0
    with pytest.raises(RecordError, match=r"of 2 of 9 tokens, the first 6, are all zero"):
        check_routes(lost, "r7", expert_count=256)
    dense = routes(9)
    dense[:, 0] = 0  # a dense layer has no router
    check_routes(dense, "r7", expert_count=256)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_each_token_has_the_routes_of_the_first_exchange_that_held_it(grown, data):
    blocks = [routes(int(end), seed=index) for index, end in enumerate(np.cumsum(grown))]
    count = data.draw(st.integers(1, sum(grown)))
    joined = SequenceRoutes.of_chain(blocks, count, "r")
    expected = [next(block for block in blocks if len(block) > token)[token] for token in range(count)]
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    assert joined.shape == (count, 3, 2)
    np.testing.assert_array_equal(np.concatenate(joined.parts(begin, end)), expected[begin:end])
    assert all(part.base is not None for part in joined.parts(begin, end))


def test_routes_that_end_too_early_or_change_their_layout_are_refused():
    with pytest.raises(PackingError, match="record r7: routes of 4 tokens; 5 are to be computed"):
        SequenceRoutes.of_chain([routes(2), routes(4)], 5, "r7")
    with pytest.raises(PackingError, match=r"record r7: .* not uint8 \[2, 3, 2\], uint8 \[4, 4, 2\]"):
        SequenceRoutes.of_chain([routes(2), routes(4, layers=4)], 4, "r7")


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.data(),
)
def test_the_first_difference_is_found_wherever_the_blocks_are_cut(left, right, data):
    total = min(sum(left), sum(right))
    ids = routes(max(sum(left), sum(right)))
    other = ids.copy()
    at = data.draw(st.integers(0, total))
    if at < total:
        other[at, data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))] ^= 1
    first = SequenceRoutes(tuple(np.split(ids[: sum(left)], np.cumsum(left)[:-1])))
    second = SequenceRoutes(tuple(np.split(other[: sum(right)], np.cumsum(right)[:-1])))
    limit = data.draw(st.integers(0, total))
    assert common_tokens(first, second, limit) == min(at, limit)


def test_blocks_larger_than_one_comparison_are_compared_to_their_end():
    ids = routes(5000, layers=40, topk=4, experts=8)
    other = ids.copy()
    other[-1, -1, -1] ^= 1
    assert common_tokens(SequenceRoutes((ids,)), SequenceRoutes((other,)), 5000) == 4999
    assert common_tokens(SequenceRoutes((ids,)), SequenceRoutes((ids.copy(),)), 5000) == 5000


def test_routes_of_other_layouts_have_nothing_in_common():
    assert common_tokens(SequenceRoutes((routes(3),)), SequenceRoutes((routes(3, layers=2),)), 3) == 0
    with pytest.raises(PackingError, match="4 tokens cannot be compared in routes of 3"):
        common_tokens(SequenceRoutes((routes(3),)), SequenceRoutes((routes(5),)), 4)


def test_a_plan_puts_runs_one_behind_the_other():
    first, second = routes(5, seed=1), routes(7, seed=2)
    plan = RoutePlan(np.dtype(np.uint8), 3, 2)
    plan.place(SequenceRoutes((first[:2], first[2:])), 0, 5)
    plan.place(SequenceRoutes((second,)), 4, 4)
    plan.place(SequenceRoutes((second,)), 4, 7)
    assert plan.shape == (8, 3, 2)
    out = np.zeros(plan.shape, plan.dtype)
    plan.write(out)
    np.testing.assert_array_equal(out, np.concatenate((first, second[4:])))


def test_runs_and_arrays_that_do_not_fit_a_plan_are_refused():
    plan = RoutePlan(np.dtype(np.uint8), 3, 2)
    for sequence, begin, end in (
        (SequenceRoutes((routes(5, layers=4),)), 0, 5),
        (SequenceRoutes((routes(5).astype(np.uint16),)), 0, 5),
        (SequenceRoutes((routes(5),)), 0, 6),
        (SequenceRoutes((routes(5),)), 3, 2),
    ):
        with pytest.raises(PackingError, match="cannot be placed among routes uint8"):
            plan.place(sequence, begin, end)
    plan.place(SequenceRoutes((routes(5),)), 0, 5)
    for out in (np.zeros((6, 3, 2), np.uint8), np.zeros((5, 3, 2), np.uint16)):
        with pytest.raises(PackingError, match="do not go into"):
            plan.write(out)


@pytest.mark.parametrize("experts", [256, 1000])
def test_binary_routes_survive_the_wire_without_a_copy(experts):
    ids = routes(11, experts=experts)
    header, data = encode_routes(ids)
    assert np.shares_memory(np.frombuffer(data, np.uint8), ids)
    answer = b"".join((header, data))
    assert len(answer) == 24 + ids.nbytes
    back = decode_routes(answer)
    np.testing.assert_array_equal(back, ids)
    assert back.dtype == ids.dtype
    assert np.shares_memory(back, np.frombuffer(answer, np.uint8))
    assert not back.flags.writeable


def test_the_binary_form_is_what_its_description_says():
    header, data = encode_routes(np.array([[[1, 515]]], np.uint16))
    assert header + bytes(data) == b"ARTROUT1" + bytes([2, 0, 2, 0, 1, 0, 0, 0, 1] + [0] * 7) + bytes(
        [1, 0, 3, 2]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:20], "20 bytes are no routes"),
        (lambda data: b"X" + data[1:], "are no routes"),
        (lambda data: data[:8] + b"\x03" + data[9:], "are no routes"),
        (lambda data: data[:-1], r"need 30 bytes; there are 29"),
        (lambda data: data + b"x", r"need 30 bytes; there are 31"),
    ],
)
def test_bytes_that_are_no_routes_are_refused(change, message):
    header, data = encode_routes(routes(1))
    with pytest.raises(RecordError, match=message):
        decode_routes(change(header + bytes(data)))


def test_arrays_that_are_no_routes_are_not_encoded():
    for wrong in (routes(3).astype(np.int32), routes(3)[0]):
        with pytest.raises(RecordError, match="uint8 or uint16"):
            encode_routes(wrong)


def long_record(name: str, prompt: int, completion: int, layers: int, seed: int) -> TrajectoryRecord:
    exchange = TokenRecord(
        np.full(prompt, seed + 1, np.int32),
        np.full(completion, seed + 1, np.int32),
        np.full(completion, -1.0, np.float32),
        (VersionSpan(0, prompt, 0),),
        (VersionSpan(0, completion, 0),),
        routes=RouteBlock(
            np.random.default_rng(seed).integers(0, 256, (prompt + completion, layers, 8), np.uint8)
        ),
    )
    return TrajectoryRecord(name, "g", (exchange,), float(seed))


def test_packing_writes_routes_into_the_buffer_and_makes_no_other_copy_of_them():
    records = [long_record(f"r{seed}", 100, 900, 60, seed) for seed in range(4)]
    plan_packing([records], packed_sequence_length=2000, policy_version=0)  # what is imported late
    tracemalloc.start()
    try:
        plan = plan_packing([records], packed_sequence_length=2000, policy_version=0)
        buffer = bytearray(plan.byte_count)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        plan.write(memoryview(buffer))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    held = before - len(buffer)
    assert plan.byte_count > 1_900_000
    assert peak < 400_000  # temporaries of the loss entries; the routes alone are 1.9 MB
    assert held < 400_000  # a plan refers to the records' routes
    assert len(encode(records[0])) > 480_000
