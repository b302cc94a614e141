"""Records that stay with the process that made them.

What always holds: the groups, records and bytes that are held or reserved never exceed the bounds, unless
these were lowered; a record is encoded once, when it is put, and never changes; whoever comes with a lower
fence than was seen for a record gets nothing.

One event loop uses a store; the synchronous methods may be called from it between awaits.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from art_dataplane.bounds import Amount, Ledger, are_counts
from art_dataplane.errors import (
    DeadlineError,
    RecordsMissingError,
    StaleResizeError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from art_dataplane.fetched import Fetched
from art_dataplane.leases import FenceGate, Lease, LeaseTable
from art_dataplane.locations import Location
from art_dataplane.record_owner import RecordOwner, StoreStats, read_records
from art_dataplane.records import TrajectoryRecord, TrajectoryRef, trajectory_ref
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.waiting import Signal

__all__ = ["RecordOwner", "StoreStats", "TrajectoryStore", "read_records"]


_UNBOUNDED = 1 << 62


class _Reserved(msgspec.Struct):
    group_id: str
    left: Amount  # of records and bytes; the group is counted as held


class TrajectoryStore:
    """Holds the records of one owner; implements :class:`RecordOwner`.

    Args:
        owner: the name under which others reach this store; goes into every reference.
        max_records: bound on the records held.
        max_bytes: bound on their MessagePack together, in bytes.
        max_groups: bound on the groups that they are of; None for none.
        segments: where fetches of :data:`art_dataplane.locations.INLINE_LIMIT` bytes and more are put;
            without it they are an error.
        clock: for reservations; seconds, monotonic.

    Raises:
        StoreError: a bound is not positive.
    """

    def __init__(
        self,
        owner: str,
        max_records: int,
        max_bytes: int,
        *,
        max_groups: int | None = None,
        segments: ShmSegmentStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = owner
        self._ledger = Ledger(self._limits(max_records, max_bytes, max_groups))
        self._revision = 0
        self._encoded: dict[str, bytes] = {}
        self._group_of: dict[str, str] = {}
        self._failed: set[str] = set()
        self._group_uses: Counter[str] = Counter()
        self._reservations: dict[str, _Reserved] = {}
        self._leases = LeaseTable(clock=clock)
        self._names = itertools.count()
        self._gate = FenceGate()
        self._fetched = Fetched(owner, segments)
        self._room = Signal()
        self._expired = 0
        self._is_closed = False

    @property
    def owner(self) -> str:
        """The name under which others reach this store."""
        return self._owner

    def put(self, record: TrajectoryRecord, *, reservation: Lease | None = None) -> TrajectoryRef:
        """Keeps ``record`` and returns the reference to it. It passes the line of those who wait for room.

        Args:
            record: to keep.
            reservation: of its group (:meth:`reserve`); the record takes its room from there, and with its
                last record the reservation is over.

        Raises:
            RecordError: it is not valid.
            StoreFullError: it does not fit now, or not into its reservation.
            StoreError: its id is held already, or it is of another group than its reservation.
            LeaseError: the reservation is over.
            StoreClosedError: the store is closed.
        """
        record.validate()
        encoded = record.encoded()
        if reservation is not None:
            self._take_reserved(record, len(encoded), reservation)
            return self._keep(record, encoded)
        self._check_new(record)
        if not self._fits(self._amount(record.group_id, 1, len(encoded))):
            raise self._full(_what(record, encoded))
        return self._insert(record, encoded)

    async def put_when_room(self, record: TrajectoryRecord, deadline_s: float) -> TrajectoryRef:
        """Keeps ``record`` as :meth:`put` does, but waits for room.

        Args:
            record: to keep.
            deadline_s: seconds to wait for room.

        Raises:
            RecordError: it is not valid.
            StoreFullError: it would not fit into an empty store, as the bounds are or become meanwhile.
            StoreError: its id is held already.
            StoreClosedError: the store is closed.
            DeadlineError: there was no room within ``deadline_s`` seconds.
        """
        record.validate()
        encoded = record.encoded()
        self._check_new(record)
        await self._wait_for_room(_what(record, encoded), record.group_id, 1, len(encoded), deadline_s)
        self._check_new(record)
        return self._insert(record, encoded)

    async def reserve(
        self,
        group_id: str,
        record_count: int,
        byte_count: int,
        deadline_s: float,
        *,
        holder: str = "rollout",
        lease_s: float = 600.0,
    ) -> Lease:
        """Reserves room for records of one group before they exist, waiting for it.

        Put the records with the lease that is returned, and :meth:`abort` what is not used of it; it ends by
        itself at the deadline of the lease.

        Args:
            group_id: of the records to come.
            record_count: how many records, at most.
            byte_count: bytes of their MessagePack together, at most.
            deadline_s: seconds to wait for room.
            holder: who reserves, as messages name it.
            lease_s: seconds that the reservation is good for.

        Raises:
            StoreError: a number is not positive.
            StoreFullError: it would not fit into an empty store, as the bounds are or become meanwhile.
            StoreClosedError: the store is closed.
            LeaseError: ``lease_s`` is not positive and finite.
            DeadlineError: there was no room within ``deadline_s`` seconds.
        """
        if not are_counts(record_count, byte_count):
            raise StoreError(
                f"store {self._owner}: {record_count} records of {byte_count} bytes cannot be reserved; give "
                "positive whole numbers"
            )
        what = f"a reservation for {record_count} records of {byte_count} bytes of group {group_id}"
        await self._wait_for_room(what, group_id, record_count, byte_count, deadline_s)
        name = f"reservation {next(self._names)} of {group_id}"
        lease = self._leases.grant([name], holder, lease_s)
        left = Amount(0, record_count, byte_count)
        self._use_group(group_id)
        self._ledger.reserve(left)
        self._reservations[name] = _Reserved(group_id, left)
        return lease

    def abort(self, reservation: Lease) -> None:
        """Gives back what a reservation has left.

        Raises:
            LeaseError: it is over.
        """
        self.expire()
        for name in self._leases.release(reservation):
            self._end_reservation(name)

    def expire(self) -> tuple[Lease, ...]:
        """Gives back what reservations past their deadline have left; returns these.

        Every other call does this as well.
        """
        ended = self._leases.expire()
        self._expired += len(ended)
        for _, names in ended:
            for name in names:
                self._end_reservation(name)
        return tuple(lease for lease, _ in ended)

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        """Where the records' MessagePack is; read it with :func:`read_records`.

        Below :data:`art_dataplane.locations.INLINE_LIMIT` bytes they are inline, else in a segment that lives
        until all its records are dropped or one is fetched under a higher fence. Asking again under the same
        fence gives the same segment.

        Args:
            refs: of records held here, at least one.
            lease: the queue's, on all of them; a fence below one seen before is refused.
            deadline_s: seconds the caller waits; above 0.

        Raises:
            StoreError: no refs, one of another owner, or bytes for which there are no segments.
            RecordsMissingError: some records are not held, and which.
            LeaseError: a higher fence was seen for one of the records.
            ShmFullError: no room for the segment.
            DeadlineError: ``deadline_s`` is not above 0.
        """
        if not deadline_s > 0:
            raise DeadlineError(f"fetch of {len(refs)} records: the deadline of {deadline_s} s has passed")
        ids = tuple(ref.record_id for ref in refs)
        self._check_held(refs)
        self._gate.admit(ids, lease)
        return self._fetched.location(ids, [self._encoded[record_id] for record_id in ids], lease.fence)

    async def drop(self, refs: Sequence[TrajectoryRef], lease: Lease | None = None) -> int:
        """Forgets the records of ``refs``; returns how many were held.

        Args:
            refs: of records; those not held here are passed over.
            lease: of whoever drops them: one with a stale fence drops nothing. Without one they go also under
                a lease in force.

        Raises:
            LeaseError: a higher fence was seen for one of the records.
        """
        held = list(dict.fromkeys(ref.record_id for ref in refs if ref.record_id in self._encoded))
        if lease is not None:
            self._gate.admit(held, lease)
        for record_id in held:
            self._ledger.give(Amount(0, 1, len(self._encoded.pop(record_id))))
            self._leave_group(self._group_of.pop(record_id))
            self._failed.discard(record_id)
        self._gate.forget(held)
        self._fetched.keep_only(self._encoded)
        self._room.notify()
        return len(held)

    def resize(
        self, max_records: int, max_bytes: int, max_groups: int | None = None, *, revision: int
    ) -> int:
        """Sets new bounds; nothing that is held or reserved is dropped. Waiters whose records would not even
        fit into an empty store are told at once.

        Args:
            max_records: bound on the records.
            max_bytes: bound on the bytes.
            max_groups: bound on the groups; None for none.
            revision: of the bounds that the caller believes to be in force
                (:attr:`StoreStats.limits_revision`).

        Returns:
            The revision of the new bounds.

        Raises:
            StoreError: a bound is not positive.
            StaleResizeError: others are in force.
            StoreClosedError: the store is closed.
        """
        self._check_open()
        limits = self._limits(max_records, max_bytes, max_groups)
        if revision != self._revision:
            raise StaleResizeError(
                f"a resize of store {self._owner} to {max_records} records, {max_bytes} bytes was made for "
                f"revision {revision} of the bounds; revision {self._revision} is in force "
                f"({self._ledger.limits}). Look at stats() and decide again"
            )
        self._ledger.limits = limits
        self._revision += 1
        self._room.notify_all()
        return self._revision

    def close(self) -> int:
        """Drops every record with what was made for fetches, ends reservations and turns waiters away.

        Returns:
            How many records were held; 0 the second time.
        """
        count = len(self._encoded)
        self._fetched.keep_only(())
        for lease, _ in self._leases.leases():
            self._leases.revoke(lease.lease_id)
        self._gate.forget(self._encoded)
        for held in (self._encoded, self._group_of, self._failed, self._group_uses, self._reservations):
            held.clear()
        self._ledger = Ledger(self._ledger.limits)
        self._is_closed = True
        self._room.notify_all()
        return count

    async def stats(self) -> StoreStats:
        """What is held at this instant."""
        self.expire()
        limits, held, reserved = self._ledger.limits, self._ledger.held, self._ledger.reserved
        return StoreStats(
            record_count=held.records,
            byte_count=held.byte_count,
            failed_count=len(self._failed),
            max_records=limits.records,
            max_bytes=limits.byte_count,
            group_count=held.groups,
            max_groups=None if limits.groups == _UNBOUNDED else limits.groups,
            reserved_records=reserved.records,
            reserved_bytes=reserved.byte_count,
            limits_revision=self._revision,
            waiting_puts=len(self._room),
            expired_reservations=self._expired,
        )

    def _limits(self, max_records: int, max_bytes: int, max_groups: int | None) -> Amount:
        if not are_counts(max_records, max_bytes, 1 if max_groups is None else max_groups):
            raise StoreError(
                f"store {self._owner}: the bounds {max_records} records, {max_bytes} bytes, {max_groups} "
                "groups must be positive whole numbers"
            )
        return Amount(_UNBOUNDED if max_groups is None else max_groups, max_records, max_bytes)

    async def _wait_for_room(
        self, what: str, group_id: str, records: int, byte_count: int, deadline_s: float
    ) -> None:
        def check() -> None:
            self._check_open()
            if not self._ledger.fits_empty(Amount(1, records, byte_count)):
                raise self._full(what)

        if not await self._room.wait_until(
            lambda: self._fits(self._amount(group_id, records, byte_count)),
            deadline_s,
            check=check,
            next_look_s=self._leases.seconds_to_next_expiry,
        ):
            error = self._full(what)
            raise DeadlineError(f"{error}; waited {deadline_s} s") from error

    def _amount(self, group_id: str, records: int, byte_count: int) -> Amount:
        return Amount(int(group_id not in self._group_uses), records, byte_count)

    def _fits(self, amount: Amount) -> bool:
        self.expire()
        return self._ledger.fits(amount)

    def _full(self, what: str) -> StoreFullError:
        held, limits, reserved = self._ledger.held, self._ledger.limits, self._ledger.reserved
        groups = "" if limits.groups == _UNBOUNDED else f"{held.groups} of {limits.groups} groups, "
        return StoreFullError(
            f"{what} does not fit into store {self._owner}: {groups}{held.records} of {limits.records} "
            f"records, {held.byte_count} of {limits.byte_count} bytes are held, and {reserved.records} "
            f"records, {reserved.byte_count} bytes reserved"
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(f"store {self._owner} was closed")

    def _check_new(self, record: TrajectoryRecord) -> None:
        self._check_open()
        if record.record_id in self._encoded:
            raise StoreError(f"record {record.record_id} is held by store {self._owner} already")

    def _take_reserved(self, record: TrajectoryRecord, byte_count: int, lease: Lease) -> None:
        """Moves what ``record`` needs from its reservation to what is held, or changes nothing."""
        self.expire()
        (name,) = self._leases.check(lease)
        self._check_new(record)
        reserved = self._reservations[name]
        if record.group_id != reserved.group_id:
            raise StoreError(
                f"record {record.record_id} is of group {record.group_id}; its reservation is for group "
                f"{reserved.group_id}"
            )
        amount = Amount(0, 1, byte_count)
        if not amount.is_within(reserved.left):
            raise StoreFullError(
                f"record {record.record_id} of {byte_count} bytes does not fit into its reservation in store "
                f"{self._owner}, of which {reserved.left.records} records, {reserved.left.byte_count} bytes "
                "are left"
            )
        self._use_group(record.group_id)
        reserved.left -= amount
        self._ledger.unreserve(amount)
        self._ledger.take(amount)
        if reserved.left.records == 0:
            self._leases.release(lease)
            self._end_reservation(name)

    def _end_reservation(self, name: str) -> None:
        reserved = self._reservations.pop(name)
        self._ledger.unreserve(reserved.left)
        self._leave_group(reserved.group_id)
        self._room.notify()

    def _insert(self, record: TrajectoryRecord, encoded: bytes) -> TrajectoryRef:
        self._use_group(record.group_id)
        self._ledger.take(Amount(0, 1, len(encoded)))
        return self._keep(record, encoded)

    def _keep(self, record: TrajectoryRecord, encoded: bytes) -> TrajectoryRef:
        self._encoded[record.record_id] = encoded
        self._group_of[record.record_id] = record.group_id
        if record.error is not None:
            self._failed.add(record.record_id)
        return trajectory_ref(record, self._owner, byte_count=len(encoded))

    def _use_group(self, group_id: str) -> None:
        if group_id not in self._group_uses:
            self._ledger.take(Amount(groups=1))
        self._group_uses[group_id] += 1

    def _leave_group(self, group_id: str) -> None:
        self._group_uses[group_id] -= 1
        if not self._group_uses[group_id]:
            del self._group_uses[group_id]
            self._ledger.give(Amount(groups=1))

    def _check_held(self, refs: Sequence[TrajectoryRef]) -> None:
        if not refs:
            raise StoreError(f"a fetch from store {self._owner} names no records")
        for ref in refs:
            if ref.owner != self._owner:
                raise StoreError(f"record {ref.record_id} is with {ref.owner!r}, not with {self._owner!r}")
        missing = tuple(ref.record_id for ref in refs if ref.record_id not in self._encoded)
        if missing:
            raise RecordsMissingError(self._owner, missing, len(refs))


def _what(record: TrajectoryRecord, encoded: bytes) -> str:
    return f"record {record.record_id} of {len(encoded)} bytes"
