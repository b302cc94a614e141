"""Room: reservations, resizes while running, and being told at once what can never come."""

import asyncio

import msgspec
import pytest

from art_dataplane import (
    DeadlineError,
    LeaseError,
    Outcome,
    QueueError,
    QueueLimits,
    SelectionRule,
    TrajectoryQueue,
    TrajectoryRef,
)
from art_dataplane.errors import OwnerDiedError, QueueClosedError, StaleResizeError, UnsatisfiableError
from art_dataplane.records import LostGroup

OLDEST = SelectionRule()


def group(name: str, size: int = 2, *, byte_count: int = 10, ok: bool = True, owner: str = "w"):
    return tuple(
        TrajectoryRef(f"{name}-{index}", name, owner, byte_count, 5, 1.0 if ok else None, 0, 0, ok)
        for index in range(size)
    )


async def soon(awaitable):
    """Fails when a waiter is not woken but finds out at its own, far deadline."""
    return await asyncio.wait_for(awaitable, 10)


async def begun(awaitable) -> asyncio.Future:
    """Starts it and lets it come to its first wait."""
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_room_is_reserved_before_the_group_exists_and_the_rest_of_it_is_free_again():
    queue = TrajectoryQueue(QueueLimits(2, 10, 100))
    lease = await queue.reserve("a", 8, 90, 1.0)
    with pytest.raises(DeadlineError, match="1 groups, 8 records, 90 bytes reserved"):
        await queue.put(group("b", 3), 0.01)
    waiting = await begun(queue.put(group("b", 3), 600.0))
    stats = queue.stats()
    assert (stats.reserved_groups, stats.reserved_records, stats.reserved_bytes) == (1, 8, 90)
    assert (stats.waiting_groups, stats.waiting_puts) == (0, 1)
    queue.commit(lease, group("a", 7))
    await soon(waiting)
    stats = queue.stats()
    assert (stats.reserved_groups, stats.records, stats.byte_count) == (0, 10, 100)
    with pytest.raises(LeaseError, match="not in force"):
        queue.commit(lease, group("a", 7))


async def test_a_reservation_is_for_one_group_and_no_larger_one():
    queue = TrajectoryQueue(QueueLimits(2, 10, 100))
    lease = await queue.reserve("a", 2, 20, 1.0)
    with pytest.raises(QueueError, match="group b is not the one that 'producer' reserved room for"):
        queue.commit(lease, group("b"))
    with pytest.raises(QueueError, match=r"3 records, 30 bytes\) is larger than its reservation \(1 gr"):
        queue.commit(lease, group("a", 3))
    with pytest.raises(QueueError, match="group a is in the queue already, or room is reserved"):
        await queue.put(group("a"), 1.0)
    with pytest.raises(LeaseError, match="is a reservation; commit it or abort it"):
        queue.release(lease, Outcome.CONSUMED)
    queue.commit(lease, group("a"))
    selection = await queue.select(1, OLDEST, 1.0)
    with pytest.raises(LeaseError, match="on 1 groups and is no reservation"):
        queue.abort(selection.lease)
    for bad in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, float("inf"))):
        with pytest.raises(QueueError, match="cannot reserve"):
            await queue.reserve("c", bad[0], bad[1], 1.0, lease_s=bad[2])


async def test_a_reservation_that_is_given_up_or_runs_out_lets_the_next_one_in():
    queue = TrajectoryQueue(QueueLimits(1, 10, 100))
    first = await queue.reserve("a", 1, 1, 1.0)
    second = await begun(queue.reserve("b", 1, 1, 600.0, lease_s=0.05))
    queue.abort(first)
    second = await soon(second)
    await soon(queue.put(group("c"), 600.0))  # wakes by itself when the reservation ends
    assert queue.stats().expired_leases == 1
    with pytest.raises(LeaseError, match="not in force"):
        queue.commit(second, group("b"))


async def test_a_select_above_the_limits_is_told_at_once_which():
    queue = TrajectoryQueue(QueueLimits(groups=5, records=4, byte_count=3))
    with pytest.raises(UnsatisfiableError, match=r"'packing' cannot select 4 groups, of at least 1 record"):
        await queue.select(4, OLDEST, 600.0)
    with pytest.raises(DeadlineError):
        await queue.select(3, OLDEST, 0.01)


