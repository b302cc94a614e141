"""Records stay with their owner, bounded, and go to whoever has the newest fence."""

import asyncio

import numpy as np
import pytest

from art_dataplane import (
    DeadlineError,
    InlineLocation,
    Lease,
    LeaseError,
    RecordError,
    ShmLocation,
    StoreError,
    StoreFullError,
    TrajectoryStore,
    encode,
    list_segments,
    read_records,
    trajectory_ref,
)
from art_dataplane.errors import RecordsMissingError, StaleResizeError, StoreClosedError


def lease(fence: int = 1) -> Lease:
    return Lease(f"lease-{fence}", fence, "packing", 60.0)


def big(record, exchange, name: str):
    return record(name, exchanges=[exchange(range(20_000), [1, 2])])


async def test_small_fetches_are_inline_and_keep_the_order_asked_for(record):
    store = TrajectoryStore("w", 10, 1 << 20)
    refs = [store.put(record(f"r{index}")) for index in range(3)]
    location = await store.fetch(refs[::-1], lease(), 1.0)
    assert isinstance(location, InlineLocation)
    assert [each.record_id for each in read_records(location)] == ["r2", "r1", "r0"]


async def test_large_fetches_go_through_a_segment_and_outlive_its_drop(exchange, record, segments, run_id):
    store = TrajectoryStore("w", 10, 1 << 20, segments=segments)
    made = big(record, exchange, "r0")
    ref = store.put(made)
    location = await store.fetch([ref], lease(), 1.0)
    assert isinstance(location, ShmLocation)
    (back,) = read_records(location)
    assert await store.drop([ref]) == 1
    assert list_segments(run_id) == ()
    np.testing.assert_array_equal(back.exchanges[0].prompt_ids, made.exchanges[0].prompt_ids)


async def test_the_same_fence_gets_the_same_segment_and_a_higher_one_replaces_it(exchange, record, segments):
    store = TrajectoryStore("w", 10, 1 << 20, segments=segments)
    ref = store.put(big(record, exchange, "r0"))
    first = await store.fetch([ref], lease(1), 1.0)
    assert await store.fetch([ref], lease(1), 1.0) == first
    second = await store.fetch([ref], lease(2), 1.0)
    assert second != first
    assert segments.stats().segment_count == 1
    await store.drop([ref])


async def test_a_stale_fence_gets_nothing(record):
    store = TrajectoryStore("w", 10, 1 << 20)
    refs = [store.put(record(f"r{index}")) for index in range(2)]
    await store.fetch(refs[:1], lease(7), 1.0)
    with pytest.raises(LeaseError, match="'r0': fence 6 of 'packing' is stale, fence 7"):
        await store.fetch(refs, lease(6), 1.0)
    await store.fetch(refs[1:], lease(6), 1.0)


async def test_a_large_fetch_without_segments_is_an_error_and_not_a_large_message(exchange, record):
    store = TrajectoryStore("w", 10, 1 << 20)
    ref = store.put(big(record, exchange, "r0"))
    with pytest.raises(StoreError, match=r"exceed the 65536 that travel inline.*ShmSegmentStore"):
        await store.fetch([ref], lease(), 1.0)


async def test_what_is_not_held_is_named(record):
    store = TrajectoryStore("w", 10, 1 << 20)
    held, gone = store.put(record("r0")), store.put(record("r1"))
    assert await store.drop([gone]) == 1
    assert await store.drop([gone]) == 0
    with pytest.raises(StoreError, match="does not hold 1 of 2 records, the first r1"):
        await store.fetch([held, gone], lease(), 1.0)
    with pytest.raises(StoreError, match="is with 'other', not with 'w'"):
        await store.fetch([trajectory_ref(record("r0"), "other")], lease(), 1.0)
    with pytest.raises(StoreError, match="names no records"):
        await store.fetch([], lease(), 1.0)
    with pytest.raises(DeadlineError, match="has passed"):
        await store.fetch([held], lease(), 0.0)


