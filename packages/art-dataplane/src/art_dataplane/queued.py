"""What is in a queue, and where: waiting, under a lease, reserved, or known to have lost records.

Nothing here waits, and nothing knows of time: :class:`art_dataplane.queue.TrajectoryQueue` does.
"""

from collections.abc import Iterable, Sequence

import msgspec

from art_dataplane.bounds import Amount, Ledger
from art_dataplane.errors import QueueError, RecordError
from art_dataplane.records import LostGroup, TrajectoryRef
from art_dataplane.selection import SelectionRule


class QueuedGroup(msgspec.Struct, frozen=True):
    """One group.

    Args:
        group_id: its name.
        refs: its references.
        place: in the order of arrival; -1 before it arrived.
    """

    group_id: str
    refs: tuple[TrajectoryRef, ...]
    place: int = -1

    @classmethod
    def of(cls, refs: Sequence[TrajectoryRef]) -> "QueuedGroup":
        """The group of ``refs``.

        Raises:
            QueueError: no refs, refs of several groups, a malformed one, or one record twice.
        """
        group_ids = {ref.group_id for ref in refs}
        if len(group_ids) != 1:
            raise QueueError(
                f"a put takes the references of one group, not of {len(group_ids)}: {sorted(group_ids)}"
            )
        group_id = group_ids.pop()
        if len({ref.record_id for ref in refs}) != len(refs):
            raise QueueError(f"group {group_id} names a record twice among its {len(refs)}")
        for ref in refs:
            try:
                ref.validate()
            except RecordError as error:
                raise QueueError(str(error)) from error
        return cls(group_id, tuple(refs))

    @property
    def amount(self) -> Amount:
        """What it takes of the bounds."""
        return Amount(1, len(self.refs), sum(ref.byte_count for ref in self.refs))

    @property
    def failed(self) -> int:
        """Its records of rollouts that failed."""
        return sum(not ref.ok for ref in self.refs)

    def is_stale(self, oldest_version: int) -> bool:
        """Whether a record has tokens of a policy version before ``oldest_version``."""
        return any(ref.ok and ref.min_version < oldest_version for ref in self.refs)


class Chosen(msgspec.Struct, frozen=True):
    """What a selection is to be on.

    Args:
        groups: which.
        stale: they are too old to be trained on.
        lost: what is gone of them, for groups that lost records; otherwise empty.
    """

    groups: list[QueuedGroup]
    stale: bool = False
    lost: tuple[LostGroup, ...] = ()


