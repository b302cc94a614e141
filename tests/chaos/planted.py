"""Faults that are planted to see them caught: queues that do one thing wrong each, and count how often."""

from collections.abc import Iterable
from typing import Any

from chaos.limits import QUEUE_LIMITS

from art_dataplane import TrajectoryQueue
from art_dataplane.bounds import Amount, Ledger
from art_dataplane.records import LostGroup


class FaultyQueue(TrajectoryQueue):
    """Counts how often it did what it must not."""

    planted = 0


class ForgetfulQueue(FaultyQueue):
    """Does not give back what was under a lease that ended by itself."""

    def _ended(self, ended: Any) -> Any:
        self.planted += len(ended)
        return super()._ended(tuple((lease, ()) for lease, _ in ended))


class BlamingQueue(FaultyQueue):
    """Counts one more group as lost whenever an owner dies: one that has nothing to do with it."""

    def drop_owner(self, owner: str, reason: str) -> tuple[LostGroup, ...]:
        for group in self._held.waiting.values():
            others = {ref.owner for ref in group.refs}
            if owner not in others:
                self.planted += 1
                records = tuple(ref.record_id for ref in group.refs)
                self.mark_lost([LostGroup(group.group_id, records, tuple(others), reason)])
                break
        return super().drop_owner(owner, reason)


class ForgettingLossesQueue(FaultyQueue):
    """Removes groups with lost records without a word."""

    def mark_lost(self, lost: Iterable[LostGroup]) -> tuple[LostGroup, ...]:
        known = super().mark_lost(lost)
        for group in [*self._held.lost_waiting.values()]:
            self.planted += 1
            del self._held.lost_waiting[group.group_id]
            self._held.remove(group)
        return known


class _BottomlessLedger(Ledger):
    def fits(self, amount: Amount) -> bool:
        return True


class BottomlessQueue(FaultyQueue):
    """Takes whatever comes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held.ledger = _BottomlessLedger(self._held.ledger.limits)


QUEUES = {
    "forgets-give-back": ForgetfulQueue,
    "blames-the-living": BlamingQueue,
    "loses-silently": ForgettingLossesQueue,
    "overfills": BottomlessQueue,
}
"""By the name of the fault."""

OTHERS = (
    "ignores-stale-fence",
    "changes-a-token",
    "keeps-records",
    "leaks-segments",
    "leaves-things",
)
"""Planted in the session and its workers, see there."""


def make_queue(fault: str) -> TrajectoryQueue:
    """The queue of a session, with the fault if it is one of queues."""
    return QUEUES.get(fault, TrajectoryQueue)(QUEUE_LIMITS)
