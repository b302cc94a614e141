"""Packing against a brute force that never merges anything.

One context per loss entry, written out in full.
"""

import asyncio
import statistics
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane import (
    AdvantageRule,
    BatchError,
    DeadlineError,
    Lease,
    LossWeightRule,
    Outcome,
    PackingError,
    PackingRequest,
    PackingResult,
    RouteBlock,
    Selection,
    ShmBatchMapper,
    ShmFullError,
    ShmSegmentStore,
    StoreError,
    TrajectoryStore,
    decode,
    encode,
    pack,
    pack_selection,
    plan_packing,
    trajectory_ref,
)
from art_dataplane.batch import view_tensors

LEASE = Lease("l", 1, "packing", 60.0)


def pack_in_memory(groups, capacity, **rules):
    plan = plan_packing(groups, packed_sequence_length=capacity, policy_version=9, **rules)
    buffer = bytearray(plan.byte_count)
    plan.write(memoryview(buffer))
    return plan, view_tensors(plan.tensors, memoryview(buffer))


def entries_of(plan, batch):
    """Every loss entry with the whole text that its source sees, from the batch alone."""
    found = []
    for row in range(plan.counts.row_count):
        begin, end = batch["row_offsets"][row : row + 2]
        tokens, positions, ends = (
            batch[name][begin:end] for name in ("token_ids", "position_ids", "subtree_end")
        )
        for entry in range(*batch["loss_row_offsets"][row : row + 2]):
            source = batch["loss_source"][entry]
            visible = np.flatnonzero((np.arange(end - begin) <= source) & (source < ends))
            assert visible[-1] == source
            assert positions[visible].tolist() == list(range(len(visible)))
            found.append(
                (
                    tuple(tokens[visible].tolist()),
                    int(batch["loss_target"][entry]),
                    float(batch["loss_old_logprob"][entry]),
                    round(float(batch["loss_advantage"][entry]), 4),
                    round(float(batch["loss_weight"][entry]), 6),
                    int(batch["loss_version"][entry]),
                    plan.record_ids[batch["loss_record"][entry]],
                    float(batch["loss_temperature"][entry]),
                )
            )
    return Counter(found)


def brute_force(groups, advantage, weight):
    """The same entries from the records alone."""
    kept = []
    for group in groups:
        done = [record for record in group if record.error is None]
        rewards = [record.reward for record in done]
        if not done or (len(set(rewards)) == 1 and advantage.zero_variance == "drop"):
            continue
        mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
        scale = deviation + advantage.epsilon if advantage.scale == "std" else 1.0
        kept += [(record, (record.reward - mean) / scale if deviation else 0.0) for record in done]
    lengths = {record.record_id: sum(len(e.completion_ids) for e in record.exchanges) for record, _ in kept}
    total, trained = sum(lengths.values()), sum(1 for length in lengths.values() if length)
    found = []
    for record, value in kept:
        for exchange in record.exchanges:
            prompt, completion = exchange.prompt_ids.tolist(), exchange.completion_ids.tolist()
            versions = [
                span.version for span in exchange.completion_spans for _ in range(span.start, span.end)
            ]
            for at, target in enumerate(completion):
                share = (
                    1 / total if weight.normalize == "token_mean" else 1 / trained / lengths[record.record_id]
                )
                found.append(
                    (
                        tuple(prompt + completion[:at]),
                        target,
                        float(exchange.logprobs[at]),
                        round(float(np.float32(value)), 4),
                        round(float(np.float32(share)), 6),
                        versions[at],
                        record.record_id,
                        float(np.float32(exchange.temperature)),
                    )
                )
    return Counter(found)


def contexts_of(group):
    """All texts that some entry of the group is predicted from."""
    return {
        tuple((exchange.prompt_ids.tolist() + exchange.completion_ids.tolist())[:length])
        for record in group
        for exchange in record.exchanges
        if len(exchange.completion_ids)
        for length in range(1, len(exchange.prompt_ids) + len(exchange.completion_ids))
    }


