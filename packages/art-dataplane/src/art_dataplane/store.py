"""Records that stay with the process that made them.

What always holds: the records and bytes held never exceed the bounds; a record is encoded once, when it is
put, and never changes; whoever comes with a lower fence than was seen for a record gets nothing.

One event loop uses a store; the synchronous methods may be called from it between awaits.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from art_dataplane.arrays import decode, encode
from art_dataplane.errors import DeadlineError, StoreError, StoreFullError
from art_dataplane.leases import FenceGate, Lease
from art_dataplane.locations import INLINE_LIMIT, InlineLocation, Location, ShmLocation
from art_dataplane.records import TrajectoryRecord, TrajectoryRef, trajectory_ref
from art_dataplane.segments import map_location
from art_dataplane.shm import ShmSegmentStore
from art_dataplane.waiting import Signal


class StoreStats(msgspec.Struct, frozen=True):
    """What a store holds, and its bounds.

    Args:
        record_count: records held.
        byte_count: bytes of their MessagePack.
        failed_count: failed rollouts among them.
        max_records: bound on the records.
        max_bytes: bound on the bytes.
    """

    record_count: int
    byte_count: int
    failed_count: int
    max_records: int
    max_bytes: int


class RecordOwner(Protocol):
    """Whoever keeps records; reached in process, or through RPC by what the runtime makes of it."""

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        """Where the records' MessagePack is, one array in the order of ``refs``; ``lease`` is on all of them.

        Raises:
            StoreError: a record is not held.
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