async def test_a_select_is_told_when_what_waits_leaves_no_room_for_more():
    queue = TrajectoryQueue(QueueLimits(10, 8, 1000))
    await queue.put(group("a", 3), 1.0)
    selecting = await begun(queue.select(3, OLDEST, 600.0))
    await queue.put(group("b", 3), 1.0)
    await asyncio.sleep(0)
    assert not selecting.done()  # there is room for a group of two
    putting = await begun(queue.put(group("c", 3), 600.0))
    with pytest.raises(
        UnsatisfiableError, match=r"2 are waiting \(2 groups, 6 records, 60 bytes\).*Select 2"
    ):
        await soon(selecting)
    assert not putting.done()
    selection = await queue.select(2, OLDEST, 1.0)
    with pytest.raises(DeadlineError, match="1 groups; 0 were waiting and 2 leased"):
        await queue.select(1, OLDEST, 0.01)  # these may come back: no certainty, so it waits
    queue.release(selection.lease, Outcome.CONSUMED)
    await soon(putting)


async def test_waiters_are_told_when_a_resize_takes_their_chance_away_wherever_they_stand():
    queue = TrajectoryQueue(QueueLimits(3, 10, 1000))
    for name in "abc":
        await queue.put(group(name, 3), 1.0)
    held = await queue.select(3, OLDEST, 1.0)
    first, second = await begun(queue.put(group("d", 2), 600.0)), await begun(queue.put(group("e", 9), 600.0))
    small, large = await begun(queue.select(1, OLDEST, 600.0)), await begun(queue.select(3, OLDEST, 600.0))
    assert queue.resize(QueueLimits(2, 8, 1000), revision=0) == 1
    with pytest.raises(UnsatisfiableError, match=r"group e \(1 groups, 9 records, 90 bytes\) is larger"):
        await soon(second)
    with pytest.raises(UnsatisfiableError, match="cannot select 3 groups"):
        await soon(large)
    assert not first.done()
    queue.release(held.lease, Outcome.CONSUMED)
    await soon(first)
    assert (await soon(small)).group_ids == ("d",)


async def test_a_stale_resize_changes_nothing():
    queue = TrajectoryQueue(QueueLimits(3, 10, 1000))
    assert queue.resize(QueueLimits(4, 10, 1000), revision=queue.stats().limits_revision) == 1
    for revision in (0, 2):
        with pytest.raises(StaleResizeError, match=f"for revision {revision} .*revision 1 is in force"):
            queue.resize(QueueLimits(9, 9, 9), revision=revision)
    assert (queue.stats().limits, queue.stats().limits_revision) == (QueueLimits(4, 10, 1000), 1)


async def test_part_of_a_selection_is_released_and_the_rest_stays_leased():
    queue = TrajectoryQueue(QueueLimits(5, 100, 1000))
    for name in "abc":
        await queue.put(group(name), 1.0)
    selection = await queue.select(3, OLDEST, 1.0)
    assert queue.release(selection.lease, Outcome.CONSUMED, group_ids=["b"]) == group("b")
    assert queue.check(selection.lease) == ("a", "c")
    assert selection.without(["b"]).group_ids == ("a", "c")
    with pytest.raises(QueueError, match="group x is not among the 3 of this selection"):
        selection.without(["x"])
    queue.release(selection.lease, Outcome.DISCARDED, group_ids=["c"])
    queue.release(selection.lease, Outcome.CONSUMED)
    stats = queue.stats()
    assert (stats.waiting_groups, stats.leased_groups, stats.consumed_groups) == (1, 0, 2)


async def test_the_report_of_a_dead_holder_gives_back_what_he_had():
    queue = TrajectoryQueue(QueueLimits(5, 100, 1000))
    for name in "abc":
        await queue.put(group(name), 1.0)
    first = await queue.select(1, OLDEST, 1.0, holder="p0")
    second = await queue.select(1, OLDEST, 1.0, holder="p1")
    third = await queue.select(1, OLDEST, 1.0, holder="p0")
    waiting = await begun(queue.select(2, OLDEST, 600.0))
    assert queue.revoke_holder("p0") == (first.lease, third.lease)
    assert (await soon(waiting)).group_ids == ("a", "c")
    assert queue.check(second.lease) == ("b",)
    with pytest.raises(LeaseError):
        queue.release(first.lease, Outcome.CONSUMED)


