"""Thousands of random interleavings on a record store: reservations, waiters, fences, resizes, the end."""

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from art_dataplane import (
    DeadlineError,
    Lease,
    LeaseError,
    StoreFullError,
    TrajectoryStore,
    encode,
    read_records,
)
from art_dataplane.bounds import Amount, Ledger
from art_dataplane.errors import (
    RecordsMissingError,
    StaleResizeError,
    StoreClosedError,
)
from art_dataplane.leases import FenceGate
from art_dataplane.waiting import Signal

CAPACITY = "used never exceeds capacity"
SERVED = "who can be served is served"
TOLD = "who can never be served is told, and nobody else is"
ON_TIME = "no wait outlasts its deadline, and none ends before"
IN_LINE = "first come, first served"
NOT_LEFT = "no waiter is left behind"
NOT_LOST = "what was put is there until it is dropped"
RESERVED = "what is reserved is the holder's until the reservation ends"
RELEASED = "everything is released at the end"
STALE = "a stale fence never wins"
RESIZE = "a stale resize is refused, another is not"
FAILURES = "a failed rollout stays a failure"

GROUPS = ("g0", "g1", "g2")


class Waiter:
    def __init__(self, group: str, amount: Amount, deadline: float, record_id: str = "") -> None:
        self.group, self.amount, self.deadline, self.record_id = group, amount, deadline, record_id
        self.cancelled = False
        self.task: Any = None
        self.failed = False
        self.lease_s = 0.0