@st.composite
def conversations(draw, exchange):
    exchanges = []
    for _ in range(draw(st.integers(0, 3))):
        earlier = draw(st.sampled_from([None, *exchanges]))
        prompt = [] if earlier is None else [*earlier.prompt_ids.tolist(), *earlier.completion_ids.tolist()]
        prompt = prompt[: draw(st.integers(max(0, len(prompt) - 2), len(prompt)))]
        prompt += draw(st.lists(st.integers(0, 2), min_size=0 if prompt else 1, max_size=3))
        completion = draw(st.lists(st.integers(0, 2), max_size=4))
        size = {"min_size": len(completion), "max_size": len(completion)}
        logprobs = draw(st.lists(st.sampled_from([-0.125, -1.0, -2.5]), **size))
        versions = draw(st.lists(st.integers(0, 9), **size))
        temperature = draw(st.sampled_from([0.5, 1.0, 0.7]))
        exchanges.append(
            exchange(prompt, completion, logprobs=logprobs, versions=versions, temperature=temperature)
        )
    return exchanges


@st.composite
def selections(draw, exchange, record):
    groups = []
    for group in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 5))
        groups.append(
            [
                record(
                    f"g{group}r{index}",
                    f"g{group}",
                    draw(conversations(exchange)),
                    draw(st.sampled_from([0.0, 0.5, 1.0])),
                    failed=draw(st.integers(0, 5)) == 0,
                )
                for index in range(size)
            ]
        )
    return groups


advantages = st.builds(
    AdvantageRule,
    scale=st.sampled_from(["std", "none"]),
    epsilon=st.just(1e-3),
    zero_variance=st.sampled_from(["drop", "keep"]),
)
weights = st.builds(LossWeightRule, normalize=st.sampled_from(["token_mean", "trajectory_mean"]))


@given(st.data(), st.integers(22, 60), advantages, weights)
def test_every_completion_token_is_predicted_once_from_its_own_context(
    exchange, record, data, capacity, advantage, weight
):
    groups = data.draw(selections(exchange, record))
    plan, batch = pack_in_memory(groups, capacity, advantage=advantage, loss_weight=weight)
    expected = brute_force(groups, advantage, weight)
    assert entries_of(plan, batch) == expected
    assert plan.counts.loss_entries == expected.total()
    if expected:
        assert batch["loss_weight"].sum(dtype=np.float64) == pytest.approx(1.0, abs=1e-6)
    assert set(plan.versions) == {entry[5] for entry in expected}
    assert set(plan.record_ids) == {entry[6] for entry in expected}


@given(st.data(), st.integers(22, 30))
def test_rows_are_never_above_their_length_and_hold_no_token_twice_unless_they_must(
    exchange, record, data, capacity
):
    groups = data.draw(selections(exchange, record))
    plan, batch = pack_in_memory(groups, capacity, advantage=AdvantageRule(zero_variance="keep"))
    sizes = np.diff(batch["row_offsets"])
    assert (sizes <= capacity).all()
    assert (sizes > 0).all()
    contexts = [contexts_of([each for each in group if each.error is None]) for group in groups]
    apart, together = sum(map(len, contexts)), len(set().union(*contexts))
    assert plan.counts.physical_tokens >= together
    if all(len(each) <= capacity for each in contexts):
        assert plan.counts.physical_tokens <= apart
    if apart <= capacity:
        assert plan.counts.physical_tokens == together


def test_the_order_within_a_group_changes_no_row(exchange, record):
    made = [record(f"r{i}", exchanges=[exchange([1, 2], [i % 3, i])], reward=i) for i in range(6)]
    one, batch_one = pack_in_memory([made], 64)
    two, batch_two = pack_in_memory([made[::-1]], 64)
    np.testing.assert_array_equal(batch_one["token_ids"], batch_two["token_ids"])
    assert entries_of(one, batch_one) == entries_of(two, batch_two)


