"""The queue alone, and as a state machine together with a record owner and stale holders."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from art_dataplane import (
    DeadlineError,
    LeaseError,
    Outcome,
    QueueError,
    QueueLimits,
    SelectionRule,
    TokenRecord,
    TrajectoryQueue,
    TrajectoryRecord,
    TrajectoryRef,
    TrajectoryStore,
)

WIDE = QueueLimits(groups=10, records=100, byte_count=10_000)
OLDEST = SelectionRule()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def group(name: str, size: int = 2, *, byte_count: int = 10, version: int = 0, ok: bool = True):
    return tuple(
        TrajectoryRef(f"{name}-{index}", name, "w", byte_count, 5, 1.0, version, version, ok)
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
        DeadlineError, match=r"group b \(2 records, 20 bytes\) found no room within 0.02 s: 1 groups"
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
    queue.resize(QueueLimits(1, 10, 1000))
    assert queue.stats().waiting_groups == 2
    putting = asyncio.ensure_future(queue.put(group("c"), 600.0))
    await asyncio.sleep(0)
    queue.resize(QueueLimits(3, 10, 1000))
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
    for count in (0, 11):
        with pytest.raises(QueueError, match=f"cannot select {count} groups"):
            await queue.select(count, OLDEST, 1.0)
    with pytest.raises(QueueError, match="for 0 s"):
        await queue.select(1, OLDEST, 1.0, lease_s=0)
    with pytest.raises(QueueError, match="must be positive"):
        queue.resize(QueueLimits(0, 1, 1))
    with pytest.raises(QueueError, match="epoch -1"):
        TrajectoryQueue(WIDE, epoch=-1)
    for deadline in (-1.0, float("inf"), float("nan")):
        with pytest.raises(DeadlineError, match="finite number of seconds"):
            await queue.select(1, OLDEST, deadline)


class QueueMachine(RuleBasedStateMachine):
    """What was put is waiting, under one lease, or consumed once; checked against plain sets."""

    selections = Bundle("selections")
    build_exchange: type[TokenRecord]
    build_record: type[TrajectoryRecord]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.limits = QueueLimits(groups=5, records=12, byte_count=1 << 20)
        self.queue = TrajectoryQueue(self.limits, clock=self.clock)
        self.store = TrajectoryStore("w", 10_000, 1 << 30)
        self.waiting: dict[str, tuple[TrajectoryRef, ...]] = {}
        self.leased: dict[str, tuple[float, dict[str, tuple[TrajectoryRef, ...]]]] = {}
        self.consumed: set[str] = set()
        self.order: list[str] = []
        self.highest: dict[str, int] = {}

    def wait(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def held(self) -> dict[str, tuple[TrajectoryRef, ...]]:
        everything = dict(self.waiting)
        for _, groups in self.leased.values():
            everything.update(groups)
        return everything

    def expire(self) -> None:
        for lease_id, (deadline, groups) in list(self.leased.items()):
            if deadline <= self.clock.now:
                self.waiting.update(groups)
                del self.leased[lease_id]

    @rule(size=st.integers(1, 5))
    def put(self, size):
        self.expire()
        name = f"g{len(self.order)}"
        self.order.append(name)
        refs = tuple(
            self.store.put(self.build_record(f"{name}-{index}", name, [self.build_exchange([1], [2])]))
            for index in range(size)
        )
        held = self.held()
        fits = len(held) < self.limits.groups and sum(map(len, held.values())) + size <= self.limits.records
        if size > self.limits.records:
            with pytest.raises(QueueError):
                self.wait(self.queue.put(refs, 0.0))
        elif fits:
            self.wait(self.queue.put(refs, 0.0))
            self.waiting[name] = refs
        else:
            with pytest.raises(DeadlineError):
                self.wait(self.queue.put(refs, 0.0))

    @rule(target=selections, count=st.integers(1, 3), lease_s=st.sampled_from([1.0, 5.0]))
    def select(self, count, lease_s):
        self.expire()
        if count > self.limits.groups:
            return multiple()
        if len(self.waiting) < count:
            with pytest.raises(DeadlineError):
                self.wait(self.queue.select(count, OLDEST, 0.0, lease_s=lease_s))
            return multiple()
        selection = self.wait(self.queue.select(count, OLDEST, 0.0, lease_s=lease_s))
        expected = sorted(self.waiting, key=self.order.index)[:count]
        assert names(selection) == expected
        self.leased[selection.lease.lease_id] = (
            self.clock.now + lease_s,
            {name: self.waiting.pop(name) for name in expected},
        )
        return selection

    @rule(selection=selections)
    def fetch(self, selection):
        """Also by holders whose lease is long void.

        Only the newest fence that the owner saw gets the records.
        """
        fence = selection.lease.fence
        gone = any(name in self.consumed for name in names(selection))
        stale = any(self.highest.get(ref.record_id, 0) > fence for ref in selection.refs)
        if gone or stale:
            with pytest.raises(Exception, match=r"does not hold|is stale"):
                self.wait(self.store.fetch(selection.refs, selection.lease, 1.0))
        else:
            self.wait(self.store.fetch(selection.refs, selection.lease, 1.0))
            self.highest.update((ref.record_id, fence) for ref in selection.refs)

    @rule(selection=consumes(selections), outcome=st.sampled_from(Outcome), twice=st.booleans())
    def release(self, selection, outcome, twice):
        self.expire()
        mine = self.leased.pop(selection.lease.lease_id, None)
        if mine is None:
            with pytest.raises(LeaseError):
                self.queue.release(selection.lease, outcome)
            return
        refs = self.queue.release(selection.lease, outcome)
        assert refs == selection.refs
        if outcome is Outcome.CONSUMED:
            assert self.consumed.isdisjoint(mine[1])
            self.consumed.update(mine[1])
            assert self.wait(self.store.drop(refs)) == len(refs)
        else:
            self.waiting.update(mine[1])
        if twice:
            with pytest.raises(LeaseError):
                self.queue.release(selection.lease, outcome)

    @rule(selection=selections, lease_s=st.sampled_from([1.0, 5.0]))
    def renew(self, selection, lease_s):
        self.expire()
        mine = self.leased.get(selection.lease.lease_id)
        if mine is None:
            with pytest.raises(LeaseError):
                self.queue.renew(selection.lease, lease_s)
        else:
            self.queue.renew(selection.lease, lease_s)
            self.leased[selection.lease.lease_id] = (self.clock.now + lease_s, mine[1])

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(groups=st.integers(1, 8), records=st.integers(2, 20))
    def resize(self, groups, records):
        self.expire()
        held = self.held()
        # Never below what is held, so that the bound below is exact.
        self.limits = QueueLimits(
            max(groups, len(held)), max(records, sum(map(len, held.values()))), self.limits.byte_count
        )
        self.queue.resize(self.limits)

    @invariant()
    def nothing_is_lost_and_nothing_exceeds_the_limits(self):
        self.expire()
        stats = self.queue.stats()
        held = self.held()
        assert stats.waiting_groups == len(self.waiting)
        assert stats.leased_groups == sum(len(groups) for _, groups in self.leased.values())
        assert stats.records == sum(map(len, held.values())) <= stats.limits.records
        assert stats.byte_count == sum(ref.byte_count for refs in held.values() for ref in refs)
        assert len(held) <= stats.limits.groups
        assert stats.byte_count <= stats.limits.byte_count
        assert stats.consumed_groups == len(self.consumed)
        assert stats.put_groups == len(held) + len(self.consumed)

    def teardown(self):
        self.loop.close()


def test_nothing_is_lost_or_consumed_twice_and_no_stale_fence_wins(exchange, record):
    QueueMachine.build_exchange = staticmethod(exchange)
    QueueMachine.build_record = staticmethod(record)
    run_state_machine_as_test(
        QueueMachine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
