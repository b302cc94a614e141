"""The queue between the groups that a step is given and the packing of them.

What always holds:

- A group is consumed only when a batch was packed of it, or when the caller did not give it again after a
  step that failed. A packing that fails, or whose worker dies, gives its groups back: they wait here, and the
  same groups can be given to the next step.
- A group of which records are gone is named in a :class:`GroupsLost`, with what it lost, and no other group
  is.
- What is selected for a step is exactly what the step was given.
"""

from collections.abc import Callable, Sequence

import msgspec

from art.distributed.errors import GroupsLost, PartFailed, RuntimeFailure
from art.errors import ConfigError
from art_dataplane import (
    DeadlineError,
    Lease,
    LeaseError,
    LostGroup,
    Outcome,
    OwnerDiedError,
    ProcessIdentity,
    QueueError,
    QueueLimits,
    QueueStats,
    RecordsLostError,
    Selection,
    SelectionRule,
    TrajectoryQueue,
    TrajectoryRef,
)


class StepGroups:
    """Owned by one model's run; one step at a time uses it.

    Args:
        limits: bounds of the queue.
        end_of: says in words why the owner of a name is gone, or None while it lives.
    """

    def __init__(self, limits: QueueLimits, end_of: Callable[[str], str | None]) -> None:
        self._queue = TrajectoryQueue(limits)
        self._end_of = end_of

    def stats(self) -> QueueStats:
        """What is held now, and what became of the groups so far."""
        return self._queue.stats()

    async def withdraw_others(
        self, groups: Sequence[Sequence[TrajectoryRef]], deadline_s: float
    ) -> list[TrajectoryRef]:
        """Removes what waits here since a step that failed, but for those of ``groups``.

        Returns:
            The references of the groups that are gone from here.
        """
        given = {refs[0].group_id: tuple(refs) for refs in groups}
        removed: list[TrajectoryRef] = []
        while True:
            stats = self._queue.stats()
            if not stats.waiting_groups + stats.lost_waiting_groups:
                return removed
            taken = await self._queue.select(max(1, stats.waiting_groups), SelectionRule(), deadline_s)
            kept = (
                [] if taken.lost else [refs for refs in taken.groups if given.get(refs[0].group_id) == refs]
            )
            others = [name for name in taken.group_ids if name not in {refs[0].group_id for refs in kept}]
            if others:
                removed += self._queue.release(taken.lease, Outcome.CONSUMED, group_ids=others)
            if kept:
                self._queue.release(taken.lease, Outcome.DISCARDED)
            if not taken.lost:
                return removed

    async def take(
        self,
        groups: Sequence[Sequence[TrajectoryRef]],
        *,
        holder: str,
        process: ProcessIdentity | None,
        lease_s: float,
        deadline_s: float,
    ) -> Selection:
        """Puts the groups of a step, but for those that wait already, and takes all of them under one lease.

        Call :meth:`withdraw_others` first.

        Args:
            groups: references, group by group.
            holder: who packs them.
            process: the holder's, when it can be seen from here.
            lease_s: seconds that packing may take.
            deadline_s: seconds to wait for room.

        Raises:
            ConfigError: a group cannot be queued: malformed, given twice, or above the queue's bounds.
            GroupsLost: an owner of records is gone; it names the groups concerned, the others wait.
            RuntimeFailure: there was no room in time.
        """
        waiting = await self._waiting(deadline_s)
        try:
            for refs in groups:
                if tuple(refs) in waiting:
                    waiting.remove(tuple(refs))
                else:
                    await self._queue.put(refs, deadline_s)
            for owner in sorted({ref.owner for refs in groups for ref in refs}):
                reason = self._end_of(owner)
                if reason is not None:
                    self._queue.drop_owner(owner, reason)
            selection = await self._queue.select(
                len(groups), SelectionRule(), deadline_s, holder=holder, lease_s=lease_s, process=process
            )
        except QueueError as error:
            raise ConfigError(f"these groups cannot be trained on together: {error}") from error
        except OwnerDiedError as error:
            raise PartFailed(str(error)) from error
        except DeadlineError as error:
            raise RuntimeFailure(f"the step's groups could not be queued: {error}") from error
        if selection.lost:
            self._queue.release(selection.lease, Outcome.CONSUMED)
            raise GroupsLost(selection.lost, len(groups))
        return selection

    def consume(self, selection: Selection) -> None:
        """The selection is packed: its groups are gone from here.

        Raises:
            RuntimeFailure: its lease had ended; what was packed must not be trained on.
        """
        try:
            self._queue.release(selection.lease, Outcome.CONSUMED)
        except LeaseError as error:
            raise RuntimeFailure(
                f"packing {len(selection.groups)} groups took longer than their lease, so that the batch is "
                f"thrown away; give the same groups again: {error}"
            ) from error

    def give_back(self, selection: Selection) -> None:
        """The selection was not packed: its groups wait again. Nothing happens when its lease has ended."""
        if self._is_in_force(selection.lease):
            self._queue.release(selection.lease, Outcome.DISCARDED)

    def lose(self, selection: Selection, error: RecordsLostError) -> GroupsLost:
        """Records of some groups are gone: these go, the others of the selection wait again.

        Returns:
            What to raise.
        """
        lost = GroupsLost(tuple(map(self._explained, error.groups)), len(selection.groups))
        self._queue.mark_lost(error.groups)
        if self._is_in_force(selection.lease):
            self._queue.release(selection.lease, Outcome.CONSUMED, group_ids=error.group_ids)
            self.give_back(selection)
        return lost

    def holder_died(self, holder: str) -> None:
        """What ``holder`` had taken waits again."""
        self._queue.revoke_holder(holder)

    def _explained(self, lost: LostGroup) -> LostGroup:
        """With the end of the owners where it is known here, which says more than a call that failed."""
        ends = [end for owner in lost.owners if (end := self._end_of(owner)) is not None]
        return msgspec.structs.replace(lost, reason="; ".join(ends)) if ends else lost

    def _is_in_force(self, lease: Lease) -> bool:
        try:
            self._queue.check(lease)
        except LeaseError:
            return False
        return True

    async def _waiting(self, deadline_s: float) -> set[tuple[TrajectoryRef, ...]]:
        """The groups that wait; looked at under a lease that is given back at once."""
        count = self._queue.stats().waiting_groups
        if not count:
            return set()
        seen = await self._queue.select(count, SelectionRule(), deadline_s)
        self._queue.release(seen.lease, Outcome.DISCARDED)
        return set() if seen.lost else set(seen.groups)