async def test_a_full_store_says_so_with_its_numbers(record):
    size = len(encode(record("r0")))
    by_count, by_bytes = TrajectoryStore("w", 1, 1 << 20), TrajectoryStore("w", 10, size)
    for store in (by_count, by_bytes):
        store.put(record("r0"))
        with pytest.raises(StoreFullError, match=f"record r1 of {size} bytes .* 1 of 1?0?1?"):
            store.put(record("r1"))
        stats = await store.stats()
        assert (stats.record_count, stats.byte_count) == (1, size)


async def test_waiting_for_room_ends_with_room_or_at_the_deadline(record):
    store = TrajectoryStore("w", 1, 1 << 20)
    first = store.put(record("r0"))
    with pytest.raises(DeadlineError, match=r"1 of 1 records.*waited 0.02 s"):
        await store.put_when_room(record("r1"), 0.02)
    waiting = asyncio.ensure_future(store.put_when_room(record("r2"), 600.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await store.drop([first])
    assert (await asyncio.wait_for(waiting, 10)).record_id == "r2"


async def test_a_record_above_the_bound_does_not_wait(record):
    store = TrajectoryStore("w", 1, 10)
    with pytest.raises(StoreFullError, match="of 10 bytes are held"):
        await store.put_when_room(record("r0"), 60.0)


async def test_bad_records_and_double_ids_are_refused(record):
    store = TrajectoryStore("w", 10, 1 << 20)
    with pytest.raises(RecordError, match="not finite"):
        store.put(record("r0", reward=float("nan")))
    store.put(record("r0"))
    with pytest.raises(StoreError, match="r0 is held by store w already"):
        store.put(record("r0"))
    with pytest.raises(StoreError, match="must be positive"):
        TrajectoryStore("w", 0, 1)


async def test_failed_records_are_kept_and_counted(record):
    store = TrajectoryStore("w", 10, 1 << 20)
    ref = store.put(record("r0", failed=True))
    assert not ref.ok
    assert (await store.stats()).failed_count == 1
    (back,) = read_records(await store.fetch([ref], lease(), 1.0))
    assert back.error.message == "the environment broke"


async def test_what_was_put_does_not_change_with_its_arrays(exchange, record):
    store = TrajectoryStore("w", 10, 1 << 20)
    made = record("r0", exchanges=[exchange([1, 2], [3])])
    ref = store.put(made)
    made.exchanges[0].prompt_ids[:] = 9
    (back,) = read_records(await store.fetch([ref], lease(), 1.0))
    assert back.exchanges[0].prompt_ids.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        back.exchanges[0].prompt_ids[0] = 5


async def test_room_is_reserved_for_records_to_come_and_ends_with_the_last(record):
    size = len(encode(record("r0")))
    store = TrajectoryStore("w", 3, 4 * size)
    reservation = await store.reserve("g0", 2, 3 * size, 1.0)
    store.put(record("r0"))
    with pytest.raises(StoreFullError, match=rf"1 of 3 records.*and 2 records, {3 * size} bytes reserved"):
        store.put(record("r1"))
    with pytest.raises(StoreError, match="is of group g1; its reservation is for group g0"):
        store.put(record("r1", "g1"), reservation=reservation)
    store.put(record("r1"), reservation=reservation)
    stats = await store.stats()
    assert (stats.record_count, stats.reserved_records, stats.reserved_bytes) == (2, 1, 2 * size)
    store.put(record("r2"), reservation=reservation)
    stats = await store.stats()
    assert (stats.record_count, stats.reserved_records, stats.reserved_bytes) == (3, 0, 0)
    with pytest.raises(LeaseError, match="not in force"):
        store.put(record("r3"), reservation=reservation)


async def test_a_reservation_is_not_exceeded_and_can_be_given_up(record, exchange):
    store = TrajectoryStore("w", 1, 10_000)
    reservation = await store.reserve("g0", 1, 300, 1.0)
    large = record("r0", exchanges=[exchange([1] * 400, [2])])
    with pytest.raises(StoreFullError, match=r"of which 1 records, 300 bytes are left"):
        store.put(large, reservation=reservation)
    waiting = asyncio.ensure_future(store.put_when_room(large, 600.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    store.abort(reservation)
    assert (await asyncio.wait_for(waiting, 10)).record_id == "r0"
    for records, byte_count in ((0, 1), (1, 0)):
        with pytest.raises(StoreError, match="cannot be reserved"):
            await store.reserve("g0", records, byte_count, 1.0)


async def test_a_reservation_runs_out_and_lets_who_waits_in(record):
    store = TrajectoryStore("w", 1, 10_000)
    await store.reserve("g0", 1, 300, 1.0, lease_s=0.05)
    ref = await asyncio.wait_for(store.put_when_room(record("r0"), 600.0), 10)
    assert ref.record_id == "r0"
    assert (await store.stats()).expired_reservations == 1


async def test_groups_are_bounded_and_a_reservation_counts_as_one(record):
    store = TrajectoryStore("w", 100, 1 << 20, max_groups=2)
    reservation = await store.reserve("g0", 1, 1000, 1.0)
    first = store.put(record("r1", "g1"))
    store.put(record("r2", "g1"))
    with pytest.raises(StoreFullError, match="2 of 2 groups"):
        store.put(record("r3", "g2"))
    store.put(record("r0", "g0"), reservation=reservation)
    assert (await store.stats()).group_count == 2
    await store.drop([first])
    assert (await store.stats()).group_count == 2
    await store.drop([trajectory_ref(record("r2", "g1"), "w")])
    assert (await store.stats()).group_count == 1
    store.put(record("r3", "g2"))


async def test_resizing_tells_who_can_never_get_in_and_a_stale_one_changes_nothing(record, exchange):
    store = TrajectoryStore("w", 1, 1 << 20)
    store.put(record("r0"))
    small = asyncio.ensure_future(store.put_when_room(record("r1"), 600.0))
    large = asyncio.ensure_future(
        store.put_when_room(record("r2", exchanges=[exchange([1] * 5000, [2])]), 600.0)
    )
    await asyncio.sleep(0)
    assert store.resize(1, 10_000, revision=0) == 1
    with pytest.raises(StoreFullError, match="record r2 of"):
        await asyncio.wait_for(large, 10)
    with pytest.raises(StaleResizeError, match=r"revision 0 of the bounds; revision 1 is in force"):
        store.resize(9, 9, revision=0)
    assert not small.done()
    assert store.resize(2, 10_000, 5, revision=1) == 2
    await asyncio.wait_for(small, 10)
    stats = await store.stats()
    assert (stats.max_records, stats.max_bytes, stats.max_groups) == (2, 10_000, 5)


async def test_a_stale_holder_drops_nothing(record):
    store = TrajectoryStore("w", 10, 1 << 20)
    ref = store.put(record("r0"))
    await store.fetch([ref], lease(7), 1.0)
    with pytest.raises(LeaseError, match="fence 6 of 'packing' is stale"):
        await store.drop([ref], lease(6))
    assert await store.drop([ref], lease(7)) == 1


async def test_a_closed_store_leaves_no_segment_and_nobody_waiting(exchange, record, segments, run_id):
    store = TrajectoryStore("w", 1, 1 << 20, segments=segments)
    ref = store.put(big(record, exchange, "r0"))
    await store.fetch([ref], lease(), 1.0)
    waiting = asyncio.ensure_future(store.put_when_room(record("r1"), 600.0))
    await asyncio.sleep(0)
    assert store.close() == 1
    assert list_segments(run_id) == ()
    with pytest.raises(StoreClosedError):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(StoreClosedError):
        store.put(record("r2"))
    with pytest.raises(RecordsMissingError):
        await store.fetch([ref], lease(), 1.0)
    assert store.close() == 0
