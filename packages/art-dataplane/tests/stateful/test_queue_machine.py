"""Thousands of random interleavings of what producers, packers and owners do to a queue, and of their deaths.

The model is a handful of dictionaries. It does not predict in which order waiters that can be served at once
are woken: every result is logged where it arises, and each must be lawful in the model, one after the other;
then nobody may be left who could be served, is out of time, or can never be served.

Each law is shown to be looked after: the same machine finds it broken in a queue with a planted fault.
"""

import asyncio
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from art_dataplane import (
    DeadlineError,
    Lease,
    LeaseError,
    Outcome,
    QueueError,
    QueueLimits,
    Selection,
    SelectionRule,
    TrajectoryQueue,
    TrajectoryStore,
)
from art_dataplane.bounds import Amount, Ledger
from art_dataplane.errors import OwnerDiedError, QueueClosedError, StaleResizeError, UnsatisfiableError
from art_dataplane.fetching import FetchedGroups, fetch_available
from art_dataplane.leases import FenceGate, LeaseTable
from art_dataplane.queued import QueuedGroups
from art_dataplane.records import LostGroup
from art_dataplane.waiting import Signal

NOT_LOST = "nothing is lost"
ONCE = "nothing is consumed twice"
ONE_LEASE = "a group is under one lease"
STALE = "a stale fence never wins"
IN_FORCE = "a lease in force works until its deadline"
CAPACITY = "used never exceeds capacity"
RELEASED = "everything is released at the end"
SERVED = "who can be served is served"
TOLD = "who can never be served is told, and nobody else is"
ON_TIME = "no wait outlasts its deadline, and none ends before"
IN_LINE = "first come, first served"
NOT_LEFT = "no waiter is left behind"
EXACT = "exactly the groups that lost records are named"
NOT_TRAINED = "what is known to have lost records is not handed out to be trained on"
FAILURES = "a failed rollout stays a failure"
RESIZE = "a stale resize is refused, another is not"
STATS = "the numbers are of one instant"

OWNERS = ("w0", "w1")
HOLDERS = ("p0", "p1")


class Waiter(msgspec.Struct, eq=False):
    kind: str
    deadline: float
    task: Any = None
    cancelled: bool = False
    name: str = ""
    refs: tuple = ()
    amount: Amount = Amount()
    dropped: bool = False  # an owner of these was dropped
    count: int = 0
    rule: SelectionRule = SelectionRule()
    holder: str = ""
    lease_s: float = 0.0
    process: Any = None


class Held(msgspec.Struct, eq=False):
    """A lease in the model; ``names`` is what it is still on."""

    deadline: float
    names: list[str]
    holder: str
    process: Any
    reserved: Amount | None = None


