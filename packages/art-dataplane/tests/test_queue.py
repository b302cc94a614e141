"""The queue alone; as a state machine it is in ``stateful/``."""

import asyncio

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

WIDE = QueueLimits(groups=10, records=100, byte_count=10_000)
OLDEST = SelectionRule()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def group(
    name: str, size: int = 2, *, byte_count: int = 10, version: int = 0, ok: bool = True, owner: str = "w"
):
    return tuple(
        TrajectoryRef(
            f"{name}-{index}", name, owner, byte_count, 5, 1.0 if ok else None, version, version, ok
        )
        for index in range(size)
    )


async def soon(awaitable):
    """Fails when a waiter is not woken but finds out at its own, far deadline."""
    return await asyncio.wait_for(awaitable, 10)


def names(selection) -> list[str]:
    return [refs[0].group_id for refs in selection.groups]


async def test_groups_come_out_in_the_order_asked_for():
    queue = TrajectoryQueue(WIDE)
    for name in "abcd":
        await queue.put(group(name), 1.0)
    assert names(await queue.select(2, OLDEST, 1.0)) == ["a", "b"]
    assert names(await queue.select(1, SelectionRule(order="newest"), 1.0)) == ["d"]


async def test_a_discarded_group_waits_again_where_it_was():
    queue = TrajectoryQueue(WIDE)
    for name in "abc":
        await queue.put(group(name), 1.0)
    first = await queue.select(1, OLDEST, 1.0)
    second = await queue.select(1, OLDEST, 1.0)
    queue.release(second.lease, Outcome.DISCARDED)
    queue.release(first.lease, Outcome.DISCARDED)
    assert names(await queue.select(3, OLDEST, 1.0)) == ["a", "b", "c"]
    assert queue.stats().discarded_groups == 2


async def test_put_waits_for_what_is_consumed_and_not_for_what_is_leased():
    queue = TrajectoryQueue(QueueLimits(1, 10, 1000))
    await queue.put(group("a"), 1.0)
    selection = await queue.select(1, OLDEST, 1.0)
    with pytest.raises(
        DeadlineError,
        match=r"group b \(1 groups, 2 records, 20 bytes\) found no room within 0.02 s: 1 groups",
    ):
        await queue.put(group("b"), 0.02)
    putting = asyncio.ensure_future(queue.put(group("c"), 600.0))
    await asyncio.sleep(0)
    assert not putting.done()
    assert {ref.record_id for ref in queue.release(selection.lease, Outcome.CONSUMED)} == {"a-0", "a-1"}
    await soon(putting)
    assert names(await queue.select(1, OLDEST, 1.0)) == ["c"]


async def test_select_waits_for_enough_groups_and_is_served_first_come_first_served():
    queue = TrajectoryQueue(WIDE)
    many = asyncio.ensure_future(queue.select(3, OLDEST, 600.0))
    await asyncio.sleep(0)
    one = asyncio.ensure_future(queue.select(1, OLDEST, 600.0))
    for name in "abc":
        await asyncio.sleep(0)
        await queue.put(group(name), 1.0)
    assert names(await soon(many)) == ["a", "b", "c"]
    await queue.put(group("d"), 1.0)
    assert names(await soon(one)) == ["d"]