class TrajectoryStore:
    """Holds the records of one owner; implements :class:`RecordOwner`.

    Args:
        owner: the name under which others reach this store; goes into every reference.
        max_records: bound on the records held.
        max_bytes: bound on their MessagePack together, in bytes.
        segments: where fetches of :data:`INLINE_LIMIT` bytes and more are put; without it they are an error.

    Raises:
        StoreError: a bound is not positive.
    """

    def __init__(
        self, owner: str, max_records: int, max_bytes: int, *, segments: ShmSegmentStore | None = None
    ) -> None:
        if max_records <= 0 or max_bytes <= 0:
            raise StoreError(
                f"store {owner}: the bounds {max_records} records, {max_bytes} bytes must be positive"
            )
        self._owner = owner
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._segments = segments
        self._encoded: dict[str, bytes] = {}
        self._failed: set[str] = set()
        self._byte_count = 0
        self._gate = FenceGate()
        self._fetched: dict[tuple[str, ...], tuple[int, ShmLocation]] = {}
        self._room = Signal()

    @property
    def owner(self) -> str:
        """The name under which others reach this store."""
        return self._owner

    def put(self, record: TrajectoryRecord) -> TrajectoryRef:
        """Keeps ``record`` and returns the reference to it.

        Raises:
            RecordError: it is not valid.
            StoreFullError: it does not fit now.
            StoreError: its id is held already.
        """
        record.validate()
        return self._insert(record, encode(record))

    async def put_when_room(self, record: TrajectoryRecord, deadline_s: float) -> TrajectoryRef:
        """Keeps ``record`` as :meth:`put` does, but waits for room.

        Raises:
            RecordError: it is not valid.
            StoreFullError: it would not fit into an empty store.
            StoreError: its id is held already.
            DeadlineError: there was no room within ``deadline_s`` seconds.
        """
        record.validate()
        encoded = encode(record)
        if len(encoded) > self._max_bytes:
            raise self._full(record.record_id, len(encoded))
        if not await self._room.wait_until(lambda: self._fits(len(encoded)), deadline_s):
            error = self._full(record.record_id, len(encoded))
            raise DeadlineError(f"{error}; waited {deadline_s} s") from error
        return self._insert(record, encoded)

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        """Where the records' MessagePack is; read it with :func:`read_records`.

        Below :data:`INLINE_LIMIT` bytes they are inline, else in a segment that lives until all its records
        are dropped or one is fetched under a higher fence. Asking again under the same fence gives the same
        segment.

        Args:
            refs: of records held here, at least one.
            lease: the queue's, on all of them; a fence below one seen before is refused.
            deadline_s: seconds the caller waits; above 0.

        Raises:
            StoreError: no refs, one of another owner, a record that is not held, or bytes for which there are
                no segments.
            LeaseError: a higher fence was seen for one of the records.
            ShmFullError: no room for the segment.
            DeadlineError: ``deadline_s`` is not above 0.
        """
        if deadline_s <= 0:
            raise DeadlineError(f"fetch of {len(refs)} records: the deadline of {deadline_s} s has passed")
        ids = tuple(ref.record_id for ref in refs)
        self._check_held(refs)
        self._gate.admit(ids, lease)
        self._drop_fetched_below(ids, lease.fence)
        parts = [self._encoded[record_id] for record_id in ids]
        byte_count = sum(map(len, parts)) + 5
        if byte_count < INLINE_LIMIT:
            return InlineLocation(b"".join((_array_header(len(parts)), *parts)))
        if self._segments is None:
            raise StoreError(
                f"store {self._owner}: {byte_count} bytes exceed the {INLINE_LIMIT} that travel inline, and "
                "this store was made without segments; pass a ShmSegmentStore"
            )
        known = self._fetched.get(ids)
        if known is None:
            known = (lease.fence, _write_parts([_array_header(len(parts)), *parts], self._segments))
            self._fetched[ids] = known
        return known[1]

    async def drop(self, refs: Sequence[TrajectoryRef]) -> int:
        """Forgets the records of ``refs``, also under a lease in force; returns how many were held."""
        held = [ref.record_id for ref in refs if ref.record_id in self._encoded]
        for record_id in held:
            self._byte_count -= len(self._encoded.pop(record_id))
            self._failed.discard(record_id)
        self._gate.forget(held)
        for ids in [ids for ids in self._fetched if not any(name in self._encoded for name in ids)]:
            self._drop_fetched(ids)
        self._room.notify()
        return len(held)

    async def stats(self) -> StoreStats:
        """What is held now."""
        return StoreStats(
            record_count=len(self._encoded),
            byte_count=self._byte_count,
            failed_count=len(self._failed),
            max_records=self._max_records,
            max_bytes=self._max_bytes,
        )

    def _fits(self, byte_count: int) -> bool:
        return len(self._encoded) < self._max_records and self._byte_count + byte_count <= self._max_bytes

    def _full(self, record_id: str, byte_count: int) -> StoreFullError:
        return StoreFullError(
            f"record {record_id} of {byte_count} bytes does not fit into store {self._owner}: "
            f"{len(self._encoded)} of {self._max_records} records, {self._byte_count} of {self._max_bytes} "
            "bytes are held"
        )

    def _insert(self, record: TrajectoryRecord, encoded: bytes) -> TrajectoryRef:
        if record.record_id in self._encoded:
            raise StoreError(f"record {record.record_id} is held by store {self._owner} already")
        if not self._fits(len(encoded)):
            raise self._full(record.record_id, len(encoded))
        self._encoded[record.record_id] = encoded
        self._byte_count += len(encoded)
        if record.error is not None:
            self._failed.add(record.record_id)
        return trajectory_ref(record, self._owner, byte_count=len(encoded))

    def _check_held(self, refs: Sequence[TrajectoryRef]) -> None:
        if not refs:
            raise StoreError(f"a fetch from store {self._owner} names no records")
        for ref in refs:
            if ref.owner != self._owner:
                raise StoreError(f"record {ref.record_id} is with {ref.owner!r}, not with {self._owner!r}")
        missing = [ref.record_id for ref in refs if ref.record_id not in self._encoded]
        if missing:
            raise StoreError(
                f"store {self._owner} does not hold {len(missing)} of {len(refs)} records, the first "
                f"{missing[0]}: dropped, or never put here"
            )

    def _drop_fetched_below(self, ids: Iterable[str], fence: int) -> None:
        asked = set(ids)
        for key in [
            key for key, (seen, _) in self._fetched.items() if seen < fence and not asked.isdisjoint(key)
        ]:
            self._drop_fetched(key)

    def _drop_fetched(self, ids: tuple[str, ...]) -> None:
        _, location = self._fetched.pop(ids)
        if self._segments is not None:
            self._segments.drop(location)


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


def _array_header(count: int) -> bytes:
    """The MessagePack header of an array of ``count`` elements, always in its five-byte form."""
    return b"\xdd" + count.to_bytes(4, "big")


def _write_parts(parts: list[bytes], segments: ShmSegmentStore) -> ShmLocation:
    with segments.reserve(sum(map(len, parts))) as reservation:
        end = 0
        for part in parts:
            reservation.buffer[end : end + len(part)] = part
            end += len(part)
        return reservation.commit()