class QueueMachine(RuleBasedStateMachine):
    tools: Any
    record: Any
    exchange: Any
    queue_class = TrajectoryQueue
    store_class = TrajectoryStore
    fetch_from = staticmethod(fetch_available)

    selections = Bundle("selections")
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.loop = self.tools.Loop()
        self.shared = [self.exchange([1], [2])]
        self.log: list[tuple[Waiter, Any]] = []
        self.refs: dict[str, tuple] = {}
        self.order: list[str] = []
        self.waiting: set[str] = set()
        self.lost: dict[str, set[str]] = {}
        self.consumed: set[str] = set()
        self.gone_lost: set[str] = set()
        self.leases: dict[str, Held] = {}
        self.ended: set[str] = set()
        self.puts: list[Waiter] = []
        self.selects: list[Waiter] = []
        self.fence = 0
        self.revision = 0
        self.names = 0
        self.given: list[Selection] = []
        self.taken: list[Selection] = []
        self.discarded = self.expired = self.revoked = self.stale = 0
        self.dead: set[str] = set()
        self.highest: dict[str, int] = {}
        self.stores = {owner: self.store_class(owner, 10_000, 1 << 30) for owner in OWNERS}

    @initialize(
        groups=st.sampled_from([5, 4, 3]),
        records=st.sampled_from([14, 10, 7]),
        byte_count=st.sampled_from([6000, 4000, 2500]),
    )
    def begin(self, groups, records, byte_count):
        self.limits = QueueLimits(groups, records, byte_count)
        self.queue = self.queue_class(self.limits, clock=self.loop.time)

    # The model.

    @property
    def bounds(self) -> Amount:
        return Amount(self.limits.groups, self.limits.records, self.limits.byte_count)

    def held(self) -> list[str]:
        leased = {name for held in self.leases.values() if held.reserved is None for name in held.names}
        return [name for name in self.order if name in self.waiting or name in leased]

    def amount(self, refs) -> Amount:
        return Amount(1, len(refs), sum(ref.byte_count for ref in refs))

    def used(self) -> Amount:
        total = Amount()
        for name in self.held():
            total += self.amount(self.refs[name])
        for held in self.leases.values():
            total += held.reserved or Amount()
        return total

    def fits(self, amount: Amount) -> bool:
        return (self.used() + amount).is_within(self.bounds)

    def pick(self, waiter: Waiter) -> list[str] | None:
        """What a select gets now; None when it has to wait."""
        ready = [name for name in self.order if name in self.waiting]
        lost = [name for name in ready if name in self.lost]
        if lost:
            return lost
        stale = [name for name in ready if self.is_stale(name, waiter.rule)]
        if stale:
            return stale
        if waiter.rule.order == "newest":
            ready.reverse()
        return ready[: waiter.count] if len(ready) >= waiter.count else None

    def is_stale(self, name: str, chosen: SelectionRule) -> bool:
        return any(ref.ok and ref.min_version < chosen.oldest_version for ref in self.refs[name])

    def is_hopeless(self, waiter: Waiter) -> bool:
        if waiter.kind != "select":
            return not waiter.amount.is_within(self.bounds)
        if min(self.limits.groups, self.limits.records, self.limits.byte_count) < waiter.count:
            return True
        if self.leases or waiter is not self.selects[0] or self.pick(waiter) is not None:
            return False
        return not self.fits(self.puts[0].amount if self.puts else Amount(1, 1, 1))

    def expire(self) -> None:
        for lease_id, held in list(self.leases.items()):
            if held.deadline <= self.loop.now:
                self.end(lease_id)
                self.expired += 1

    def end(self, lease_id: str) -> None:
        """Ends a lease; what it was on waits again."""
        held = self.leases.pop(lease_id)
        self.ended.add(lease_id)
        if held.reserved is None:
            self.waiting.update(held.names)

    # From what happened to what may happen.

    def hold(self, law: str, condition: bool, detail: object = "") -> None:
        self.tools.hold(law, condition, detail)

    def settle(self) -> None:
        self.expire()
        self.loop.settle()
        log, self.log = self.log, []
        for waiter, result in log:
            line = self.selects if waiter.kind == "select" else self.puts
            self.judge(waiter, result, line)
            line.remove(waiter)
        for line in (self.puts, self.selects):
            for waiter in line:
                self.hold(ON_TIME, waiter.deadline > self.loop.now, waiter)
                self.hold(TOLD, not self.is_hopeless(waiter), waiter)
        if self.puts:
            self.hold(SERVED, not self.fits(self.puts[0].amount), self.puts[0])
        if self.selects:
            self.hold(SERVED, self.pick(self.selects[0]) is None, self.selects[0])

    def judge(self, waiter: Waiter, result: Any, line: list[Waiter]) -> None:
        if isinstance(result, asyncio.CancelledError):
            assert waiter.cancelled
        elif isinstance(result, DeadlineError):
            self.hold(ON_TIME, waiter.deadline <= self.loop.now, result)
            servable = self.fits(waiter.amount) if line is self.puts else self.pick(waiter) is not None
            self.hold(SERVED, not (servable and line[0] is waiter), result)
        elif isinstance(result, UnsatisfiableError):
            self.hold(TOLD, self.is_hopeless(waiter), result)
        elif isinstance(result, OwnerDiedError):
            self.hold(TOLD, waiter.dropped, result)
        elif isinstance(result, BaseException):
            raise result
        else:
            self.hold(IN_LINE, line[0] is waiter, waiter)
            self.hold(NOT_TRAINED, not waiter.dropped, waiter)
            if waiter.kind == "select":
                self.selected(waiter, result)
            else:
                self.hold(CAPACITY, self.fits(waiter.amount), (waiter, self.used(), self.limits))
                if waiter.kind == "put":
                    self.added(waiter.name, waiter.refs)
                else:
                    self.granted(result, [waiter.name], waiter, waiter.amount)

    def added(self, name: str, refs: tuple) -> None:
        self.refs[name] = refs
        self.order.append(name)
        self.waiting.add(name)

    def granted(self, lease: Lease, names: list[str], waiter: Waiter, reserved: Amount | None) -> None:
        self.hold(STALE, lease.fence > self.fence, lease)
        self.fence = lease.fence
        self.leases[lease.lease_id] = Held(
            self.loop.now + waiter.lease_s, names, waiter.holder, waiter.process, reserved
        )

    def selected(self, waiter: Waiter, selection: Selection) -> None:
        names = list(selection.group_ids)
        self.hold(ONCE, not (self.consumed | self.gone_lost).intersection(names), names)
        self.hold(ONE_LEASE, self.waiting.issuperset(names), names)
        expected = self.pick(waiter)
        lost = [name for name in names if name in self.lost]
        self.hold(NOT_TRAINED, not lost or bool(selection.lost), names)
        if selection.lost:
            self.hold(EXACT, [loss.group_id for loss in selection.lost] == names, selection.lost)
            for loss in selection.lost:
                self.hold(EXACT, set(loss.record_ids) == self.lost[loss.group_id], loss)
        self.hold(IN_LINE, sorted(names) == sorted(expected or []), (names, expected))
        self.hold(IN_LINE, bool(selection.lost or selection.stale) or names == expected, (names, expected))
        self.hold(IN_LINE, selection.stale == (not lost and self.is_stale(names[0], waiter.rule)), names)
        self.hold(NOT_LOST, selection.groups == tuple(self.refs[name] for name in names), names)
        self.stale += len(names) if selection.stale else 0
        self.waiting.difference_update(names)
        self.granted(selection.lease, names, waiter, None)

    def start(self, waiter: Waiter, coroutine: Any) -> None:
        def finished(task: asyncio.Task) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self.log.append((waiter, error or task.result()))

        (self.selects if waiter.kind == "select" else self.puts).append(waiter)
        waiter.task = self.loop.create_task(coroutine)
        waiter.task.add_done_callback(finished)

    def refused(self, law: str, call: Any) -> None:
        try:
            result = call()
        except LeaseError:
            return
        except Exception as error:
            raise self.tools.BrokenLawError(law, f"{error!r} instead of a refusal") from error
        self.hold(law, False, f"{result} was given to a lease that had ended")

    def allowed(self, call: Any) -> Any:
        try:
            return call()
        except LeaseError as error:
            raise self.tools.BrokenLawError(IN_FORCE, error) from error

    # What can happen.

    def make_refs(self, name: str, kinds: list[tuple[str, bool, int]]) -> tuple:
        refs = []
        for index, (owner, ok, version) in enumerate(kinds):
            record_id = f"{name}-{index}"
            exchanges = [self.exchange([1], [2], versions=[version])] if version else self.shared
            made = self.record(record_id, name, exchanges, failed=not ok)
            refs.append(self.stores[owner].put(made))
            self.hold(FAILURES, (refs[-1].ok, refs[-1].reward) == (ok, 1.0 if ok else None), refs[-1])
        return tuple(refs)

    kinds = st.lists(
        st.tuples(st.sampled_from(OWNERS), st.sampled_from([True, True, False]), st.sampled_from([2, 1, 0])),
        min_size=1,
        max_size=4,
    )
    waits = st.sampled_from([6.25, 2.25, 0.0])

    def new_name(self) -> str:
        self.names += 1
        return f"g{self.names}"

    @rule(kinds=kinds, wait_s=waits)
    def put(self, kinds, wait_s):
        name = self.new_name()
        refs = self.make_refs(name, kinds)
        waiter = Waiter("put", self.loop.now + wait_s, name=name, refs=refs, amount=self.amount(refs))
        self.start(waiter, self.queue.put(refs, wait_s))
        self.settle()

    @rule(size=st.sampled_from([2, 1, 3]), owner=st.sampled_from(OWNERS))
    def fill(self, size, owner):
        """Puts groups at once until one has to wait."""
        while not self.puts and len(self.held()) < 5:
            name = self.new_name()
            refs = self.make_refs(name, [(owner, True, 2), ("w1", size != 3, 2), ("w0", True, 1)][:size])
            waiter = Waiter("put", self.loop.now + 2.25, name=name, refs=refs, amount=self.amount(refs))
            self.start(waiter, self.queue.put(refs, 2.25))
            self.settle()
            if name not in self.refs:
                return

    @precondition(lambda self: not any(held.reserved for held in self.leases.values()))
    @rule(
        target=reservations,
        records=st.sampled_from([3, 2, 1]),
        byte_count=st.sampled_from([900, 400, 1500]),
        wait_s=waits,
        holder=st.sampled_from(HOLDERS),
        lease_s=st.sampled_from([5.0, 1.0]),
    )
    def reserve(self, records, byte_count, wait_s, holder, lease_s):
        waiter = Waiter(
            "reserve",
            self.loop.now + wait_s,
            name=self.new_name(),
            amount=Amount(1, records, byte_count),
            holder=holder,
            lease_s=lease_s,
            process=self.tools.FakeProcess(),
        )
        self.start(
            waiter,
            self.queue.reserve(
                waiter.name,
                records,
                byte_count,
                wait_s,
                holder=holder,
                lease_s=lease_s,
                process=waiter.process,
            ),
        )
        known = set(self.leases)
        self.settle()
        granted = [
            (lease_id, held)
            for lease_id, held in self.leases.items()
            if lease_id not in known and held.names == [waiter.name]
        ]
        return multiple(*(Lease(lease_id, self.fence, holder, lease_s) for lease_id, _ in granted))

    @rule(reservation=reservations, kinds=kinds, abort=st.booleans())
    def use_reservation(self, reservation, kinds, abort):
        mine = self.leases.get(reservation.lease_id)
        if abort:
            if mine is None:
                self.refused(STALE, lambda: self.queue.abort(reservation))
            else:
                self.allowed(lambda: self.queue.abort(reservation))
                self.leases.pop(reservation.lease_id)
            self.settle()
            return
        name = mine.names[0] if mine else self.new_name()
        refs = self.make_refs(name, kinds) if name not in self.refs else self.refs[name]
        if mine is None:
            self.refused(STALE, lambda: self.queue.commit(reservation, refs))
        elif not self.amount(refs).is_within(mine.reserved):
            with pytest.raises(QueueError, match="is larger than its reservation"):
                self.queue.commit(reservation, refs)
            for owner in OWNERS:
                mine_refs = [ref for ref in refs if ref.owner == owner]
                self.loop.run_until_complete(self.stores[owner].drop(mine_refs))
        else:
            self.allowed(lambda: self.queue.commit(reservation, refs))
            self.leases.pop(reservation.lease_id)
            self.added(name, refs)
        self.settle()

    @rule(
        target=selections,
        count=st.sampled_from([2, 1, 3, 4]),
        wait_s=waits,
        order=st.sampled_from(["oldest", "newest"]),
        oldest=st.sampled_from([0, 0, 1, 2]),
        holder=st.sampled_from(HOLDERS),
        lease_s=st.sampled_from([5.0, 1.0]),
    )
    def ask(self, count, wait_s, order, oldest, holder, lease_s):
        return self.select(count, wait_s, order, oldest, holder, lease_s)

    def select(self, count, wait_s, order, oldest, holder, lease_s):
        # With a put waiting, which of the two comes first is open, and so is the newest group.
        chosen = SelectionRule("oldest" if self.puts else order, oldest)
        waiter = Waiter(
            "select",
            self.loop.now + wait_s,
            count=count,
            rule=chosen,
            holder=holder,
            lease_s=lease_s,
            process=self.tools.FakeProcess(),
        )
        taken: list[Selection] = []

        async def select() -> Selection:
            selection = await self.queue.select(
                count, chosen, wait_s, holder=holder, lease_s=lease_s, process=waiter.process
            )
            taken.append(selection)
            self.given.append(selection)
            self.taken.append(selection)
            return selection

        self.start(waiter, select())
        self.settle()
        return multiple(*taken)

    @precondition(lambda self: self.waiting and not self.selects)
    @rule(target=selections, count=st.sampled_from([2, 1, 3]), holder=st.sampled_from(HOLDERS))
    def take(self, count, holder):
        """Takes what is there."""
        return self.select(min(count, len(self.waiting)), 0.0, "oldest", 0, holder, 5.0)

    @rule(target=selections)
    def selections_of_those_who_waited(self):
        late, self.taken = self.taken, []
        return multiple(*late)

    @rule(place=st.integers(0, 3), of_puts=st.booleans())
    def cancel_a_waiter(self, place, of_puts):
        line = self.puts if of_puts else self.selects
        if line:
            waiter = line[place % len(line)]
            waiter.cancelled = True
            waiter.task.cancel()
            self.settle()

    @rule(selection=selections, outcome=st.sampled_from(Outcome), part=st.sampled_from([0, 1, 2]))
    def release(self, selection, outcome, part):
        mine = self.leases.get(selection.lease.lease_id)
        if mine is None:
            self.refused(STALE, lambda: self.queue.release(selection.lease, outcome))
            return
        names = mine.names[:part] or list(mine.names)
        chosen = names if part else None
        refs = self.allowed(lambda: self.queue.release(selection.lease, outcome, group_ids=chosen))
        self.hold(NOT_LOST, refs == tuple(ref for name in names for ref in self.refs[name]), refs)
        self.forget(selection.lease.lease_id, names)
        if outcome is Outcome.CONSUMED:
            self.consume(names, selection.lease)
        else:
            self.discarded += len(names)
            self.waiting.update(names)
        self.settle()

    def forget(self, lease_id: str, names: list[str]) -> None:
        held = self.leases[lease_id]
        held.names = [name for name in held.names if name not in names]
        if not held.names:
            del self.leases[lease_id]
            self.ended.add(lease_id)

    def consume(self, names: list[str], lease: Lease) -> None:
        self.hold(ONCE, self.consumed.isdisjoint(names), names)
        for name in names:
            (self.gone_lost if self.lost.pop(name, None) else self.consumed).add(name)
            for owner in OWNERS:
                refs = [ref for ref in self.refs[name] if ref.owner == owner]
                held = [ref for ref in refs if ref.record_id not in self.dead]
                dropped = self.loop.run_until_complete(self.stores[owner].drop(refs, lease))
                self.hold(NOT_LOST, dropped == len(held), (dropped, held))
                self.dead.update(ref.record_id for ref in refs)

    @rule(selection=selections, lease_s=st.sampled_from([5.0, 1.0]))
    def renew(self, selection, lease_s):
        mine = self.leases.get(selection.lease.lease_id)
        if mine is None:
            self.refused(STALE, lambda: self.queue.renew(selection.lease, lease_s))
        else:
            renewed = self.allowed(lambda: self.queue.renew(selection.lease, lease_s))
            self.hold(IN_FORCE, renewed.fence == selection.lease.fence, renewed)
            mine.deadline = max(mine.deadline, self.loop.now + lease_s)
        self.settle()

    @rule(selection=selections)
    def check(self, selection):
        mine = self.leases.get(selection.lease.lease_id)
        if mine is None:
            self.refused(STALE, lambda: self.queue.check(selection.lease))
        else:
            names = self.allowed(lambda: self.queue.check(selection.lease))
            self.hold(IN_FORCE, list(names) == mine.names, names)

    @rule(target=selections, selection=selections)
    def fetch(self, selection):
        """Also by holders whose lease is long void; who learns of lost groups says so, if still entitled."""
        expected_lost = {
            name: {ref.record_id for ref in refs if ref.record_id in self.dead}
            for name, refs in zip(selection.group_ids, selection.groups, strict=True)
        }
        expected_lost = {name: gone for name, gone in expected_lost.items() if gone}
        is_stale = False
        for owner in OWNERS:
            mine = [ref for ref in selection.refs if ref.owner == owner]
            gone = {ref.group_id for ref in mine if ref.record_id in self.dead}
            asked = [ref.record_id for ref in mine if ref.group_id not in gone]
            if any(self.highest.get(name, 0) > selection.lease.fence for name in asked):
                is_stale = True
            else:
                self.highest.update(dict.fromkeys(asked, selection.lease.fence))
        try:
            fetched = self.loop.run_until_complete(self.fetch_from(selection, self.stores, 1.0))
        except LeaseError as error:
            self.hold(IN_FORCE, is_stale, error)
            return multiple()
        self.hold(STALE, not is_stale, selection.lease)
        self.hold(
            EXACT,
            {loss.group_id: set(loss.record_ids) for loss in fetched.lost} == expected_lost,
            fetched.lost,
        )
        kept = [refs for refs in selection.groups if refs[0].group_id not in expected_lost]
        self.hold(EXACT, list(fetched.selection.groups) == kept, fetched.selection)
        for refs, records in zip(kept, fetched.records, strict=True):
            self.hold(NOT_LOST, [r.record_id for r in refs] == [r.record_id for r in records], records)
            for ref, record in zip(refs, records, strict=True):
                self.hold(FAILURES, (record.error is None) == ref.ok, record)
                self.hold(FAILURES, (record.reward is None) == (not ref.ok), record)
        mine = self.leases.get(selection.lease.lease_id)
        if not fetched.lost or mine is None:
            return multiple()
        known = [loss for loss in fetched.lost if loss.group_id in self.held()]
        told = self.queue.mark_lost(fetched.lost)
        self.hold(EXACT, [loss.group_id for loss in told] == [loss.group_id for loss in known], told)
        for loss in known:
            self.lost.setdefault(loss.group_id, set()).update(loss.record_ids)
        names = [name for name in mine.names if name in expected_lost]
        if names:
            self.allowed(lambda: self.queue.release(selection.lease, Outcome.CONSUMED, group_ids=names))
            self.forget(selection.lease.lease_id, names)
            self.consume(names, selection.lease)
        self.settle()
        return multiple(fetched.selection) if kept else multiple()

    @rule(selection=selections)
    def an_old_holder_comes_back(self, selection):
        """After whoever has its groups now has fetched them."""
        for newer in self.given:
            mine = self.leases.get(newer.lease.lease_id)
            if mine is None or newer.lease.fence <= selection.lease.fence:
                continue
            names = [name for name in mine.names if name in selection.group_ids]
            if names and set(mine.names) == set(newer.group_ids):
                self.fetch(newer)
                self.fetch(selection)
                return

    @rule(ticks=st.integers(1, 8))
    def time_passes(self, ticks):
        """Rules begin at multiples of 0.5 s, where leases expire; waits end halfway between."""
        for _ in range(2 * ticks):
            self.loop.now += 0.25
            self.settle()

    @rule(
        who=st.sampled_from(["owner", "holder", "process", "owner nobody told of"]),
        place=st.integers(0, 5),
    )
    def somebody_dies(self, who, place):
        if who == "holder":
            self.a_holder_is_reported_dead(HOLDERS[place % 2])
        elif who == "process":
            self.a_process_of_a_holder_dies(place)
        else:
            self.an_owner_dies(OWNERS[place % 2], told=who == "owner")

    def a_holder_is_reported_dead(self, holder):
        dead = {lease_id for lease_id, held in self.leases.items() if held.holder == holder}
        self.end_dead(dead, {lease.lease_id for lease in self.queue.revoke_holder(holder)})

    def a_process_of_a_holder_dies(self, place):
        if self.leases:
            lease_id = list(self.leases)[place % len(self.leases)]
            self.leases[lease_id].process.alive = False
            self.end_dead({lease_id}, {lease.lease_id for lease in self.queue.revoke_dead()})

    def end_dead(self, dead: set[str], ended: set[str]) -> None:
        self.hold(NOT_LOST, dead <= ended, dead - ended)
        self.hold(IN_FORCE, ended <= dead, ended - dead)
        for lease_id in dead:
            self.end(lease_id)
        self.revoked += len(dead)
        self.settle()

    def an_owner_dies(self, owner, told):
        """And another process goes on under its name."""
        self.dead.update(
            ref.record_id
            for refs in [*self.refs.values(), *(waiter.refs for waiter in self.puts)]
            for ref in refs
            if ref.owner == owner
        )
        self.stores[owner].close()
        self.stores[owner] = self.store_class(owner, 10_000, 1 << 30)
        if not told:
            for selection in self.given:
                if selection.lease.lease_id in self.leases:
                    self.fetch(selection)
            return
        concerned = {
            name: gone
            for name in self.held()
            if (gone := {ref.record_id for ref in self.refs[name] if ref.owner == owner})
        }
        for name, gone in concerned.items():
            self.lost.setdefault(name, set()).update(gone)
        for waiter in self.puts:
            waiter.dropped |= any(ref.owner == owner for ref in waiter.refs)
        lost = self.queue.drop_owner(owner, "killed")
        self.hold(
            EXACT,
            {loss.group_id: set(loss.record_ids) for loss in lost}
            == {name: self.lost[name] for name in concerned},
            lost,
        )
        self.settle()

    @rule(
        groups=st.sampled_from([6, 4, 2, 1]),
        records=st.sampled_from([16, 9, 5, 2]),
        byte_count=st.sampled_from([8000, 4000, 2000, 500]),
        behind=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def resize(self, groups, records, byte_count, behind):
        limits = QueueLimits(groups, records, byte_count)
        try:
            revision = self.queue.resize(limits, revision=self.revision - behind)
        except StaleResizeError as error:
            self.hold(RESIZE, behind != 0, error)
            return
        self.hold(RESIZE, behind == 0 and revision == self.revision + 1, (revision, self.revision))
        self.limits, self.revision = limits, revision
        self.settle()

    @invariant()
    def the_numbers_are_right(self):
        if not hasattr(self, "queue"):
            return
        self.expire()
        stats = self.queue.stats()
        held = self.held()
        refs = [ref for name in held for ref in self.refs[name]]
        lost_waiting = len(self.waiting.intersection(self.lost))
        good, leased = len(self.waiting) - lost_waiting, len(held) - len(self.waiting)
        total = stats.waiting_groups + stats.lost_waiting_groups + stats.leased_groups
        self.hold(NOT_LOST, total >= len(held), stats)
        self.hold(ONCE, total <= len(held), stats)
        self.hold(NOT_LOST, stats.put_groups == len(self.order), stats)
        self.hold(IN_FORCE, stats.leased_groups >= leased, stats)
        self.hold(NOT_LOST, stats.leased_groups <= leased, stats)
        self.hold(NOT_TRAINED, stats.waiting_groups <= good, stats)
        self.hold(NOT_LOST, stats.waiting_groups == good, stats)
        for selection in self.given:
            mine = self.leases.get(selection.lease.lease_id)
            if mine is not None:
                names = self.allowed(lambda lease=selection.lease: self.queue.check(lease))
                self.hold(IN_FORCE, list(names) == mine.names, (names, mine))
        self.hold(STATS, stats.records == len(refs), stats)
        self.hold(STATS, stats.byte_count == sum(ref.byte_count for ref in refs), stats)
        self.hold(FAILURES, stats.failed_records == sum(not ref.ok for ref in refs), stats)
        reserved = [held.reserved for held in self.leases.values() if held.reserved]
        self.hold(RELEASED, stats.reserved_groups == len(reserved), stats)
        self.hold(RELEASED, stats.reserved_records == sum(each.records for each in reserved), stats)
        self.hold(RELEASED, stats.reserved_bytes == sum(each.byte_count for each in reserved), stats)
        self.hold(STATS, (stats.limits, stats.limits_revision) == (self.limits, self.revision), stats)
        self.hold(NOT_LEFT, stats.waiting_puts == len(self.puts), stats)
        self.hold(NOT_LEFT, stats.waiting_selects == len(self.selects), stats)
        self.hold(
            STATS,
            (stats.consumed_groups, stats.lost_groups, stats.discarded_groups, stats.stale_groups)
            == (len(self.consumed), len(self.gone_lost), self.discarded, self.stale),
            stats,
        )
        self.hold(STATS, (stats.expired_leases, stats.revoked_leases) == (self.expired, self.revoked), stats)

    def teardown(self):
        try:
            if sys.exception() is None and hasattr(self, "queue"):
                self.close()
        finally:
            self.loop.finish()

    def close(self) -> None:
        held = self.held()
        refs = self.queue.close()
        self.hold(
            RELEASED,
            sorted(ref.record_id for ref in refs)
            == sorted(ref.record_id for name in held for ref in self.refs[name]),
            refs,
        )
        self.loop.settle()
        self.hold(
            RELEASED,
            len(self.log) == len(self.puts) + len(self.selects)
            and all(isinstance(result, QueueClosedError) for _, result in self.log),
            self.log,
        )
        for lease_id, lease in self.leases.items():
            gone = Lease(lease_id, self.fence, lease.holder, 1.0)
            self.refused(STALE, lambda gone=gone: self.queue.check(gone))
        for owner, store in self.stores.items():
            self.loop.run_until_complete(store.drop([ref for ref in refs if ref.owner == owner]))
        stats = self.queue.stats()
        left = (stats.waiting_groups, stats.lost_waiting_groups, stats.leased_groups, stats.records)
        left += (stats.byte_count, stats.failed_records, stats.reserved_groups, stats.reserved_records)
        left += (stats.reserved_bytes, stats.waiting_puts, stats.waiting_selects)
        self.hold(RELEASED, left == (0,) * 11, stats)
        self.hold(RELEASED, stats.closed_groups == len(held), stats)
        self.hold(RELEASED, not asyncio.all_tasks(self.loop), asyncio.all_tasks(self.loop))


@pytest.fixture(scope="module")
def machine(tools, record, exchange):
    parts = {"tools": tools, "record": staticmethod(record), "exchange": staticmethod(exchange)}
    return type("Machine", (QueueMachine,), parts)


def test_no_interleaving_breaks_a_law(machine, tools):
    tools.run(machine)


# Queues with one fault each.


class ExpiryForgets(TrajectoryQueue):
    def expire(self):
        if len(self._filled):
            return super().expire()
        give_back, self._held.give_back = self._held.give_back, lambda groups: None
        try:
            return super().expire()
        finally:
            self._held.give_back = give_back


class DiscardForgets(QueuedGroups):
    def give_back(self, groups):
        super().give_back([group for group in groups if len(group.refs) < 4])


class ConsumedComesBack(QueuedGroups):
    def remove(self, group):
        super().remove(group)
        if not len(self.filled):
            self.groups[group.group_id] = self.waiting[group.group_id] = group


class TakesEndedLeases(LeaseTable):
    def _end(self, lease_id):
        grant = self._grants[lease_id]
        self.__dict__.setdefault("ghosts", {})[lease_id] = grant
        return super()._end(lease_id)

    def check(self, lease):
        ghost = self.__dict__.get("ghosts", {}).get(lease.lease_id)
        return ghost.items if ghost is not None else super().check(lease)


class RenewShortens(LeaseTable):
    def renew(self, lease, duration_s):
        self.check(lease)
        grant = self._grants[lease.lease_id]
        self._grants[lease.lease_id] = msgspec.structs.replace(grant, deadline=self._clock() + duration_s)
        return grant.lease


class LeasesEndEarly(TrajectoryQueue):
    def expire(self):
        for lease, names in self._leases.leases():
            early = self._leases._grants[lease.lease_id].deadline <= self._leases._clock() + 2
            if early and names[0] not in self._held.reserved and not len(self._filled):
                self._expired += len(self._ended(((lease, self._leases.revoke(lease.lease_id)),)))
        return super().expire()


class SameFence(LeaseTable):
    def grant(self, items, holder, duration_s, *, process=None):
        self._next_fence = min(self._next_fence, 3)
        return super().grant(items, holder, duration_s, process=process)


class RevokesEverybody(LeaseTable):
    def revoke_holder(self, holder):
        return self._end_all(self._grants.values())


class RevokesNobody(LeaseTable):
    def revoke_dead(self):
        return ()


class OffByOne(Ledger):
    def fits(self, amount):
        return super().fits(amount) or super().fits(amount - Amount(0, 1, 0))


class ReservesNothing(Ledger):
    def fits(self, amount):
        return (self.held + amount).is_within(self.limits)


class ForgetsReservations(QueuedGroups):
    def unreserve(self, group_id):
        del self.reserved[group_id]


def with_table(table):
    class WithTable(TrajectoryQueue):
        def __init__(self, limits, *, clock):
            super().__init__(limits, clock=clock)
            self._leases = table(clock=clock)

    return WithTable


def with_ledger(ledger):
    class WithLedger(TrajectoryQueue):
        def __init__(self, limits, *, clock):
            super().__init__(limits, clock=clock)
            self._held.ledger = ledger(self._held.ledger.limits)

    return WithLedger


def with_contents(contents):
    class WithContents(TrajectoryQueue):
        def __init__(self, limits, *, clock):
            super().__init__(limits, clock=clock)
            self._held = contents(self._held.ledger.limits)
            self._held.filled = self._filled

    return WithContents


def with_signals(signal):
    class WithSignals(TrajectoryQueue):
        def __init__(self, limits, *, clock):
            super().__init__(limits, clock=clock)
            self._room, self._filled = signal(), signal()

    return WithSignals


class GrantsTwice(LeaseTable):
    def grant(self, items, holder, duration_s, *, process=None):
        names = tuple(items)
        for name in names:
            self._holding.pop(name, None)
        return super().grant(names, holder, duration_s, process=process)


class HandsOutTwice(with_table(GrantsTwice)):
    async def select(self, count, rule, deadline_s, **more):
        selection = await super().select(count, rule, deadline_s, **more)
        if len(self._filled):
            self._held.waiting.update((name, self._held.groups[name]) for name in selection.group_ids)
            self._filled.notify()
        return selection

    def stats(self):
        leased = {name for _, names in self._leases.leases() for name in names}
        for name in leased.intersection(self._held.waiting):
            del self._held.waiting[name]
        return super().stats()


class PartialReleaseEndsAll(TrajectoryQueue):
    def release(self, lease, outcome, *, group_ids=None):
        refs = super().release(lease, outcome, group_ids=group_ids)
        if not len(self._filled):
            self._leases.revoke(lease.lease_id)
        return refs


class WakesNobodyAfterRelease(TrajectoryQueue):
    def release(self, lease, outcome, *, group_ids=None):
        changed, self._changed = self._changed, lambda: None
        try:
            return super().release(lease, outcome, group_ids=group_ids)
        finally:
            self._changed = changed


class KeepsTheCancelled(Signal):
    async def wait_until(self, condition, deadline_s, **more):
        try:
            return await super().wait_until(condition, deadline_s, **more)
        except asyncio.CancelledError:
            self._waiters.append(asyncio.get_running_loop().create_future())
            raise


class LastComesFirst(Signal):
    async def wait_until(self, condition, deadline_s, **more):
        more.get("check", lambda: None)()
        return bool(deadline_s and condition()) or await super().wait_until(condition, deadline_s, **more)


class NeverLate(Signal):
    async def wait_until(self, condition, deadline_s, **more):
        return await super().wait_until(condition, deadline_s * 2, **more)


class TellsNobody(TrajectoryQueue):
    def resize(self, limits, *, revision):
        told, self._room.notify_all = self._room.notify_all, self._room.notify
        try:
            return super().resize(limits, revision=revision)
        finally:
            self._room.notify_all = told


class WaitsForEver(TrajectoryQueue):
    def _check_not_stuck(self, count, holder):
        pass


class DespairsEarly(TrajectoryQueue):
    def _check_not_stuck(self, count, holder):
        if self._asking and not self._held.ledger.fits(self._asking[0].amount):
            raise UnsatisfiableError("somebody waits for room")


class TakesAnyResize(TrajectoryQueue):
    def resize(self, limits, *, revision):
        return super().resize(limits, revision=self._revision)


class LosesQuietly(TrajectoryQueue):
    def drop_owner(self, owner, reason):
        lost = super().drop_owner(owner, reason)
        for name in list(self._held.lost_waiting):
            self._held.remove(self._held.lost_waiting.pop(name))
        return lost


class ComesBackAsGood(QueuedGroups):
    def give_back(self, groups):
        self.waiting.update((group.group_id, group) for group in groups)


class LetsTheDeadPut(TrajectoryQueue):
    def drop_owner(self, owner, reason):
        asking, self._asking = self._asking, []
        try:
            return super().drop_owner(owner, reason)
        finally:
            self._asking = asking


class ClosesTheDoorOnWaiters(TrajectoryQueue):
    def close(self):
        refs = super().close()
        self._is_closed = False
        return refs


class CountsLate(TrajectoryQueue):
    def stats(self):
        stats = super().stats()
        last, self.__dict__["last"] = self.__dict__.get("last", stats), stats
        return msgspec.structs.replace(stats, byte_count=last.byte_count)


class FailureIsZero(TrajectoryStore):
    def put(self, record, *, reservation=None):
        ref = super().put(record, reservation=reservation)
        return msgspec.structs.replace(ref, ok=True, reward=ref.reward or 0.0)


class LetsAnyFenceIn(FenceGate):
    def admit(self, items, lease):
        pass


class StoreWithoutGate(TrajectoryStore):
    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self._gate = LetsAnyFenceIn()


async def names_every_group(selection, owners, deadline_s):
    fetched = await fetch_available(selection, owners, deadline_s)
    if not fetched.lost:
        return fetched
    lost = tuple(
        LostGroup(group[0].group_id, tuple(ref.record_id for ref in group), OWNERS, "gone")
        for group in selection.groups
    )
    return FetchedGroups(selection.without(selection.group_ids), [], lost)


FAULTS = {
    "expiry does not give back": (ExpiryForgets, NOT_LOST),
    "a discarded group is lost": (with_contents(DiscardForgets), NOT_LOST),
    "a dead process keeps its leases": (with_table(RevokesNobody), NOT_LOST),
    "a consumed group is handed out again": (with_contents(ConsumedComesBack), ONCE),
    "a leased group is handed out again": (HandsOutTwice, ONE_LEASE),
    "an ended lease is good for a release": (with_table(TakesEndedLeases), STALE),
    "fences do not grow": (with_table(SameFence), STALE),
    "renewing takes time away": (with_table(RenewShortens), IN_FORCE),
    "leases end early": (LeasesEndEarly, IN_FORCE),
    "the death of one ends the leases of all": (with_table(RevokesEverybody), IN_FORCE),
    "a partial release ends the whole lease": (PartialReleaseEndsAll, IN_FORCE),
    "capacity off by one": (with_ledger(OffByOne), CAPACITY),
    "reservations do not count": (with_ledger(ReservesNothing), CAPACITY),
    "a reservation is never given back": (with_contents(ForgetsReservations), RELEASED),
    "nobody is woken by a release": (WakesNobodyAfterRelease, SERVED),
    "a cancelled waiter stays": (with_signals(KeepsTheCancelled), NOT_LEFT),
    "the last one pushes in": (with_signals(LastComesFirst), IN_LINE),
    "waits are twice as long": (with_signals(NeverLate), ON_TIME),
    "a resize does not tell who waits": (TellsNobody, TOLD),
    "a select waits for what can never come": (WaitsForEver, TOLD),
    "a select gives up too early": (DespairsEarly, TOLD),
    "a stale resize is taken": (TakesAnyResize, RESIZE),
    "lost groups vanish": (LosesQuietly, NOT_LOST),
    "leased groups that lost records come back as good": (with_contents(ComesBackAsGood), NOT_TRAINED),
    "records of the dead are put": (LetsTheDeadPut, NOT_TRAINED),
    "a close leaves waiters hanging": (ClosesTheDoorOnWaiters, RELEASED),
    "the numbers are of two instants": (CountsLate, STATS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_queue_breaks_its_law(machine, with_fault, tools, fault):
    queue_class, law = FAULTS[fault]
    assert tools.law_broken_by(with_fault(machine, queue_class=queue_class)) == law


def test_an_owner_that_takes_stale_fences_is_found(machine, with_fault, tools):
    assert tools.law_broken_by(with_fault(machine, store_class=StoreWithoutGate)) == STALE


def test_a_failure_that_turns_into_a_zero_reward_is_found(machine, with_fault, tools):
    assert tools.law_broken_by(with_fault(machine, store_class=FailureIsZero)) == FAILURES


def test_naming_groups_that_lost_nothing_is_found(machine, with_fault, tools):
    faulty = with_fault(machine, fetch_from=staticmethod(names_every_group))
    assert tools.law_broken_by(faulty) == EXACT