class StoreMachine(RuleBasedStateMachine):
    tools: Any
    record: Any
    exchange: Any
    store_class = TrajectoryStore
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.loop = self.tools.Loop()
        self.log: list[tuple[Waiter, Any]] = []
        self.held: dict[str, tuple[str, int, bool]] = {}
        self.refs: dict[str, Any] = {}
        self.reserved: dict[str, tuple[float, str, Amount]] = {}
        self.line: list[Waiter] = []
        self.shown: dict[str, int] = {}
        self.revision = self.names = self.fence = self.expired = 0

    @initialize(
        records=st.sampled_from([6, 4]),
        byte_count=st.sampled_from([2000, 1200]),
        groups=st.sampled_from([None, 2, 3]),
    )
    def begin(self, records, byte_count, groups):
        self.bounds = (records, byte_count, groups)
        self.store = self.store_class("w", records, byte_count, max_groups=groups, clock=self.loop.time)

    def hold(self, law: str, condition: bool, detail: object = "") -> None:
        self.tools.hold(law, condition, detail)

    def groups(self) -> set[str]:
        return {group for group, _, _ in self.held.values()} | {
            group for _, group, _ in self.reserved.values()
        }

    def used(self) -> Amount:
        total = Amount(len(self.groups()), len(self.held), sum(size for _, size, _ in self.held.values()))
        for _, _, left in self.reserved.values():
            total += left
        return total

    def limits(self) -> Amount:
        records, byte_count, groups = self.bounds
        return Amount(10**9 if groups is None else groups, records, byte_count)

    def fits(self, waiter: Waiter) -> bool:
        new_group = int(waiter.group not in self.groups())
        return (self.used() + waiter.amount + Amount(groups=new_group)).is_within(self.limits())

    def is_hopeless(self, waiter: Waiter) -> bool:
        return not (waiter.amount + Amount(groups=1)).is_within(self.limits())

    def expire(self) -> None:
        for name, (deadline, _, _) in list(self.reserved.items()):
            if deadline <= self.loop.now:
                del self.reserved[name]
                self.expired += 1

    def settle(self) -> None:
        self.expire()
        self.loop.settle()
        log, self.log = self.log, []
        for waiter, result in log:
            self.judge(waiter, result)
            self.line.remove(waiter)
        for waiter in self.line:
            self.hold(ON_TIME, waiter.deadline > self.loop.now, waiter)
            self.hold(TOLD, not self.is_hopeless(waiter), waiter)
        self.hold(SERVED, not self.line or not self.fits(self.line[0]), self.line)

    def judge(self, waiter: Waiter, result: Any) -> None:
        if isinstance(result, asyncio.CancelledError):
            assert waiter.cancelled
        elif isinstance(result, DeadlineError):
            self.hold(ON_TIME, waiter.deadline <= self.loop.now, result)
            self.hold(SERVED, not (self.line[0] is waiter and self.fits(waiter)), result)
        elif isinstance(result, StoreFullError):
            self.hold(TOLD, self.is_hopeless(waiter), result)
        elif isinstance(result, BaseException):
            raise result
        else:
            self.hold(IN_LINE, self.line[0] is waiter, waiter)
            self.hold(CAPACITY, self.fits(waiter), (self.used(), waiter.amount, self.bounds))
            if waiter.record_id:
                self.kept(waiter.record_id, waiter.group, waiter.amount.byte_count, waiter.failed, result)
            else:
                self.reserved[result.lease_id] = (
                    self.loop.now + waiter.lease_s,
                    waiter.group,
                    waiter.amount,
                )

    def kept(self, record_id: str, group: str, size: int, failed: bool, ref: Any) -> None:
        self.held[record_id] = (group, size, failed)
        self.refs[record_id] = ref
        self.hold(NOT_LOST, (ref.record_id, ref.group_id, ref.byte_count) == (record_id, group, size), ref)
        self.hold(FAILURES, (ref.ok, ref.reward is None) == (not failed, failed), ref)

    def start(self, waiter: Waiter, coroutine: Any) -> None:
        def finished(task: asyncio.Task) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self.log.append((waiter, error or task.result()))

        self.line.append(waiter)
        waiter.task = self.loop.create_task(coroutine)
        waiter.task.add_done_callback(finished)
        self.settle()

    def make(self, group: str, length: int, *, failed: bool) -> Any:
        self.names += 1
        return self.record(f"r{self.names}", group, [self.exchange([1] * length, [2])], failed=failed)

    waits = st.sampled_from([6.25, 2.25, 0.0])
    groups_ = st.sampled_from(GROUPS)
    lengths = st.sampled_from([1, 20, 60, 400])

    @rule(group=groups_, length=lengths, failed=st.booleans(), wait_s=waits)
    def put_when_room(self, group, length, failed, wait_s):
        made = self.make(group, length, failed=failed)
        waiter = Waiter(group, Amount(0, 1, len(encode(made))), self.loop.now + wait_s, made.record_id)
        waiter.failed = failed
        self.start(waiter, self.store.put_when_room(made, wait_s))

    @rule(group=groups_, length=lengths)
    def put_now(self, group, length):
        """Does not wait in the line; passes it when there is room."""
        made = self.make(group, length, failed=False)
        waiter = Waiter(group, Amount(0, 1, len(encode(made))), 0.0)
        try:
            ref = self.store.put(made)
        except StoreFullError as error:
            self.hold(SERVED, not self.fits(waiter), error)
            return
        self.hold(CAPACITY, self.fits(waiter), (self.used(), waiter.amount, self.bounds))
        self.kept(made.record_id, group, waiter.amount.byte_count, False, ref)
        self.settle()

    @rule(
        target=leases,
        group=groups_,
        records=st.sampled_from([2, 1, 3]),
        byte_count=st.sampled_from([500, 300, 900]),
        wait_s=waits,
        lease_s=st.sampled_from([5.0, 1.0]),
    )
    def reserve(self, group, records, byte_count, wait_s, lease_s):
        waiter = Waiter(group, Amount(0, records, byte_count), self.loop.now + wait_s)
        waiter.lease_s = lease_s
        granted: list[Lease] = []

        async def reserve() -> Lease:
            lease = await self.store.reserve(group, records, byte_count, wait_s, lease_s=lease_s)
            granted.append(lease)
            return lease

        self.start(waiter, reserve())
        return multiple(*granted)

    @rule(lease=leases, length=lengths, abort=st.sampled_from([False, False, True]))
    def use(self, lease, length, abort):
        mine = self.reserved.get(lease.lease_id)
        made = self.make(mine[1] if mine else "g0", length, failed=False)
        size = len(encode(made))
        try:
            ref = self.store.abort(lease) if abort else self.store.put(made, reservation=lease)
        except LeaseError as error:
            self.hold(RESERVED, mine is None, error)
            return
        except StoreFullError as error:
            self.hold(RESERVED, mine is not None and size > mine[2].byte_count, error)
            return
        self.hold(STALE, mine is not None, lease)
        deadline, group, left = mine
        if abort:
            del self.reserved[lease.lease_id]
        else:
            self.hold(CAPACITY, size <= left.byte_count, (size, left))
            left -= Amount(0, 1, size)
            self.reserved[lease.lease_id] = (deadline, group, left)
            if not left.records:
                del self.reserved[lease.lease_id]
            self.kept(made.record_id, group, size, False, ref)
        self.settle()

    @rule(place=st.integers(0, 3))
    def cancel(self, place):
        if self.line:
            waiter = self.line[place % len(self.line)]
            waiter.cancelled = True
            waiter.task.cancel()
            self.settle()

    @rule(ticks=st.integers(1, 6))
    def time_passes(self, ticks):
        for _ in range(2 * ticks):
            self.loop.now += 0.25
            self.settle()

    @rule(first=st.integers(0, 5), count=st.integers(1, 3), behind=st.integers(0, 2))
    def fetch(self, first, count, behind):
        """Under a new fence, or under an old one; also of what is gone."""
        ids = list(self.refs)[first : first + count]
        if not ids:
            return
        self.fence += 1
        lease = Lease("l", max(1, self.fence - behind), "p", 1.0)
        missing = [name for name in ids if name not in self.held]
        is_stale = any(self.shown.get(name, 0) > lease.fence for name in ids)
        try:
            location = self.loop.run_until_complete(
                self.store.fetch([self.refs[name] for name in ids], lease, 1.0)
            )
        except RecordsMissingError as error:
            self.hold(NOT_LOST, list(error.record_ids) == missing, error)
            return
        except LeaseError as error:
            self.hold(STALE, is_stale, error)
            return
        self.hold(NOT_LOST, not missing, ids)
        self.hold(STALE, not is_stale, ids)
        self.shown.update(dict.fromkeys(ids, lease.fence))
        records = read_records(location)
        self.hold(NOT_LOST, [record.record_id for record in records] == ids, ids)
        for record in records:
            self.hold(FAILURES, (record.error is not None) == self.held[record.record_id][2], record)

    @rule(first=st.integers(0, 5), count=st.integers(1, 4), behind=st.sampled_from([None, 0, 1]))
    def drop(self, first, count, behind):
        ids = list(self.refs)[first : first + count]
        lease = None if behind is None else Lease("l", max(1, self.fence - behind), "p", 1.0)
        held = [name for name in ids if name in self.held]
        is_stale = lease is not None and any(self.shown.get(name, 0) > lease.fence for name in held)
        try:
            count = self.loop.run_until_complete(self.store.drop([self.refs[name] for name in ids], lease))
        except LeaseError as error:
            self.hold(STALE, is_stale, error)
            return
        self.hold(STALE, not is_stale, ids)
        self.hold(NOT_LOST, count == len(held), (count, held))
        for name in held:
            del self.held[name]
            self.shown.pop(name, None)
        self.settle()

    @rule(
        records=st.sampled_from([8, 5, 1]),
        byte_count=st.sampled_from([3000, 1500, 400]),
        groups=st.sampled_from([None, 3, 1]),
        behind=st.sampled_from([0, 0, 1, -1]),
    )
    def resize(self, records, byte_count, groups, behind):
        try:
            revision = self.store.resize(records, byte_count, groups, revision=self.revision - behind)
        except StaleResizeError as error:
            self.hold(RESIZE, behind != 0, error)
            return
        self.hold(RESIZE, behind == 0 and revision == self.revision + 1, revision)
        self.bounds, self.revision = (records, byte_count, groups), revision
        self.settle()

    @invariant()
    def the_numbers_are_right(self):
        if not hasattr(self, "store"):
            return
        self.expire()
        stats = self.loop.run_until_complete(self.store.stats())
        left = [left for _, _, left in self.reserved.values()]
        self.hold(NOT_LOST, stats.record_count == len(self.held), stats)
        self.hold(NOT_LOST, stats.byte_count == sum(size for _, size, _ in self.held.values()), stats)
        self.hold(FAILURES, stats.failed_count == sum(failed for _, _, failed in self.held.values()), stats)
        self.hold(RESERVED, stats.reserved_records >= sum(each.records for each in left), stats)
        self.hold(RELEASED, stats.reserved_records == sum(each.records for each in left), stats)
        self.hold(RELEASED, stats.reserved_bytes == sum(each.byte_count for each in left), stats)
        self.hold(RELEASED, stats.group_count == len(self.groups()), (stats, self.groups()))
        self.hold(NOT_LEFT, stats.waiting_puts == len(self.line), stats)
        self.hold(RESIZE, (stats.max_records, stats.max_bytes, stats.max_groups) == self.bounds, stats)
        self.hold(RESIZE, stats.limits_revision == self.revision, stats)
        self.hold(RESERVED, stats.expired_reservations == self.expired, stats)

    def teardown(self):
        try:
            if sys.exception() is None and hasattr(self, "store"):
                self.close()
        finally:
            self.loop.finish()

    def close(self) -> None:
        self.hold(RELEASED, self.store.close() == len(self.held), self.held)
        self.loop.settle()
        ended = [isinstance(result, StoreClosedError) for _, result in self.log]
        self.hold(RELEASED, ended == [True] * len(self.line), self.log)
        stats = self.loop.run_until_complete(self.store.stats())
        left = (stats.record_count, stats.byte_count, stats.failed_count, stats.group_count)
        left += (stats.reserved_records, stats.reserved_bytes, stats.waiting_puts)
        self.hold(RELEASED, left == (0,) * 7, stats)