def test_records_of_truncated_sampling_are_counted(exchange, record):
    cut = msgspec.structs.replace(exchange([1, 2], [3]), truncated_sampling=True)
    group = [record("a", "g", [cut], reward=1.0), record("b", "g", [exchange([1, 2], [4])], reward=0.0)]
    plan, _ = pack_in_memory([group], 16)
    assert plan.counts.truncated_records == 1


def test_counts_say_what_was_left_out(exchange, record):
    groups = [
        [record("a", "g0", reward=1.0), record("b", "g0", reward=0.0), record("c", "g0", failed=True)],
        [record("d", "g1", reward=1.0), record("e", "g1", reward=1.0)],
        [record("f", "g2", [], reward=1.0), record("g", "g2", [exchange([1], [])], reward=0.0)],
    ]
    plan, _ = pack_in_memory(groups, 16)
    counts = plan.counts
    assert (counts.trajectory_count, counts.group_count, counts.failed_records) == (2, 1, 1)
    assert (counts.dropped_zero_variance_groups, counts.zero_variance_groups) == (1, 1)
    assert counts.records_without_targets == 2
    assert (counts.logical_tokens, counts.physical_tokens, counts.loss_entries) == (10, 4, 4)
    assert counts.truncated_records == 0
    assert (plan.record_ids, plan.group_ids) == (("a", "b"), ("g0",))


def test_a_shared_prompt_is_computed_once_and_its_last_token_predicts_many(exchange, record):
    made = [record(f"r{i}", exchanges=[exchange(range(40), [100 + i] * 8)], reward=i) for i in range(16)]
    plan, batch = pack_in_memory([made], 512)
    assert plan.counts.logical_tokens == 16 * 48
    assert plan.counts.physical_tokens == 40 + 16 * 7
    assert (batch["loss_source"] == 39).sum() == 16


def test_what_the_prompts_of_several_groups_share_is_computed_once(exchange, record):
    groups = [
        [
            record(f"g{group}r{i}", f"g{group}", [exchange([1, 2, 3, 4, 10 + group], [20 + i, 30])], reward=i)
            for i in range(2)
        ]
        for group in range(3)
    ]
    plan, batch = pack_in_memory(groups, 64)
    assert plan.counts.row_count == 1
    assert plan.counts.physical_tokens == 4 + 3 * (1 + 2)
    assert entries_of(plan, batch) == brute_force(groups, AdvantageRule(), LossWeightRule())


def test_a_tree_above_the_row_is_split_by_repeating_its_prefix(exchange, record):
    made = [record(f"r{i}", exchanges=[exchange(range(10), [100 + i] * 5)], reward=i) for i in range(8)]
    plan, batch = pack_in_memory([made], 20)
    assert plan.counts.row_count == 4
    assert np.diff(batch["row_offsets"]).tolist() == [18] * 4
    assert entries_of(plan, batch) == brute_force([made], AdvantageRule(), LossWeightRule())


def test_a_trajectory_that_cannot_fit_is_named_with_its_lengths(exchange, record):
    made = [record("fits", reward=0.0), record("too-long", exchanges=[exchange(range(10), [1] * 8)])]
    with pytest.raises(
        PackingError,
        match=r"trajectory too-long of group g0 does not fit: prompt 10 \+ completion 8 tokens need 17 "
        r"physical tokens, packed_sequence_length is 16",
    ):
        pack_in_memory([made], 16)
    plan, _ = pack_in_memory([made], 17)
    assert plan.counts.trajectory_count == 2