async def test_a_select_that_times_out_or_is_cancelled_takes_nothing_and_blocks_nobody():
    queue = TrajectoryQueue(WIDE)
    await queue.put(group("a"), 1.0)
    with pytest.raises(
        DeadlineError, match=r"'p' asked for 2 groups; 1 were waiting and 0 leased after 0.02 s"
    ):
        await queue.select(2, OLDEST, 0.02, holder="p")
    waiting = asyncio.ensure_future(queue.select(2, OLDEST, 600.0))
    behind = asyncio.ensure_future(queue.select(1, OLDEST, 600.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert names(await soon(behind)) == ["a"]


async def test_an_expired_lease_gives_back_and_is_refused_even_while_a_select_waits():
    queue = TrajectoryQueue(WIDE)
    await queue.put(group("a"), 1.0)
    late = await queue.select(1, OLDEST, 1.0, lease_s=0.05)
    again = await soon(queue.select(1, OLDEST, 600.0))  # wakes by itself when the lease ends
    assert again.groups == late.groups
    assert again.lease.fence > late.lease.fence
    with pytest.raises(LeaseError, match="not in force"):
        queue.release(late.lease, Outcome.CONSUMED)
    queue.release(again.lease, Outcome.CONSUMED)
    assert (queue.stats().expired_leases, queue.stats().consumed_groups) == (1, 1)


async def test_a_renewed_lease_lives_on():
    clock = Clock()
    queue = TrajectoryQueue(WIDE, clock=clock)
    await queue.put(group("a"), 1.0)
    selection = await queue.select(1, OLDEST, 1.0, lease_s=10)
    clock.now = 9
    queue.renew(selection.lease, 10)
    clock.now = 18
    assert queue.expire() == ()
    queue.release(selection.lease, Outcome.CONSUMED)


async def test_failed_records_stay_visible_until_their_group_is_consumed():
    queue = TrajectoryQueue(WIDE)
    failed = group("a", 3)[:2] + group("a", 4, ok=False)[3:]
    await queue.put(failed, 1.0)
    await queue.put(group("b", ok=False), 1.0)
    assert queue.stats().failed_records == 3
    selection = await queue.select(2, OLDEST, 1.0)
    assert [ref.record_id for ref in selection.failed] == ["a-3", "b-0", "b-1"]
    assert len(selection.refs) == 5
    queue.release(selection.lease, Outcome.CONSUMED)
    assert queue.stats().failed_records == 0


async def test_stale_groups_come_at_once_and_by_themselves():
    queue = TrajectoryQueue(WIDE)
    await queue.put(group("old", version=1), 1.0)
    await queue.put(group("new", version=4), 1.0)
    await queue.put(group("failed", version=0, ok=False), 1.0)
    fresh = SelectionRule(oldest_version=3)
    stale = await queue.select(2, fresh, 1.0)
    assert (names(stale), stale.stale) == (["old"], True)
    queue.release(stale.lease, Outcome.CONSUMED)
    selection = await queue.select(2, fresh, 1.0)
    assert (names(selection), selection.stale) == (["new", "failed"], False)
    assert queue.stats().stale_groups == 1


async def test_a_later_epoch_has_higher_fences():
    fences = []
    for epoch in (0, 1):
        queue = TrajectoryQueue(WIDE, epoch=epoch)
        for name in "abc":
            await queue.put(group(name), 1.0)
            fences.append((await queue.select(1, OLDEST, 1.0)).lease.fence)
    assert fences == sorted(set(fences))


async def test_resizing_down_drops_nothing_and_up_lets_waiters_in():
    queue = TrajectoryQueue(QueueLimits(2, 10, 1000))
    await queue.put(group("a"), 1.0)
    await queue.put(group("b"), 1.0)
    assert queue.resize(QueueLimits(1, 10, 1000), revision=0) == 1
    assert queue.stats().waiting_groups == 2
    putting = asyncio.ensure_future(queue.put(group("c"), 600.0))
    await asyncio.sleep(0)
    assert queue.resize(QueueLimits(3, 10, 1000), revision=1) == 2
    await soon(putting)
    assert queue.stats().waiting_groups == 3


@pytest.mark.parametrize(
    ("refs", "message"),
    [
        ((), "one group, not of 0"),
        (group("a", 1) + group("b", 1), r"one group, not of 2: \['a', 'b'\]"),
        (group("a", 1) * 2, "names a record twice"),
        (group("a", 101), "larger than the whole queue"),
        (group("a", 2, byte_count=6000), r"2 records, 12000 bytes\) is larger"),
        (group("held"), "group held is in the queue already"),
        (
            tuple(TrajectoryRef("held-0", "c", "w", 1, 1, 0.0, 0, 0, True) for _ in range(1)),
            "record held-0 of group c",
        ),
    ],
)
async def test_malformed_puts_are_refused_at_once(refs, message):
    queue = TrajectoryQueue(WIDE)
    await queue.put(group("held"), 1.0)
    with pytest.raises(QueueError, match=message):
        await queue.put(refs, 60.0)


async def test_malformed_requests_are_refused():
    queue = TrajectoryQueue(WIDE)
    with pytest.raises(QueueError, match="cannot select 0 groups"):
        await queue.select(0, OLDEST, 1.0)
    with pytest.raises(QueueError, match="for 0 s"):
        await queue.select(1, OLDEST, 1.0, lease_s=0)
    with pytest.raises(QueueError, match="must be positive"):
        queue.resize(QueueLimits(0, 1, 1), revision=0)
    with pytest.raises(QueueError, match="epoch -1"):
        TrajectoryQueue(WIDE, epoch=-1)
    for deadline in (-1.0, float("inf"), float("nan")):
        with pytest.raises(DeadlineError, match="finite number of seconds"):
            await queue.select(1, OLDEST, deadline)