@pytest.fixture(scope="module")
def machine(tools, record, exchange):
    parts = {"tools": tools, "record": staticmethod(record), "exchange": staticmethod(exchange)}
    return type("Machine", (StoreMachine,), parts)


def test_no_interleaving_breaks_a_law(machine, tools):
    tools.run(machine, examples=300)


class ReservesNothing(Ledger):
    def fits(self, amount):
        return (self.held + amount).is_within(self.limits)


class NoGroups(Ledger):
    def fits(self, amount):
        return super().fits(Amount(0, amount.records, amount.byte_count))


class LetsAnyFenceIn(FenceGate):
    def admit(self, items, lease):
        pass


class KeepsTheCancelled(Signal):
    async def wait_until(self, condition, deadline_s, **more):
        try:
            return await super().wait_until(condition, deadline_s, **more)
        except asyncio.CancelledError:
            self._waiters.append(asyncio.get_running_loop().create_future())
            raise


def with_part(name, part):
    class WithPart(TrajectoryStore):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            setattr(self, name, part(self))

    return WithPart


class KeepsTheRest(TrajectoryStore):
    """What a reservation has left when its last record came is not given back."""

    def _end_reservation(self, name):
        reserved = self._reservations.pop(name)
        self._leave_group(reserved.group_id)
        self._room.notify()