def test_routes_come_from_the_exchange_in_which_a_token_came_up_first(exchange, record):
    def routes(count, first):
        return RouteBlock((first + np.arange(count * 2, dtype=np.uint16)).reshape(count, 2, 1))

    turns = [
        exchange([1, 2], [3, 4], routes=routes(4, 100)),
        exchange([1, 2, 3, 4, 5], [6, 7], routes=routes(7, 200)),
    ]
    other = record("r1", exchanges=[exchange([8], [9], routes=routes(2, 300))], reward=0.0)
    _, batch = pack_in_memory([[record("r0", exchanges=turns), other]], 16)
    assert batch["token_ids"].tolist() == [1, 2, 3, 4, 5, 6, 8]
    assert batch["routes"][:, 0, 0].tolist() == [100, 102, 104, 106, 208, 210, 300]
    assert batch["routes"].dtype == np.uint16


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda made: [made[0], msgspec.structs.replace(made[1], group_id="other")],
            "group other is among those of g0",
        ),
        (lambda made: [made[0], made[0]], "record r0 is there twice"),
        (
            lambda made: [made[0], msgspec.structs.replace(made[1], reward=float("inf"))],
            "reward inf is not finite",
        ),
    ],
)
def test_contradicting_records_are_refused(record, spoil, message):
    made = [record("r0", reward=0.0), record("r1")]
    with pytest.raises(PackingError, match=message):
        pack_in_memory([spoil(made)], 16)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.0}, "record r1, exchange 0 was sampled at temperature 0"),
        ({"versions": [3, 10]}, "tokens of version 10, after the version 9"),
        (
            {"routes": RouteBlock(np.zeros((3, 1, 1), np.uint8))},
            "1 of 2 exchanges have routes, and one of record r0 has none",
        ),
    ],
)
def test_exchanges_that_cannot_be_trained_on_are_refused(exchange, record, fields, message):
    made = [record("r0", reward=0.0), record("r1", exchanges=[exchange([1], [2, 3], **fields)])]
    with pytest.raises(PackingError, match=message):
        pack_in_memory([made], 16)


def test_a_buffer_that_is_too_small_is_refused(record):
    plan = plan_packing(
        [[record("r0"), record("r1", reward=0.0)]], packed_sequence_length=8, policy_version=0
    )
    with pytest.raises(BatchError, match="do not describe a buffer"):
        plan.write(memoryview(bytearray(plan.byte_count - 1)))


def request_for(groups, **fields):
    refs = tuple(tuple(trajectory_ref(each, "owner") for each in group) for group in groups)
    defaults = {"packed_sequence_length": 64, "ticket": 3, "policy_version": 5}
    return PackingRequest(Selection(refs, LEASE), **{**defaults, **fields})


def test_a_batch_is_written_into_shared_memory_leased_and_mapped(record, segments):
    groups = [[record("r0"), record("r1", reward=0.0)]]
    result = pack(groups, request_for(groups), segments, owner="packing-0")
    ref = result.ref
    assert (ref.owner, ref.ticket, ref.policy_version, ref.lease.holder) == ("packing-0", 3, 5, "trainer")
    assert ref.batch_id.startswith("batch-00000003-")
    assert result.counts == ref.counts
    with ShmBatchMapper().map(ref) as batch:
        assert batch.token_ids.tolist() == [1, 2, 3, 4]
        assert batch.row(0)["loss_target"].tolist() == batch.loss_target.tolist()
    segments.release(ref.location, ref.lease, Outcome.CONSUMED)
    assert segments.stats().segment_count == 0


def test_nothing_to_train_on_is_an_answer_and_takes_no_memory(record, segments):
    groups = [[record("r0"), record("r1")], [record("r2", "g1", failed=True)]]
    result = pack(groups, request_for(groups), segments, owner="packing-0")
    assert result.ref is None
    assert (result.counts.dropped_zero_variance_groups, result.counts.failed_records) == (1, 1)
    assert segments.stats().segment_count == 0


def test_a_batch_without_room_leaves_nothing(record, run_id):
    groups = [[record("r0"), record("r1", reward=0.0)]]
    with ShmSegmentStore(run_id, 100) as small, pytest.raises(ShmFullError, match="of 100 bytes are used"):
        pack(groups, request_for(groups), small, owner="packing-0")