class QueuedGroups:
    """The groups of a queue and its reservations, within bounds. Not thread-safe.

    Attributes:
        ledger: the bounds and what is taken of them.
        groups: all that are held, also leased ones, by id.
        waiting: those of them that can be handed out to be trained on.
        lost_waiting: those that lost records and are not handed out yet.
        reserved: room for groups to come, by their id.
        failed_records: records of failed rollouts among all that are held.
        put_groups: groups that ever came.
        consumed_groups: groups that left and had lost nothing.
        gone_lost_groups: groups that left and had lost records.

    Args:
        limits: the bounds.
    """

    def __init__(self, limits: Amount) -> None:
        self.ledger = Ledger(limits)
        self.groups: dict[str, QueuedGroup] = {}
        self.waiting: dict[str, QueuedGroup] = {}
        self.lost_waiting: dict[str, QueuedGroup] = {}
        self.reserved: dict[str, Amount] = {}
        self.failed_records = 0
        self.put_groups = 0
        self.consumed_groups = 0
        self.gone_lost_groups = 0
        self._lost: dict[str, LostGroup] = {}
        self._record_ids: set[str] = set()

    @property
    def leased_count(self) -> int:
        """Groups that were taken and neither came back nor left."""
        return len(self.groups) - len(self.waiting) - len(self.lost_waiting)

    def check_new(self, group_id: str, refs: Sequence[TrajectoryRef]) -> None:
        """Checks that neither the group nor a record of it is here.

        Raises:
            QueueError: one is.
        """
        if group_id in self.groups or group_id in self.reserved:
            raise QueueError(f"group {group_id} is in the queue already, or room is reserved for it")
        self.check_records(group_id, refs)

    def check_records(self, group_id: str, refs: Sequence[TrajectoryRef]) -> None:
        """Checks that no record of the group is here.

        Raises:
            QueueError: one is.
        """
        known = [ref.record_id for ref in refs if ref.record_id in self._record_ids]
        if known:
            raise QueueError(f"record {known[0]} of group {group_id} is in the queue already")

    def reserve(self, group_id: str, amount: Amount) -> None:
        """Keeps room, which there is, for a group to come."""
        self.reserved[group_id] = amount
        self.ledger.reserve(amount)

    def unreserve(self, group_id: str) -> None:
        """Keeps it no more."""
        self.ledger.unreserve(self.reserved.pop(group_id))

    def add(self, group: QueuedGroup) -> None:
        """Lets a group wait, last in the order of arrival."""
        group = msgspec.structs.replace(group, place=self.put_groups)
        self.groups[group.group_id] = self.waiting[group.group_id] = group
        self._record_ids.update(ref.record_id for ref in group.refs)
        self.ledger.take(group.amount)
        self.failed_records += group.failed
        self.put_groups += 1

    def can_take(self, count: int, rule: SelectionRule) -> bool:
        """Whether :meth:`choose` has something to give."""
        return len(self.waiting) >= count or bool(self.lost_waiting) or bool(self._stale(rule))

    def choose(self, count: int, rule: SelectionRule) -> Chosen:
        """Groups that lost records alone, if there are any; else stale ones alone; else the first ``count``
        of those that wait, in the order of ``rule``."""
        lost = list(self.lost_waiting.values())
        if lost:
            return Chosen(lost, lost=tuple(self._lost[group.group_id] for group in lost))
        stale = self._stale(rule)
        if stale:
            return Chosen(stale, stale=True)
        newest = rule.order == "newest"
        ordered = sorted(self.waiting.values(), key=lambda group: group.place, reverse=newest)
        return Chosen(ordered[:count])

    def take(self, groups: Iterable[QueuedGroup]) -> None:
        """They wait no more: there is a lease on them."""
        for group in groups:
            self.waiting.pop(group.group_id, None)
            self.lost_waiting.pop(group.group_id, None)

    def give_back(self, groups: Iterable[QueuedGroup]) -> None:
        """They wait again, where they were in the order of arrival."""
        for group in groups:
            (self.lost_waiting if group.group_id in self._lost else self.waiting)[group.group_id] = group

    def remove(self, group: QueuedGroup) -> None:
        """A group that was taken leaves."""
        del self.groups[group.group_id]
        self._record_ids.difference_update(ref.record_id for ref in group.refs)
        self.ledger.give(group.amount)
        self.failed_records -= group.failed
        if self._lost.pop(group.group_id, None) is None:
            self.consumed_groups += 1
        else:
            self.gone_lost_groups += 1

    def with_records_of(self, owner: str, reason: str) -> list[LostGroup]:
        """What is gone when all records of ``owner`` are, for ``reason``."""
        return [
            LostGroup(
                group.group_id,
                tuple(ref.record_id for ref in group.refs if ref.owner == owner),
                (owner,),
                reason,
            )
            for group in self.groups.values()
            if any(ref.owner == owner for ref in group.refs)
        ]

    def mark_lost(self, lost: Iterable[LostGroup]) -> tuple[LostGroup, ...]:
        """Notes what is gone of groups; those that wait, wait as lost from now on.

        Returns:
            All that is gone of each of them that is held here.
        """
        known = []
        for loss in lost:
            if loss.group_id not in self.groups:
                continue
            before = self._lost.get(loss.group_id)
            self._lost[loss.group_id] = loss if before is None else before.joined(loss)
            known.append(self._lost[loss.group_id])
            group = self.waiting.pop(loss.group_id, None)
            if group is not None:
                self.lost_waiting[loss.group_id] = group
        return tuple(known)

    def clear(self) -> tuple[TrajectoryRef, ...]:
        """Forgets everything but the counts.

        Returns:
            The references of all groups that were held.
        """
        refs = tuple(ref for group in self.groups.values() for ref in group.refs)
        for held in (self.groups, self.waiting, self.lost_waiting, self._lost, self.reserved):
            held.clear()
        self._record_ids.clear()
        self.failed_records = 0
        self.ledger = Ledger(self.ledger.limits)
        return refs

    def _stale(self, rule: SelectionRule) -> list[QueuedGroup]:
        if rule.oldest_version <= 0:
            return []
        return [group for group in self.waiting.values() if group.is_stale(rule.oldest_version)]
