"""The packing worker: fetches leased records from their owners and writes batches into shared memory.

Owned by the controller's backend; the worker owns the batches' segments until each is released.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from art.distributed.peer import Peer, PeerRecordOwner, PeerReference
from art_dataplane.batch import PackedBatchRef
from art_dataplane.errors import OwnerDiedError, PackingError
from art_dataplane.leases import Lease, Outcome
from art_dataplane.locations import Location, ShmLocation
from art_dataplane.packing import PackingRequest, PackingResult, pack_selection
from art_dataplane.records import TrajectoryRef
from art_dataplane.shm import ShmSegmentStore, ShmStats
from art_dataplane.store import RecordOwner, StoreStats

BATCHES_IN_FLIGHT = 2
"""One batch in training and one packed ahead of it."""


class OwnerEntry(msgspec.Struct, frozen=True):
    """The name of a record owner as references carry it, and the way to it.

    The controller is no actor: of its own records it sends the place they were put at for this fetch.
    """

    name: str
    way: PeerReference | Location


class _AtHand:
    """A :class:`art_dataplane.store.RecordOwner` whose records were put at a known place for one fetch."""

    def __init__(self, location: Location) -> None:
        self._location = location

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        return self._location

    async def drop(self, refs: Sequence[TrajectoryRef]) -> int:
        raise PackingError("the controller drops its records itself")

    async def stats(self) -> StoreStats:
        raise PackingError("the controller counts its records itself")


class _Mortal:
    """A record owner in another process whose end somebody else sees, since a call in flight does not."""

    def __init__(self, owner: RecordOwner) -> None:
        self._owner = owner
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def died(self, reason: str) -> None:
        if not self._end.done():
            self._end.set_result(reason)

    async def fetch(self, refs: Sequence[TrajectoryRef], lease: Lease, deadline_s: float) -> Location:
        fetching = asyncio.ensure_future(self._owner.fetch(refs, lease, deadline_s))
        try:
            waited: set[asyncio.Future[Any]] = {fetching, self._end}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not fetching.done():
                raise OwnerDiedError(refs[0].owner, self._end.result())
            return fetching.result()
        finally:
            fetching.cancel()

    async def drop(self, refs: Sequence[TrajectoryRef]) -> int:
        return await self._owner.drop(refs)

    async def stats(self) -> StoreStats:
        return await self._owner.stats()


class PackingWorker:
    """A service (see :mod:`art.distributed.service`); one per host that packs."""

    def __init__(self, owner: str, run_id: str, capacity_bytes: int) -> None:
        self._owner = owner
        self._segments = ShmSegmentStore(run_id, capacity_bytes, recycle_bytes=capacity_bytes // 2)
        self._batches: dict[str, PackedBatchRef] = {}
        self._peers: dict[PeerReference, _Mortal] = {}

    async def pack(
        self, request: PackingRequest, owners: list[OwnerEntry], deadline_s: float
    ) -> PackingResult:
        """Packs a selection; the batch stays until :meth:`release`.

        Raises:
            PackingError: more than :data:`BATCHES_IN_FLIGHT` batches would be held, or as
                :func:`art_dataplane.packing.pack_selection`.
        """
        self._reclaim()
        if len(self._batches) >= BATCHES_IN_FLIGHT:
            raise PackingError(
                f"{len(self._batches)} batches are held already ({', '.join(self._batches)}); "
                "release one first"
            )
        ways = {entry.name: self._way(entry.way, deadline_s) for entry in owners}
        result = await pack_selection(request, ways, self._segments, deadline_s, owner=self._owner)
        if result.ref is not None:
            self._batches[result.ref.batch_id] = result.ref
        return result

    def _reclaim(self) -> None:
        """Takes back the batches whose lease is over: whoever asked for them is not heard of any more."""
        dropped = {location.name for location in self._segments.reclaim_expired()}
        for batch_id, ref in [*self._batches.items()]:
            if isinstance(ref.location, ShmLocation) and ref.location.name in dropped:
                del self._batches[batch_id]

    def _way(self, way: PeerReference | Location, deadline_s: float) -> RecordOwner:
        if not isinstance(way, PeerReference):
            return _AtHand(way)
        return self._peer(way, deadline_s)

    def _peer(self, way: PeerReference, deadline_s: float) -> _Mortal:
        owner = self._peers.get(way)
        if owner is None:
            owner = self._peers[way] = _Mortal(PeerRecordOwner(Peer(way, RecordOwner), deadline_s))
        return owner

    async def owner_died(self, way: PeerReference, reason: str) -> None:
        """Ends the fetches from an owner, which died: their records are lost.

        Args:
            way: to the owner, as :meth:`pack` was given it.
            reason: what is known of its end.
        """
        self._peer(way, 1.0).died(reason)  # also before the first fetch: the next one ends at once

    async def release(self, batch_id: str, outcome: Outcome) -> None:
        """Gives the batch's segment back: to be used again when it was consumed, else removed.

        Raises:
            PackingError: no such batch is held (any more).
            LeaseError: it was consumed, but its lease had expired.
        """
        ref = self._batches.pop(batch_id, None)
        if ref is None:
            raise PackingError(
                f"no batch {batch_id!r} is held: it was released, or its lease expired and it was taken "
                f"back; there are: {', '.join(self._batches) or 'none'}"
            )
        assert isinstance(ref.location, ShmLocation)
        if outcome is Outcome.CONSUMED:
            self._segments.release(ref.location, ref.lease, outcome)
        else:
            self._segments.drop(ref.location)

    async def stats(self) -> ShmStats:
        """What the batches take, without those whose lease is over."""
        self._reclaim()
        return self._segments.stats()

    async def close(self) -> None:
        """Removes all segments."""
        self._segments.close()