async def test_what_an_owner_takes_with_it_is_told_to_everybody_whom_it_concerns():
    queue = TrajectoryQueue(QueueLimits(3, 100, 1000))
    await queue.put(group("a", owner="w0"), 1.0)
    await queue.put(group("b", 1, owner="w0") + group("b", 2, owner="w1")[1:], 1.0)
    await queue.put(group("c", owner="w1"), 1.0)
    putting = await begun(queue.put(group("d", owner="w1"), 600.0))
    expected = (
        LostGroup("b", ("b-1",), ("w1",), "killed"),
        LostGroup("c", ("c-0", "c-1"), ("w1",), "killed"),
    )
    assert queue.drop_owner("w1", "killed") == expected
    with pytest.raises(OwnerDiedError, match="the owner 'w1' is gone with its records: killed"):
        await soon(putting)
    stats = queue.stats()
    assert (stats.waiting_groups, stats.lost_waiting_groups) == (1, 2)
    lost = await queue.select(1, OLDEST, 1.0)
    assert (lost.group_ids, lost.lost, lost.stale) == (("b", "c"), expected, False)
    queue.release(lost.lease, Outcome.DISCARDED)  # whoever asks next is told
    lost = await queue.select(1, OLDEST, 1.0)
    queue.release(lost.lease, Outcome.CONSUMED)
    good = await queue.select(1, OLDEST, 1.0)
    assert (good.group_ids, good.lost) == (("a",), ())
    await queue.put(group("e", owner="w1"), 1.0)  # another process under the same name
    assert (await queue.select(1, OLDEST, 1.0)).group_ids == ("e",)
    assert queue.stats().lost_groups == 2


async def test_losses_add_up_and_those_of_strangers_are_passed_over():
    queue = TrajectoryQueue(QueueLimits(3, 100, 1000))
    await queue.put(group("a"), 1.0)
    first = LostGroup("a", ("a-0",), ("w",), "dropped")
    assert queue.mark_lost([first, LostGroup("x", ("x-0",), ("w",), "dropped")]) == (first,)
    (known,) = queue.mark_lost([LostGroup("a", ("a-0", "a-1"), ("v",), "killed")])
    assert known == LostGroup("a", ("a-0", "a-1"), ("w", "v"), "dropped; killed")


async def test_a_closed_queue_turns_everybody_away_and_says_what_it_held():
    queue = TrajectoryQueue(QueueLimits(2, 100, 1000))
    await queue.put(group("a"), 1.0)
    await queue.put(group("b"), 1.0)
    selection = await queue.select(1, OLDEST, 1.0)
    putting, selecting = (
        await begun(queue.put(group("c"), 600.0)),
        await begun(queue.select(2, OLDEST, 600.0)),
    )
    assert {ref.record_id for ref in queue.close()} == {"a-0", "a-1", "b-0", "b-1"}
    assert queue.close() == ()
    for waiting in (putting, selecting, queue.put(group("d"), 1.0), queue.reserve("e", 1, 1, 1.0)):
        with pytest.raises(QueueClosedError, match="was closed with 2 groups in it"):
            await soon(waiting)
    with pytest.raises(QueueClosedError):
        queue.resize(QueueLimits(9, 9, 9), revision=0)
    with pytest.raises(LeaseError):
        queue.release(selection.lease, Outcome.CONSUMED)
    stats = queue.stats()
    assert (stats.records, stats.leased_groups, stats.closed_groups, stats.waiting_puts) == (0, 0, 2, 0)


async def test_a_failed_rollout_with_a_reward_is_not_queued():
    queue = TrajectoryQueue(QueueLimits(2, 100, 1000))
    (ref,) = group("a", 1)
    with pytest.raises(QueueError, match=r"failed and has a reward of 1\.0"):
        await queue.put([msgspec.structs.replace(ref, ok=False)], 1.0)


async def test_lost_groups_come_before_stale_ones_and_do_not_count_as_stale():
    queue = TrajectoryQueue(QueueLimits(5, 100, 1000))
    await queue.put(group("old"), 1.0)
    await queue.put(group("gone", owner="w1"), 1.0)
    queue.drop_owner("w1", "killed")
    fresh = SelectionRule(oldest_version=1)
    lost = await queue.select(1, fresh, 1.0)
    assert (lost.group_ids, lost.stale, queue.stats().stale_groups) == (("gone",), False, 0)
    stale = await queue.select(1, fresh, 1.0)
    assert (stale.group_ids, stale.stale, stale.lost, queue.stats().stale_groups) == (("old",), True, (), 1)
