"""The controller's queue of references to groups of trajectories.

What always holds:

- Groups, records and bytes that are held (waiting and leased) or reserved never exceed the limits; lower
  limits set by :meth:`TrajectoryQueue.resize` only stop puts until enough was consumed.
- A group is waiting, under exactly one lease, or gone. It goes only when a lease in force is released as
  consumed, or when the queue is closed.
- A lease that expired, or whose holder died, gives its groups back at the place where they were; its release
  is then refused.
- A group that lost records (its owner died) is never handed out to be trained on, and never vanishes: it
  waits to be handed out as lost, with what is gone and why.
- Whoever waits is told at once when what was asked for can never come.

So a group is trained on at most once if its lease is released as consumed before the training step, and if
what a refused release stood for is thrown away. One event loop uses a queue.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from art_dataplane.bounds import Amount, are_counts
from art_dataplane.errors import (
    DeadlineError,
    LeaseError,
    OwnerDiedError,
    QueueClosedError,
    QueueError,
    StaleResizeError,
    UnsatisfiableError,
)
from art_dataplane.leases import Ended, Lease, LeaseTable, Outcome
from art_dataplane.processes import ProcessIdentity
from art_dataplane.queued import QueuedGroup, QueuedGroups
from art_dataplane.records import LostGroup, TrajectoryRef
from art_dataplane.selection import QueueLimits, QueueStats, Selection, SelectionRule
from art_dataplane.waiting import Signal

__all__ = ["QueueLimits", "QueueStats", "Selection", "SelectionRule", "TrajectoryQueue"]

FENCES_PER_EPOCH = 1 << 32
LOOK_FOR_DEAD_S = 0.25
"""Who waits looks so often whether the processes of holders live."""


class _Asking(msgspec.Struct, eq=False):
    """Somebody who waits for room."""

    group_id: str
    amount: Amount
    owners: frozenset[str] = frozenset()
    died: OwnerDiedError | None = None


class TrajectoryQueue:
    """Holds references, bounded, and hands them out under leases.

    Args:
        limits: bounds on groups, records and bytes.
        epoch: the number of this queue among those of a run that followed each other after a loss of state;
            record owners refuse leases of earlier epochs.
        clock: for leases; seconds, monotonic.

    Raises:
        QueueError: a limit is not positive, or the epoch is negative.
    """

    def __init__(
        self, limits: QueueLimits, *, epoch: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if epoch < 0:
            raise QueueError(f"epoch {epoch} is negative")
        self._limits = _checked(limits)
        self._revision = 0
        self._held = QueuedGroups(_amount(limits))
        self._leases = LeaseTable(clock=clock, first_fence=epoch * FENCES_PER_EPOCH + 1)
        self._asking: list[_Asking] = []
        self._room = Signal()
        self._filled = Signal()
        self._is_closed = False
        self._discarded = 0
        self._closed_groups = 0
        self._expired = 0
        self._revoked = 0
        self._stale = 0

    async def put(self, refs: Sequence[TrajectoryRef], deadline_s: float) -> None:
        """Adds one group, waiting for room.

        Args:
            refs: the group's references, all with one ``group_id``.
            deadline_s: seconds to wait for room.

        Raises:
            QueueError: no refs, refs of several groups, a malformed one, or a group or record that is here
                already.
            UnsatisfiableError: the group is larger than the limits, as they are or as they become meanwhile.
            OwnerDiedError: an owner of the records was dropped meanwhile.
            QueueClosedError: the queue is closed.
            DeadlineError: there was no room within ``deadline_s`` seconds.
        """
        group = QueuedGroup.of(refs)
        self._check_new(group.group_id, group.refs)
        asking = _Asking(group.group_id, group.amount, frozenset(ref.owner for ref in group.refs))
        await self._wait_for_room(asking, deadline_s)
        self._check_new(group.group_id, group.refs)
        self._held.add(group)
        self._changed()

    async def reserve(
        self,
        group_id: str,
        record_count: int,
        byte_count: int,
        deadline_s: float,
        *,
        holder: str = "producer",
        lease_s: float = 300.0,
        process: ProcessIdentity | None = None,
    ) -> Lease:
        """Reserves room for one group before its records exist, waiting for it.

        The room is the holder's until :meth:`commit` or :meth:`abort`, or until the lease ends: at its
        deadline, or with its holder.

        Args:
            group_id: of the group to come.
            record_count: its records, at most.
            byte_count: bytes of their MessagePack, at most.
            deadline_s: seconds to wait for room.
            holder: who reserves, as messages name it.
            lease_s: seconds that the reservation is good for.
            process: the holder's, when it can be seen from here.

        Raises:
            QueueError: a number is not positive, or a group of this id is here or reserved already.
            UnsatisfiableError: it is more than the limits, as they are or as they become meanwhile.
            QueueClosedError: the queue is closed.
            DeadlineError: there was no room within ``deadline_s`` seconds.
        """
        if not are_counts(record_count, byte_count) or not _is_duration(lease_s):
            raise QueueError(
                f"cannot reserve {record_count} records and {byte_count} bytes for {lease_s} s: the numbers "
                "must be positive and whole, the time positive and finite"
            )
        self._check_new(group_id, ())
        amount = Amount(1, record_count, byte_count)
        await self._wait_for_room(_Asking(group_id, amount), deadline_s)
        self._check_new(group_id, ())
        lease = self._leases.grant([group_id], holder, lease_s, process=process)
        self._held.reserve(group_id, amount)
        return lease

    def commit(self, lease: Lease, refs: Sequence[TrajectoryRef]) -> None:
        """Puts the group for which there is a reservation; what it does not need of it is free again.

        Args:
            lease: of the reservation.
            refs: the group's references.

        Raises:
            QueueError: as :meth:`put`, or the group is another one or larger than the reservation, which
                stays.
            LeaseError: the reservation is over, or the lease is no reservation.
        """
        reserved = self._held.reserved[self._reservation(lease)]
        group = QueuedGroup.of(refs)
        if (group.group_id,) != self._leases.check(lease):
            raise QueueError(f"group {group.group_id} is not the one that {lease.holder!r} reserved room for")
        if not group.amount.is_within(reserved):
            raise QueueError(
                f"group {group.group_id} ({group.amount}) is larger than its reservation ({reserved})"
            )
        self._held.check_records(group.group_id, group.refs)
        self._leases.release(lease)
        self._held.unreserve(group.group_id)
        self._held.add(group)
        self._changed()

    def abort(self, lease: Lease) -> None:
        """Gives a reservation back.

        Raises:
            LeaseError: the reservation is over, or the lease is no reservation.
        """
        group_id = self._reservation(lease)
        self._leases.release(lease)
        self._held.unreserve(group_id)
        self._changed()

    async def select(
        self,
        count: int,
        rule: SelectionRule,
        deadline_s: float,
        *,
        holder: str = "packing",
        lease_s: float = 300.0,
        process: ProcessIdentity | None = None,
    ) -> Selection:
        """Takes ``count`` groups under one lease as soon as there are so many.

        When groups that lost records are waiting it returns at once with these alone (``lost``), and when
        stale groups are waiting with these alone (``stale``): release them (consumed to be rid of them), then
        select again.

        Args:
            count: how many groups.
            rule: which.
            deadline_s: seconds to wait for them.
            holder: who takes them, as messages name it and :meth:`revoke_holder` is told.
            lease_s: seconds that the lease is good for.
            process: the holder's, when it can be seen from here: when it is dead the lease ends.

        Raises:
            QueueError: ``count`` is not positive, or ``lease_s`` is not positive and finite.
            UnsatisfiableError: there can never be so many: ``count`` is above the limits (each group has a
                record, and each record a byte); or nothing is leased or reserved, so that nothing will leave,
                and what waits leaves no room for the group that is to be put next, or for any.
            QueueClosedError: the queue is closed.
            DeadlineError: there were fewer groups within ``deadline_s`` seconds.
        """
        if not are_counts(count) or not _is_duration(lease_s):
            raise QueueError(
                f"cannot select {count} groups for {lease_s} s: at least 1 group, for longer than 0 s and "
                "not for ever"
            )

        def is_ready() -> bool:
            self.expire()
            if self._held.can_take(count, rule):
                return True
            if self.revoke_dead() and self._held.can_take(count, rule):
                return True
            self._check_not_stuck(count, holder)
            return False

        if not await self._filled.wait_until(
            is_ready,
            deadline_s,
            check=lambda: self._check_can_select(count, holder),
            next_look_s=self._next_look_s,
        ):
            raise DeadlineError(
                f"{holder!r} asked for {count} groups; {len(self._held.waiting)} were waiting and "
                f"{self._held.leased_count} leased after {deadline_s} s"
            )
        chosen = self._held.choose(count, rule)
        lease = self._leases.grant(
            (group.group_id for group in chosen.groups), holder, lease_s, process=process
        )
        self._held.take(chosen.groups)
        self._stale += len(chosen.groups) if chosen.stale else 0
        return Selection(
            tuple(group.refs for group in chosen.groups), lease, stale=chosen.stale, lost=chosen.lost
        )

    def check(self, lease: Lease) -> tuple[str, ...]:
        """The ids of the groups that ``lease`` is on.

        Raises:
            LeaseError: it is not in force.
        """
        self.expire()
        return self._leases.check(lease)

    def renew(self, lease: Lease, lease_s: float) -> Lease:
        """Moves the deadline of ``lease`` to ``lease_s`` seconds from now; never nearer.

        Raises:
            LeaseError: it is not in force, or ``lease_s`` is not positive and finite.
        """
        self.expire()
        return self._leases.renew(lease, lease_s)

    def release(
        self, lease: Lease, outcome: Outcome, *, group_ids: Iterable[str] | None = None
    ) -> tuple[TrajectoryRef, ...]:
        """Ends a lease, on all its groups or on some.

        Args:
            lease: of a selection.
            outcome: consumed groups are gone (owners may drop the records), discarded ones wait again.
            group_ids: which; None for all. The lease stays in force on the others.

        Returns:
            The references of the groups that were released.

        Raises:
            LeaseError: the lease expired, ended before, is a reservation, is not of this queue or not on one
                of ``group_ids``; throw away what was made of it.
        """
        self.expire()
        if any(name in self._held.reserved for name in self._leases.check(lease)):
            raise LeaseError(f"the lease of {lease.holder!r} is a reservation; commit it or abort it")
        groups = [self._held.groups[name] for name in self._leases.release(lease, group_ids)]
        if outcome is Outcome.CONSUMED:
            for group in groups:
                self._held.remove(group)
        else:
            self._discarded += len(groups)
            self._held.give_back(groups)
        self._changed()
        return tuple(ref for group in groups for ref in group.refs)

    def expire(self) -> tuple[Lease, ...]:
        """Gives back what is under leases past their deadline; returns these.

        Every other call does this as well.
        """
        ended = self._ended(self._leases.expire())
        self._expired += len(ended)
        return ended

    def revoke_holder(self, holder: str) -> tuple[Lease, ...]:
        """Ends the leases and reservations of ``holder``, who died, and gives back what they were on."""
        ended = self._ended(self._leases.revoke_holder(holder))
        self._revoked += len(ended)
        return ended

    def revoke_dead(self) -> tuple[Lease, ...]:
        """Ends those whose holder's process (``process`` of a selection or reservation) is seen to be dead.

        Whoever waits in this queue does this four times a second.
        """
        ended = self._ended(self._leases.revoke_dead())
        self._revoked += len(ended)
        return ended

    def drop_owner(self, owner: str, reason: str) -> tuple[LostGroup, ...]:
        """Marks every group with a record of ``owner``, which died, as lost (see :meth:`mark_lost`).

        Groups that are waiting to be put fail with :class:`OwnerDiedError`. What is put afterwards under the
        same name is of another process, and good.

        Args:
            owner: its name, as references carry it.
            reason: what is known of its end; goes into every :class:`LostGroup`.

        Returns:
            The groups that are held here and concerned, also leased ones.
        """
        concerned = self._held.with_records_of(owner, reason)
        for asking in self._asking:
            if owner in asking.owners:
                asking.died = OwnerDiedError(owner, reason)
        self._room.notify_all()
        return self.mark_lost(concerned)

    def mark_lost(self, lost: Iterable[LostGroup]) -> tuple[LostGroup, ...]:
        """Says that records of groups are gone: these are not handed out to be trained on any more.

        A waiting group is handed out as lost by the next select; one under a lease then, too, should it come
        back. Released as consumed it counts as lost.

        Args:
            lost: for example those of a :class:`RecordsLostError`.

        Returns:
            What is known now of those that are held here.
        """
        known = self._held.mark_lost(lost)
        self._changed()
        return known

    def resize(self, limits: QueueLimits, *, revision: int) -> int:
        """Sets new limits; nothing that is held or reserved is dropped. Waiters for whom they can never be
        enough are told at once.

        Args:
            limits: the new bounds.
            revision: of the limits that the caller believes to be in force
                (:attr:`QueueStats.limits_revision`).

        Returns:
            The revision of the new limits.

        Raises:
            QueueError: a limit is not positive.
            StaleResizeError: others are in force.
            QueueClosedError: the queue is closed.
        """
        self._check_open()
        _checked(limits)
        if revision != self._revision:
            raise StaleResizeError(
                f"a resize to {limits} was made for revision {revision} of the limits; revision "
                f"{self._revision} is in force: {self._limits}. Look at stats() and decide again"
            )
        self._limits = limits
        self._held.ledger.limits = _amount(limits)
        self._revision += 1
        self._room.notify_all()
        self._filled.notify_all()
        return self._revision

    def close(self) -> tuple[TrajectoryRef, ...]:
        """Ends all leases and reservations and turns waiters away; a second call does nothing.

        Returns:
            The references of all groups that were held, so that their owners can drop the records.
        """
        for lease, _ in self._leases.leases():
            self._leases.revoke(lease.lease_id)
        self._closed_groups += len(self._held.groups)
        refs = self._held.clear()
        self._is_closed = True
        self._room.notify_all()
        self._filled.notify_all()
        return refs

    def stats(self) -> QueueStats:
        """What is held at this instant, all of it from one and the same."""
        self.expire()
        contents = self._held
        held, reserved = contents.ledger.held, contents.ledger.reserved
        return QueueStats(
            waiting_groups=len(contents.waiting),
            lost_waiting_groups=len(contents.lost_waiting),
            leased_groups=contents.leased_count,
            records=held.records,
            byte_count=held.byte_count,
            failed_records=contents.failed_records,
            reserved_groups=reserved.groups,
            reserved_records=reserved.records,
            reserved_bytes=reserved.byte_count,
            limits=self._limits,
            limits_revision=self._revision,
            waiting_puts=len(self._room),
            waiting_selects=len(self._filled),
            put_groups=contents.put_groups,
            consumed_groups=contents.consumed_groups,
            lost_groups=contents.gone_lost_groups,
            discarded_groups=self._discarded,
            closed_groups=self._closed_groups,
            expired_leases=self._expired,
            revoked_leases=self._revoked,
            stale_groups=self._stale,
        )

    async def _wait_for_room(self, asking: _Asking, deadline_s: float) -> None:
        def check() -> None:
            self._check_open()
            if asking.died is not None:
                raise asking.died
            if not self._held.ledger.fits_empty(asking.amount):
                raise UnsatisfiableError(
                    f"group {asking.group_id} ({asking.amount}) is larger than the whole queue: "
                    f"{self._limits}"
                )

        def fits() -> bool:
            self.expire()
            return self._held.ledger.fits(asking.amount) or (
                bool(self.revoke_dead()) and self._held.ledger.fits(asking.amount)
            )

        self._asking.append(asking)
        self._filled.notify()  # whoever waits for groups may see now that there can be none
        try:
            if not await self._room.wait_until(fits, deadline_s, check=check, next_look_s=self._next_look_s):
                raise DeadlineError(
                    f"group {asking.group_id} ({asking.amount}) found no room within {deadline_s} s: "
                    f"{self._held.ledger.held} are held, {self._held.leased_count} groups of them leased, "
                    f"and {self._held.ledger.reserved} reserved; limits {self._limits}"
                )
        finally:
            self._asking.remove(asking)
            self._filled.notify()

    def _next_look_s(self) -> float | None:
        looks = [self._leases.seconds_to_next_expiry()]
        looks.append(LOOK_FOR_DEAD_S if self._leases.watches_processes else None)
        return min((look for look in looks if look is not None), default=None)

    def _check_open(self) -> None:
        if self._is_closed:
            raise QueueClosedError(f"the queue was closed with {self._closed_groups} groups in it")

    def _check_can_select(self, count: int, holder: str) -> None:
        self._check_open()
        if not self._held.ledger.fits_empty(Amount(count, count, count)):
            raise UnsatisfiableError(
                f"{holder!r} cannot select {count} groups, of at least 1 record of 1 byte each: the queue "
                f"never holds so much; limits {self._limits}"
            )

    def _check_not_stuck(self, count: int, holder: str) -> None:
        """Whoever is first in the line for groups waits in vain when what is here can neither leave (nobody
        has a lease) nor be joined by more (the next in the line for room finds none)."""
        if len(self._leases):
            return
        wanted = self._asking[0].amount if self._asking else Amount(1, 1, 1)
        if self._held.ledger.fits(wanted):
            return
        raise UnsatisfiableError(
            f"{holder!r} cannot select {count} groups: {len(self._held.waiting)} are waiting "
            f"({self._held.ledger.held}), no lease is in force, so none will go, and there is no room for "
            f"the next ({wanted}); limits {self._limits}. Select {len(self._held.waiting)}, or raise the "
            "limits"
        )

    def _check_new(self, group_id: str, refs: Sequence[TrajectoryRef]) -> None:
        self._check_open()
        self.expire()
        self._held.check_new(group_id, refs)

    def _reservation(self, lease: Lease) -> str:
        self.expire()
        names = self._leases.check(lease)
        if names[0] not in self._held.reserved:
            raise LeaseError(f"the lease of {lease.holder!r} is on {len(names)} groups and is no reservation")
        return names[0]

    def _ended(self, ended: Ended) -> tuple[Lease, ...]:
        for _, names in ended:
            self._held.give_back(self._held.groups[name] for name in names if name in self._held.groups)
            for name in names:
                if name in self._held.reserved:
                    self._held.unreserve(name)
        if ended:
            self._changed()
        return tuple(lease for lease, _ in ended)

    def _changed(self) -> None:
        self._room.notify()
        self._filled.notify()


def _checked(limits: QueueLimits) -> QueueLimits:
    if not are_counts(limits.groups, limits.records, limits.byte_count):
        raise QueueError(f"all limits must be positive whole numbers: {limits}")
    return limits


def _amount(limits: QueueLimits) -> Amount:
    return Amount(limits.groups, limits.records, limits.byte_count)


def _is_duration(seconds: float) -> bool:
    return seconds > 0 and math.isfinite(seconds)