class EndsReservationsEarly(TrajectoryStore):
    def _take_reserved(self, record, byte_count, lease):
        super()._take_reserved(record, byte_count, lease)
        for name in list(self._reservations):
            self._leases.revoke(lease.lease_id)
            self._end_reservation(name)


class ForgetsGroups(TrajectoryStore):
    def _leave_group(self, group_id):
        self._group_uses[group_id] -= 1


class DropsQuietly(TrajectoryStore):
    async def drop(self, refs, lease=None):
        room, self._room = self._room, Signal()
        try:
            return await super().drop(refs, lease)
        finally:
            self._room = room


class LosesOnOverflow(TrajectoryStore):
    def _insert(self, record, encoded):
        ref = super()._insert(record, encoded)
        if len(self._encoded) > 2:
            oldest = next(iter(self._encoded))
            self._ledger.give(Amount(0, 1, len(self._encoded.pop(oldest))))
        return ref


class FailuresAreRewards(TrajectoryStore):
    def _keep(self, record, encoded):
        ref = super()._keep(record, encoded)
        self._failed.clear()
        return ref


class TakesAnyResize(TrajectoryStore):
    def resize(self, *arguments, revision):
        return super().resize(*arguments, revision=self._revision)


class TellsNobody(TrajectoryStore):
    def resize(self, *arguments, revision):
        told, self._room.notify_all = self._room.notify_all, self._room.notify
        try:
            return super().resize(*arguments, revision=revision)
        finally:
            self._room.notify_all = told


class ClosesTheDoorOnWaiters(TrajectoryStore):
    def close(self):
        count = super().close()
        self._is_closed = False
        return count


FAULTS = {
    "reservations do not count": (
        with_part("_ledger", lambda store: ReservesNothing(store._ledger.limits)),
        CAPACITY,
    ),
    "groups do not count": (with_part("_ledger", lambda store: NoGroups(store._ledger.limits)), CAPACITY),
    "any fence is admitted": (with_part("_gate", lambda store: LetsAnyFenceIn()), STALE),
    "a cancelled waiter stays": (with_part("_room", lambda store: KeepsTheCancelled()), NOT_LEFT),
    "the rest of a reservation is kept": (KeepsTheRest, RELEASED),
    "reservations end early": (EndsReservationsEarly, RESERVED),
    "groups are never left": (ForgetsGroups, RELEASED),
    "a drop wakes nobody": (DropsQuietly, SERVED),
    "an old record makes room": (LosesOnOverflow, NOT_LOST),
    "failures are not counted": (FailuresAreRewards, FAILURES),
    "a stale resize is taken": (TakesAnyResize, RESIZE),
    "a resize does not tell who waits": (TellsNobody, TOLD),
    "a close leaves waiters hanging": (ClosesTheDoorOnWaiters, RELEASED),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_law(machine, with_fault, tools, fault):
    store_class, law = FAULTS[fault]
    assert tools.law_broken_by(with_fault(machine, store_class=store_class)) == law
