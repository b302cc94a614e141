"""The controller's queue of references to groups of trajectories.

What always holds:

- Groups, records and bytes held (waiting and leased) never exceed the limits; a lower limit set by
  :meth:`TrajectoryQueue.resize` only stops puts until enough was consumed.
- A group is waiting, under exactly one lease, or gone. It goes only when a lease in force is released as
  consumed.
- A lease that expired gives its groups back at the place where they were; its release is then refused.

So a group is trained on at most once if its lease is released as consumed before the training step, and if
what a refused release stood for is thrown away. One event loop uses a queue.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from art_dataplane.errors import DeadlineError, QueueError
from art_dataplane.leases import Lease, LeaseTable, Outcome
from art_dataplane.records import TrajectoryRef
from art_dataplane.waiting import Signal

FENCES_PER_EPOCH = 1 << 32


class QueueLimits(msgspec.Struct, frozen=True):
    """Bounds on what a queue holds, waiting and leased, each at least 1.

    Args:
        groups: groups of trajectories.
        records: records in all groups.
        byte_count: bytes of these records' MessagePack, which their owners hold.
    """

    groups: int
    records: int
    byte_count: int


class SelectionRule(msgspec.Struct, frozen=True):
    """Which groups to take.

    Args:
        order: the group that was put first, or last.
        oldest_version: groups with a trainable record that has tokens of an older policy version are stale.
    """

    order: Literal["oldest", "newest"] = "oldest"
    oldest_version: int = 0


class Selection(msgspec.Struct, frozen=True):
    """Groups under one lease.

    Args:
        groups: references, group by group. Failed records (``ok`` is False) are part of their groups, so that
            nobody loses them unseen.
        lease: on all the groups.
        stale: the groups are too old by the rule: to be released, not trained on.
    """

    groups: tuple[tuple[TrajectoryRef, ...], ...]
    lease: Lease
    stale: bool = False

    @property
    def refs(self) -> tuple[TrajectoryRef, ...]:
        """All references, group after group."""
        return tuple(ref for group in self.groups for ref in group)

    @property
    def failed(self) -> tuple[TrajectoryRef, ...]:
        """The references to failed rollouts."""
        return tuple(ref for group in self.groups for ref in group if not ref.ok)


class QueueStats(msgspec.Struct, frozen=True):
    """What a queue holds now, and counts since it began.

    Args:
        waiting_groups: groups that can be selected.
        leased_groups: groups under a lease.
        records: records of all these groups.
        byte_count: bytes of these records' MessagePack.
        failed_records: failed rollouts among these records.
        limits: the bounds in force.
        put_groups: groups put since the queue began.
        consumed_groups: groups whose lease was released as consumed since then.
        discarded_groups: groups given back by a release since then; a group counts each time.
        expired_leases: leases that passed their deadline since then.
        stale_groups: groups handed out as stale since then.
    """

    waiting_groups: int
    leased_groups: int
    records: int
    byte_count: int
    failed_records: int
    limits: QueueLimits
    put_groups: int
    consumed_groups: int
    discarded_groups: int
    expired_leases: int
    stale_groups: int


class _Group(msgspec.Struct, frozen=True):
    group_id: str
    refs: tuple[TrajectoryRef, ...]
    place: int

    @property
    def byte_count(self) -> int:
        return sum(ref.byte_count for ref in self.refs)

    def is_stale(self, oldest_version: int) -> bool:
        return any(ref.ok and ref.min_version < oldest_version for ref in self.refs)


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
        self._leases = LeaseTable(clock=clock, first_fence=epoch * FENCES_PER_EPOCH + 1)
        self._groups: dict[str, _Group] = {}
        self._waiting: dict[str, _Group] = {}
        self._record_ids: set[str] = set()
        self._byte_count = 0
        self._next_place = 0
        self._room = Signal()
        self._filled = Signal()
        self._put_groups = 0
        self._consumed = 0
        self._discarded = 0
        self._expired = 0
        self._stale = 0

    async def put(self, refs: Sequence[TrajectoryRef], deadline_s: float) -> None:
        """Adds one group, waiting for room.

        Args:
            refs: the group's references, all with one ``group_id``.
            deadline_s: seconds to wait for room.

        Raises:
            QueueError: no refs, refs of several groups, a group or record that is here already, or a group
                that is larger than the limits.
            DeadlineError: there was no room within ``deadline_s`` seconds.
        """
        group = self._checked_group(refs)
        if not await self._room.wait_until(lambda: self._fits(group), deadline_s):
            raise DeadlineError(
                f"group {group.group_id} ({len(group.refs)} records, {group.byte_count} bytes) found no "
                f"room within {deadline_s} s: {len(self._groups)} groups, {len(self._record_ids)} records, "
                f"{self._byte_count} bytes are held, {self._leased_count()} groups of them leased; limits "
                f"{self._limits}"
            )
        self._check_new(group)
        group = msgspec.structs.replace(group, place=self._next_place)
        self._next_place += 1
        self._groups[group.group_id] = group
        self._waiting[group.group_id] = group
        self._record_ids.update(ref.record_id for ref in group.refs)
        self._byte_count += group.byte_count
        self._put_groups += 1
        self._filled.notify()

    async def select(
        self,
        count: int,
        rule: SelectionRule,
        deadline_s: float,
        *,
        holder: str = "packing",
        lease_s: float = 300.0,
    ) -> Selection:
        """Takes ``count`` groups under one lease as soon as there are so many.

        When stale groups are waiting it returns at once with these alone, marked ``stale``: release them
        (consumed to be rid of them), then select again.

        Args:
            count: how many groups.
            rule: which.
            deadline_s: seconds to wait for them.
            holder: who takes them, as messages name it.
            lease_s: seconds that the lease is good for.

        Raises:
            QueueError: ``count`` is not positive or above the limits, or ``lease_s`` is not positive.
            DeadlineError: there were fewer groups within ``deadline_s`` seconds.
        """
        if not 0 < count <= self._limits.groups or not lease_s > 0:
            raise QueueError(
                f"cannot select {count} groups for {lease_s} s: from 1 to {self._limits.groups} groups, for "
                "longer than 0 s"
            )

        def is_ready() -> bool:
            self.expire()
            return len(self._waiting) >= count or bool(self._stale_groups(rule))

        if not await self._filled.wait_until(
            is_ready, deadline_s, next_look_s=self._leases.seconds_to_next_expiry
        ):
            raise DeadlineError(
                f"{holder!r} asked for {count} groups; {len(self._waiting)} were waiting and "
                f"{self._leased_count()} leased after {deadline_s} s"
            )
        stale = self._stale_groups(rule)
        if stale:
            return self._take(stale, holder, lease_s, stale=True)
        ordered = sorted(
            self._waiting.values(), key=lambda group: group.place, reverse=rule.order == "newest"
        )
        return self._take(ordered[:count], holder, lease_s, stale=False)

    def release(self, lease: Lease, outcome: Outcome) -> tuple[TrajectoryRef, ...]:
        """Ends a lease.

        Args:
            lease: of a selection.
            outcome: consumed groups are gone (owners may drop the records), discarded ones wait again.

        Returns:
            The references that the lease was on.

        Raises:
            LeaseError: the lease expired, ended before, or is not of this queue; throw away what was made of
                it.
        """
        self.expire()
        groups = [self._groups[name] for name in self._leases.release(lease)]
        if outcome is Outcome.CONSUMED:
            self._consumed += len(groups)
            for group in groups:
                del self._groups[group.group_id]
                self._record_ids.difference_update(ref.record_id for ref in group.refs)
                self._byte_count -= group.byte_count
            self._room.notify()
        else:
            self._discarded += len(groups)
            self._give_back(groups)
        return tuple(ref for group in groups for ref in group.refs)

    def renew(self, lease: Lease, lease_s: float) -> Lease:
        """Moves the deadline of ``lease`` to ``lease_s`` seconds from now.

        Raises:
            LeaseError: it is not in force.
        """
        return self._leases.renew(lease, lease_s)

    def expire(self) -> tuple[Lease, ...]:
        """Gives back what is under leases past their deadline; returns these.

        Every other call does this as well.
        """
        ended = self._leases.expire()
        self._expired += len(ended)
        for _, names in ended:
            self._give_back([self._groups[name] for name in names])
        return tuple(lease for lease, _ in ended)

    def resize(self, limits: QueueLimits) -> None:
        """Sets new limits; nothing that is held is dropped.

        Raises:
            QueueError: a limit is not positive.
        """
        self._limits = _checked(limits)
        self._room.notify()

    def stats(self) -> QueueStats:
        """What is held now."""
        self.expire()
        return QueueStats(
            waiting_groups=len(self._waiting),
            leased_groups=self._leased_count(),
            records=len(self._record_ids),
            byte_count=self._byte_count,
            failed_records=sum(not ref.ok for group in self._groups.values() for ref in group.refs),
            limits=self._limits,
            put_groups=self._put_groups,
            consumed_groups=self._consumed,
            discarded_groups=self._discarded,
            expired_leases=self._expired,
            stale_groups=self._stale,
        )

    def _leased_count(self) -> int:
        return len(self._groups) - len(self._waiting)

    def _fits(self, group: _Group) -> bool:
        return (
            len(self._groups) + 1 <= self._limits.groups
            and len(self._record_ids) + len(group.refs) <= self._limits.records
            and self._byte_count + group.byte_count <= self._limits.byte_count
        )

    def _checked_group(self, refs: Sequence[TrajectoryRef]) -> _Group:
        group_ids = {ref.group_id for ref in refs}
        if len(group_ids) != 1:
            raise QueueError(
                f"a put takes the references of one group, not of {len(group_ids)}: {sorted(group_ids)}"
            )
        group = _Group(group_ids.pop(), tuple(refs), -1)
        if len({ref.record_id for ref in refs}) != len(refs):
            raise QueueError(f"group {group.group_id} names a record twice among its {len(refs)}")
        if len(refs) > self._limits.records or group.byte_count > self._limits.byte_count:
            raise QueueError(
                f"group {group.group_id} ({len(refs)} records, {group.byte_count} bytes) is larger than the "
                f"whole queue: {self._limits}"
            )
        self._check_new(group)
        return group

    def _check_new(self, group: _Group) -> None:
        if group.group_id in self._groups:
            raise QueueError(f"group {group.group_id} is in the queue already")
        known = [ref.record_id for ref in group.refs if ref.record_id in self._record_ids]
        if known:
            raise QueueError(f"record {known[0]} of group {group.group_id} is in the queue already")

    def _stale_groups(self, rule: SelectionRule) -> list[_Group]:
        if rule.oldest_version <= 0:
            return []
        return [group for group in self._waiting.values() if group.is_stale(rule.oldest_version)]

    def _take(self, groups: Sequence[_Group], holder: str, lease_s: float, *, stale: bool) -> Selection:
        lease = self._leases.grant((group.group_id for group in groups), holder, lease_s)
        for group in groups:
            del self._waiting[group.group_id]
        self._stale += len(groups) if stale else 0
        return Selection(tuple(group.refs for group in groups), lease, stale)

    def _give_back(self, groups: Iterable[_Group]) -> None:
        self._waiting.update((group.group_id, group) for group in groups)
        self._filled.notify()


def _checked(limits: QueueLimits) -> QueueLimits:
    if limits.groups <= 0 or limits.records <= 0 or limits.byte_count <= 0:
        raise QueueError(f"all limits must be positive: {limits}")
    return limits
