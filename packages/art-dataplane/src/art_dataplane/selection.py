"""What a queue is asked for, what it hands out, and what it counts."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from art_dataplane.choices import check_choices
from art_dataplane.errors import QueueError
from art_dataplane.leases import Lease
from art_dataplane.records import LostGroup, TrajectoryRef


class QueueLimits(msgspec.Struct, frozen=True):
    """Bounds on what a queue holds (waiting, leased and reserved), each at least 1.

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

    def __post_init__(self) -> None:
        check_choices(self)


class Selection(msgspec.Struct, frozen=True):
    """Groups under one lease.

    Args:
        groups: references, group by group. Failed records (``ok`` is False) are part of their groups, so that
            nobody loses them unseen.
        lease: on all the groups.
        stale: the groups are too old by the rule: to be released, not trained on.
        lost: records of these groups are gone, one entry for each group: to be released, not trained on.
            Empty in a selection to be trained on.
    """

    groups: tuple[tuple[TrajectoryRef, ...], ...]
    lease: Lease
    stale: bool = False
    lost: tuple[LostGroup, ...] = ()

    @property
    def refs(self) -> tuple[TrajectoryRef, ...]:
        """All references, group after group."""
        return tuple(ref for group in self.groups for ref in group)

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The ids of the groups, in their order."""
        return tuple(group[0].group_id for group in self.groups)

    @property
    def failed(self) -> tuple[TrajectoryRef, ...]:
        """The references to failed rollouts."""
        return tuple(ref for group in self.groups for ref in group if not ref.ok)

    def without(self, group_ids: Iterable[str]) -> "Selection":
        """The same selection, under the same lease, without the groups of ``group_ids``.

        Raises:
            QueueError: one of them is not part of it.
        """
        dropped = frozenset(group_ids)
        foreign = dropped.difference(self.group_ids)
        if foreign:
            raise QueueError(f"group {min(foreign)} is not among the {len(self.groups)} of this selection")
        return msgspec.structs.replace(
            self, groups=tuple(group for group in self.groups if group[0].group_id not in dropped)
        )


class QueueStats(msgspec.Struct, frozen=True):
    """What a queue holds at one instant, and counts since it began.

    Two sums always hold: every group that was put is waiting, lost and waiting, leased, consumed, gone as
    lost, or was in the queue when it was closed; and held plus reserved is within the limits, unless these
    were lowered.

    Args:
        waiting_groups: groups that can be selected to be trained on.
        lost_waiting_groups: groups that lost records and wait to be handed out as lost.
        leased_groups: groups under a lease.
        records: records of all these groups.
        byte_count: bytes of these records' MessagePack.
        failed_records: failed rollouts among these records.
        reserved_groups: groups for which there is a reservation.
        reserved_records: records for which there is one.
        reserved_bytes: bytes for which there is one.
        limits: the bounds in force.
        limits_revision: counts the resizes; the next one must name it.
        waiting_puts: callers of put and reserve that wait for room.
        waiting_selects: callers of select that wait for groups.
        put_groups: groups put since the queue began.
        consumed_groups: groups whose lease was released as consumed since then, without the lost ones.
        lost_groups: groups that lost records and whose lease was released as consumed since then.
        discarded_groups: groups given back by a release since then; a group counts each time.
        closed_groups: groups that were here when the queue was closed.
        expired_leases: leases and reservations that passed their deadline since then.
        revoked_leases: leases and reservations that were taken from dead holders since then.
        stale_groups: groups handed out as stale since then.
    """

    waiting_groups: int
    lost_waiting_groups: int
    leased_groups: int
    records: int
    byte_count: int
    failed_records: int
    reserved_groups: int
    reserved_records: int
    reserved_bytes: int
    limits: QueueLimits
    limits_revision: int
    waiting_puts: int
    waiting_selects: int
    put_groups: int
    consumed_groups: int
    lost_groups: int
    discarded_groups: int
    closed_groups: int
    expired_leases: int
    revoked_leases: int
    stale_groups: int
