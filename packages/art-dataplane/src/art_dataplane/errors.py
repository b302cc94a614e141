"""The errors of this package. Each message has the numbers in it and says what to do next."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art_dataplane.records import LostGroup


class DataPlaneError(Exception):
    """Base of every error that this package raises on purpose."""


class RecordError(DataPlaneError, ValueError):
    """A record breaks an invariant of :mod:`art_dataplane.records`."""


class LeaseError(DataPlaneError):
    """A lease is stale, expired, released or was never granted."""


class DeadlineError(DataPlaneError, TimeoutError):
    """What was waited for did not happen within the deadline."""


class StoreError(DataPlaneError):
    """A record store was asked for something that it does not hold."""


class StoreFullError(StoreError):
    """A record does not fit into its owner's store."""


class StoreClosedError(StoreError):
    """The store was closed; what it held is gone."""


class RecordsMissingError(StoreError):
    """An owner does not hold records that it was asked for.

    Args:
        owner: who was asked.
        record_ids: what it does not hold.
        asked: for how many records it was asked.
    """

    def __init__(self, owner: str, record_ids: tuple[str, ...], asked: int) -> None:
        super().__init__(owner, record_ids, asked)
        self.owner = owner
        self.record_ids = record_ids
        self.asked = asked

    def __str__(self) -> str:
        """Which, of how many."""
        return (
            f"store {self.owner} does not hold {len(self.record_ids)} of {self.asked} records, the first "
            f"{self.record_ids[0]}: dropped, or never put here"
        )


class OwnerDiedError(StoreError):
    """The process that held records is gone, and they with it. An implementation of
    :class:`art_dataplane.RecordOwner` that reaches another process raises it when that one has ended.

    Args:
        owner: its name, as references carry it.
        reason: what is known of its end.
    """

    def __init__(self, owner: str, reason: str) -> None:
        super().__init__(owner, reason)
        self.owner = owner
        self.reason = reason

    def __str__(self) -> str:
        """Who, and why."""
        return f"the owner {self.owner!r} is gone with its records: {self.reason}"


class RecordsLostError(StoreError):
    """Records of some groups of a selection are gone; the other groups are as good as before.

    Args:
        groups: exactly the groups concerned.
        asked: how many groups the selection has.
    """

    def __init__(self, groups: "tuple[LostGroup, ...]", asked: int) -> None:
        super().__init__(groups, asked)
        self.groups = groups
        self.asked = asked

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The ids of the groups concerned."""
        return tuple(group.group_id for group in self.groups)

    def __str__(self) -> str:
        """Each group with what it lost, and what to do."""
        lost = "; ".join(map(str, self.groups))
        return (
            f"{len(self.groups)} of {self.asked} groups lost records: {lost}. Mark them lost and release "
            "them, then go on with Selection.without(error.group_ids)"
        )


class QueueError(DataPlaneError):
    """A group cannot be queued: malformed, a duplicate, or above the queue's bounds."""


class UnsatisfiableError(QueueError):
    """What was asked of a queue can never come under its limits, so that waiting is of no use."""


class QueueClosedError(QueueError):
    """The queue was closed; it takes and gives nothing any more."""


class StaleResizeError(DataPlaneError):
    """A resize was meant for other limits than those in force; nothing was changed."""


class PackingError(DataPlaneError, ValueError):
    """A selection cannot be packed as asked."""


class LookaheadError(DataPlaneError):
    """A batch could not be prepared ahead (its cause is the ``__cause__``), or the lookahead was closed."""


class ShmError(DataPlaneError):
    """A shared-memory segment is missing, malformed or used against its state."""


class ShmFullError(ShmError):
    """There is no room for a segment, in the store's bound or in the file system; nothing was written."""


class BatchError(DataPlaneError, ValueError):
    """A batch reference does not describe the bytes that it points to."""


class BatchClosedError(DataPlaneError):
    """A packed batch was used after it was closed (:meth:`art_dataplane.PackedBatch.close`)."""


class SnapshotError(DataPlaneError):
    """A snapshot cannot be written, or its bytes are not those of its manifest."""


class TransportError(DataPlaneError):
    """Bytes could not be moved from another host, or are not what their owner sent; nothing was kept."""