async def test_records_are_fetched_from_all_owners_and_packed_in_selection_order(exchange, record, segments):
    stores = {name: TrajectoryStore(name, 100, 1 << 20, segments=segments) for name in ("w0", "w1")}
    groups = []
    for group in range(3):
        refs = [
            stores[f"w{index % 2}"].put(
                record(f"g{group}r{index}", f"g{group}", [exchange([group, 1], [index, 2])], reward=index)
            )
            for index in range(4)
        ]
        groups.append(tuple(refs))
    request = PackingRequest(Selection(tuple(groups), LEASE), 64, 1, 0)
    result = await pack_selection(request, stores, segments, 5.0, owner="packing-0")
    assert result.ref.record_ids == tuple(f"g{group}r{index}" for group in range(3) for index in range(4))
    assert result.ref.group_ids == ("g0", "g1", "g2")
    segments.release(result.ref.location, result.ref.lease, Outcome.CONSUMED)


async def test_the_error_of_one_owner_is_not_hidden_by_another_that_hangs(record, segments):
    stores = {name: TrajectoryStore(name, 10, 1 << 20) for name in ("w0", "w1")}
    refs = tuple(stores[f"w{index}"].put(record(f"r{index}", reward=index)) for index in range(2))
    await stores["w0"].drop(refs[:1])

    class Hanging:
        async def fetch(self, refs, lease, deadline_s):
            await asyncio.Event().wait()

    owners = {"w0": stores["w0"], "w1": Hanging()}
    with pytest.raises(StoreError, match="does not hold 1 of 1 records, the first r0"):
        await pack_selection(
            PackingRequest(Selection((refs,), LEASE), 64, 1, 0), owners, segments, 5.0, owner="p"
        )
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_requests_and_results_survive_the_wire(record, segments):
    groups = [[record("r0"), record("r1", reward=0.0)]]
    request = request_for(
        groups, advantage=AdvantageRule("none", 0.5, "keep"), loss_weight=LossWeightRule("trajectory_mean")
    )
    assert decode(encode(request), PackingRequest) == request
    result = pack(groups, request, segments, owner="packing-0")
    assert decode(encode(result), PackingResult) == result
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value"):
        decode(encode({**msgspec.to_builtins(request), "loss_weight": {"normalize": "sum"}}), PackingRequest)


async def test_an_empty_selection_is_refused(segments):
    with pytest.raises(PackingError, match="holds no references"):
        await pack_selection(PackingRequest(Selection((), LEASE), 64, 1, 0), {}, segments, 1.0, owner="p")


async def test_an_unknown_owner_a_slow_owner_and_a_lying_owner_are_named(record, segments):
    store = TrajectoryStore("w0", 10, 1 << 20)
    selection = Selection(((store.put(record("r0")), store.put(record("r1", reward=0.0))),), LEASE)
    request = PackingRequest(selection, 64, 1, 0)

    class Slow:
        async def fetch(self, refs, lease, deadline_s):
            await asyncio.Event().wait()

    class Lying:
        async def fetch(self, refs, lease, deadline_s):
            return await store.fetch(refs[::-1], lease, deadline_s)

    with pytest.raises(PackingError, match=r"no way to the owners \['w0'\]"):
        await pack_selection(request, {}, segments, 1.0, owner="p")
    with pytest.raises(DeadlineError, match=r"no answer from the owners \['w0'\] within 0.05 s"):
        await pack_selection(request, {"w0": Slow()}, segments, 0.05, owner="p")
    with pytest.raises(PackingError, match=r"owner w0 was asked for .*r0.* and sent .*r1"):
        await pack_selection(request, {"w0": Lying()}, segments, 1.0, owner="p")
    assert asyncio.all_tasks() == {asyncio.current_task()}
