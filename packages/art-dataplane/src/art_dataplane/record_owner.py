"""What others see of a process that keeps records: how to ask it for them, and how to read its answer."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from art_dataplane.arrays import decode
from art_dataplane.leases import Lease
from art_dataplane.locations import Location
from art_dataplane.records import TrajectoryRecord, TrajectoryRef
from art_dataplane.segments import map_location


class StoreStats(msgspec.Struct, frozen=True):
    """What a store holds at one instant, and its bounds.

    Args:
        record_count: records held.
        byte_count: bytes of their MessagePack.
        failed_count: failed rollouts among them.
        max_records: bound on the records.
        max_bytes: bound on the bytes.
        group_count: groups that have records or reservations here.
        max_groups: bound on the groups; None for none.
        reserved_records: records for which there is a reservation.
        reserved_bytes: bytes for which there is one.
        limits_revision: counts the resizes; the next one must name it.
        waiting_puts: callers that wait for room.
        expired_reservations: reservations that passed their deadline since the store began.
    """

    record_count: int
    byte_count: int
    failed_count: int
    max_records: int
    max_bytes: int
    group_count: int = 0
    max_groups: int | None = None
    reserved_records: int = 0
    reserved_bytes: int = 0
    limits_revision: int = 0
    waiting_puts: int = 0
    expired_reservations: int = 0


class RecordOwner(Protocol):
    """Whoever keeps records; reached in process, or through RPC by what the runtime makes of it."""

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        """Where the records' MessagePack is, one array in the order of ``refs``; ``lease`` is on all of them.

        Raises:
            RecordsMissingError: some records are not held, and which.
            OwnerDiedError: the process that held them is gone.
            LeaseError: the fence is stale.
            DeadlineError: not within ``deadline_s`` seconds.
        """
        ...

    async def drop(self, refs: Sequence[TrajectoryRef]) -> int:
        """Forgets the records of ``refs`` and what was made for their fetches; returns how many were held."""
        ...

    async def stats(self) -> StoreStats:
        """What is held now."""
        ...


def read_records(location: Location) -> list[TrajectoryRecord]:
    """Decodes the records at ``location``, which :meth:`RecordOwner.fetch` gave.

    The arrays are read-only views; memory of a segment stays mapped until the last of them is gone.

    Raises:
        ShmError: the segment is gone.
        msgspec.ValidationError: the bytes are not a list of records.
    """
    mapped = map_location(location)
    try:
        return decode(mapped.view, list[TrajectoryRecord])
    finally:
        mapped.close()
