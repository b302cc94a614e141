"""The segments that one process owns for one run: a bounded store over POSIX shared memory.

What always holds:

- Its pages are allocated before the first byte is written, so a write never ends in SIGBUS.
- A location exists only for committed bytes, and committed bytes never change. A mapping stays valid after
  the owner dropped the segment; the memory goes when the last mapping goes.
- A finished segment is written again only if the kernel says that nobody has it mapped
  (:mod:`art_dataplane.segment_files`); one that somebody has is removed instead.
- The bytes of all segments of a store, spare ones included, never exceed its capacity.
- Only the owner removes a segment while it lives. No resource tracker takes part.
"""

import contextlib
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from art_dataplane.bounds import are_counts
from art_dataplane.errors import LeaseError, ShmError, ShmFullError
from art_dataplane.leases import Lease, LeaseTable, Outcome
from art_dataplane.locations import Location, ShmLocation
from art_dataplane.processes import ProcessIdentity
from art_dataplane.reservation import Reservation
from art_dataplane.segment_files import (
    SHM_DIRECTORY,
    USE_LOCK,
    create_segment,
    is_run_id,
    lock,
    new_segment_name,
    remove_segment,
    unlink_segment,
    unlock,
)
from art_dataplane.segments import MappedBytes, SegmentInfo, map_location, sweep

__all__ = ["Reservation", "ShmSegmentStore", "ShmStats"]


class _Segment(msgspec.Struct):
    allocated: int
    descriptor: int  # holds the owner's lock, and the lock for use unless the segment is committed
    mapping: mmap.mmap | None
    location: ShmLocation | None = None


class ShmStats(msgspec.Struct, frozen=True):
    """What a store holds, in whole pages.

    Args:
        segment_count: segments that are reserved or committed.
        used_bytes: their bytes.
        spare_bytes: bytes of finished segments that are kept to be used again.
        leased_count: segments that are leased.
        capacity_bytes: bound on used and spare bytes together.
        recycled_count: finished segments that were recycled for a reservation.
        still_mapped_count: how often one could not be, since somebody had it mapped when it was dropped.
    """

    segment_count: int
    used_bytes: int
    spare_bytes: int
    leased_count: int
    capacity_bytes: int
    recycled_count: int = 0
    still_mapped_count: int = 0


class ShmSegmentStore:
    """The segments that this process owns for one run. Thread-safe; ``close()`` removes them all, as does the
    end of the process or of the last reference to the store.

    A new store first removes what owners that are dead left in ``/dev/shm``, whatever their run
    (:func:`art_dataplane.sweep`), so that what a killed process held is there for its successor.

    Args:
        run_id: letters, digits, ``_``, ``.`` and ``-``; every segment of the run starts with ``art-RUN-``.
        capacity_bytes: bound on all bytes of this store, counted in whole pages.
        recycle_bytes: at most so many bytes of finished segments are kept and used again, with their
            mapping: new pages cost more than what is written into them.
        clock: for leases; seconds, monotonic.

    Raises:
        ShmError: not Linux, no ``/dev/shm``, or a malformed run id.
    """

    def __init__(
        self,
        run_id: str,
        capacity_bytes: int,
        *,
        recycle_bytes: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not sys.platform.startswith("linux") or not SHM_DIRECTORY.is_dir():
            raise ShmError(f"shared memory needs Linux with {SHM_DIRECTORY}; this is {sys.platform}")
        if not is_run_id(run_id):
            raise ShmError(f"run id {run_id!r}: 1 to 96 letters, digits, '_', '.' or '-'")
        if not are_counts(capacity_bytes) or not (recycle_bytes == 0 or are_counts(recycle_bytes)):
            raise ShmError(
                f"capacity {capacity_bytes} must be positive and recycle_bytes {recycle_bytes} not negative, "
                "each a whole number of bytes"
            )
        self._run_id = run_id
        self._capacity = capacity_bytes
        self._recycle = recycle_bytes
        self._owner = ProcessIdentity.current()
        self._lock = threading.RLock()
        self._segments: dict[str, _Segment] = {}
        self._spare: dict[str, _Segment] = {}
        self._recycled_count = 0
        self._still_mapped_count = 0
        self._leases = LeaseTable() if clock is None else LeaseTable(clock=clock)
        self._closed = False
        self._swept = sweep()
        # A store that is forgotten, or whose process ends without closing it, leaves nothing either.
        self._abandoned = weakref.finalize(self, _abandon, self._owner.pid, self._segments, self._spare)

    @property
    def swept(self) -> tuple[SegmentInfo, ...]:
        """What dead owners had left when this store was made; it is removed."""
        return self._swept

    @property
    def run_id(self) -> str:
        """The run that all segments of this store are named after."""
        return self._run_id

    def reserve(self, byte_count: int) -> Reservation:
        """Allocates a segment for ``byte_count`` bytes (at least 1) to be written in place.

        Raises:
            ShmFullError: no room under the store's capacity or in ``/dev/shm``; nothing was left behind.
            ShmError: ``byte_count`` is not positive, the store is closed, or it belongs to another process
                (it was forked).
        """
        if byte_count <= 0:
            raise ShmError(f"a segment of {byte_count} bytes cannot be reserved")
        with self._owned():
            if self._closed:
                raise ShmError(f"the store of run {self._run_id} was closed; make another one")
            allocated = -(-byte_count // mmap.PAGESIZE) * mmap.PAGESIZE
            name = self._new_name()
            segment = self._take_spare(allocated, name) or self._create(allocated, name)
            assert segment.mapping is not None
            self._segments[name] = segment
            array = np.frombuffer(segment.mapping, np.uint8, byte_count)
            return Reservation(name, array, self._commit, self._give_up)

    def map(self, location: Location) -> MappedBytes:
        """Maps ``location`` read-only; the same as :func:`art_dataplane.map_location`.

        Raises:
            ShmError: the segment is gone, smaller than the location says, or not one of ART's.
        """
        return map_location(location)

    def drop(self, location: Location, *, reusable: bool = False) -> bool:
        """Removes a committed segment; readers that have it mapped keep their bytes.

        Args:
            location: where the segment is; inline bytes need no dropping.
            reusable: its pages may be used again; they are only if nobody has them mapped, which the kernel
                answers.

        Returns:
            False when this store does not hold it (any more).

        Raises:
            ShmError: the store belongs to another process (it was forked).
        """
        with self._owned():
            if not isinstance(location, ShmLocation) or location.name not in self._segments:
                return False
            self._forget(location.name, reusable=reusable)
            return True

    def grant(self, location: ShmLocation, holder: str, duration_s: float) -> Lease:
        """Leases a committed segment.

        Args:
            location: where the segment is.
            holder: who it is for, as messages name it.
            duration_s: seconds that the lease is good for.

        Raises:
            ShmError: this store does not hold it.
            LeaseError: it is leased already, or ``duration_s`` is not positive.
        """
        with self._owned():
            self._committed(location.name)
            return self._leases.grant([location.name], holder, duration_s)

    def release(self, location: ShmLocation, lease: Lease, outcome: Outcome) -> None:
        """Ends a lease. The holder has closed the segment before.

        Args:
            location: where the segment is.
            lease: on this segment.
            outcome: ``CONSUMED`` drops the segment for reuse (when somebody has it mapped all the same, it
                is removed instead), ``DISCARDED`` leaves it for another grant.

        Raises:
            LeaseError: the lease is not in force, or is one on another segment.
        """
        with self._owned():
            if location.name not in self._leases.check(lease):
                raise LeaseError(
                    f"lease {lease.lease_id} (fence {lease.fence}) is not one on {location.name}"
                )
            self._leases.release(lease)
            if outcome is Outcome.CONSUMED:
                self._forget(location.name, reusable=True)

    def reclaim(self, fence: int) -> tuple[ShmLocation, ...]:
        """Drops every segment leased with a fence up to ``fence``; their leases are void.

        Returns:
            What was dropped.
        """
        with self._owned():
            names = [name for lease, items in self._leases.leases() if lease.fence <= fence for name in items]
            return self._reclaim(names)

    def reclaim_expired(self) -> tuple[ShmLocation, ...]:
        """Drops every segment whose lease is past its deadline, and returns what was dropped."""
        with self._owned():
            return self._reclaim([name for _, items in self._leases.expire() for name in items])

    def stats(self) -> ShmStats:
        """What is held now.

        Raises:
            ShmError: the store belongs to another process (it was forked).
        """
        with self._owned():
            return ShmStats(
                segment_count=len(self._segments),
                used_bytes=sum(segment.allocated for segment in self._segments.values()),
                spare_bytes=self._spare_bytes(),
                leased_count=len(self._leases),
                capacity_bytes=self._capacity,
                recycled_count=self._recycled_count,
                still_mapped_count=self._still_mapped_count,
            )

    def close(self) -> None:
        """Removes every segment, leased or not. In a forked child it does nothing: the parent owns them."""
        if os.getpid() != self._owner.pid:  # before the lock, which a thread may have held at the fork
            return
        with self._lock:
            self._closed = True
            self._recycle = 0
            for name in [*self._segments]:
                self._forget(name)
            for name in [*self._spare]:
                self._drop_spare(name)
            self._abandoned.detach()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    def _create(self, allocated: int, name: str) -> _Segment:
        self._make_room(allocated)
        descriptor = create_segment(name, allocated)
        try:
            # Populated: one call instead of a fault at every page that is written.
            mapping = mmap.mmap(descriptor, allocated, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            unlink_segment(name)
            os.close(descriptor)
            raise
        return _Segment(allocated, descriptor, mapping)

    def _commit(self, name: str, byte_count: int) -> ShmLocation:
        with self._owned():
            if name not in self._segments:
                raise ShmError(f"segment {name} is gone: its store was closed")
            segment = self._segments[name]
            if segment.allocated > self._recycle:
                segment.mapping = None
            os.fchmod(segment.descriptor, 0o400)
            unlock(segment.descriptor, USE_LOCK)
            segment.location = ShmLocation(name, 0, byte_count)
            return segment.location

    def _give_up(self, name: str, reusable: bool) -> None:
        if os.getpid() == self._owner.pid:  # not what a forked child inherited
            self._forget(name, reusable=reusable)

    def _forget(self, name: str, *, reusable: bool = False) -> None:
        with self._lock:
            segment = self._segments.pop(name, None)
            if segment is None:
                return
            lease = self._leases.lease_of(name)
            if lease is not None:
                self._leases.revoke(lease.lease_id)
            if reusable and segment.allocated <= self._recycle:
                spare_name = self._new_name()
                os.rename(SHM_DIRECTORY / name, SHM_DIRECTORY / spare_name)  # the old name must not resolve
                if lock(segment.descriptor, USE_LOCK):
                    segment.location = None
                    # What was finished last is wanted next; sizes that are not wanted any more go.
                    while self._spare_bytes() + segment.allocated > self._recycle:
                        self._drop_spare(next(iter(self._spare)))
                    self._spare[spare_name] = segment
                    return
                self._still_mapped_count += 1
                name = spare_name
            _remove(name, segment, revoked=segment.location is not None or reusable)

    def _committed(self, name: str) -> ShmLocation:
        segment = self._segments.get(name)
        if segment is None or segment.location is None:
            raise ShmError(f"segment {name} is not held here: dropped, not committed, or of another store")
        return segment.location

    def _reclaim(self, names: list[str]) -> tuple[ShmLocation, ...]:
        locations = tuple(self._committed(name) for name in names)
        for name in names:
            self._forget(name)
        return locations

    def _take_spare(self, allocated: int, name: str) -> _Segment | None:
        fitting = [
            (spare.allocated, spare_name)
            for spare_name, spare in self._spare.items()
            if allocated <= spare.allocated <= 2 * allocated
        ]
        if not fitting:
            return None
        _, spare_name = min(fitting)
        os.rename(SHM_DIRECTORY / spare_name, SHM_DIRECTORY / name)
        segment = self._spare.pop(spare_name)
        os.fchmod(segment.descriptor, 0o600)
        self._recycled_count += 1
        return segment

    def _drop_spare(self, name: str) -> None:
        _remove(name, self._spare.pop(name), revoked=True)

    def _spare_bytes(self) -> int:
        return sum(spare.allocated for spare in self._spare.values())

    def _make_room(self, allocated: int) -> None:
        used = sum(segment.allocated for segment in self._segments.values())
        while self._spare and used + self._spare_bytes() + allocated > self._capacity:
            self._drop_spare(next(iter(self._spare)))
        if used + allocated > self._capacity:
            raise ShmFullError(
                f"a segment of {allocated} bytes does not fit: {used} of {self._capacity} bytes are used by "
                f"{len(self._segments)} segments of run {self._run_id}; release some or raise capacity_bytes"
            )

    def _new_name(self) -> str:
        return new_segment_name(self._run_id, self._owner)

    @contextlib.contextmanager
    def _owned(self) -> Iterator[None]:
        """Holds the lock. Whose store it is is asked before: in a forked child nobody may ever release it."""
        self._check_owner()
        with self._lock:
            yield

    def _check_owner(self) -> None:
        if os.getpid() != self._owner.pid:
            raise ShmError(
                f"this store belongs to process {self._owner.pid}; make one in {os.getpid()} after the fork"
            )


def _abandon(owner_pid: int, *held: dict[str, _Segment]) -> None:
    if os.getpid() == owner_pid:  # not what a forked child inherited
        for segments in held:
            for name in [*segments]:
                _remove(name, segments.pop(name), revoked=False)


def _remove(name: str, segment: _Segment, *, revoked: bool) -> None:
    """Removes a segment. Unless its buffer is ``revoked`` somebody may write to it, and its pages stay."""
    try:
        if revoked:
            remove_segment(name, segment.descriptor)
        else:
            unlink_segment(name)
    finally:
        os.close(segment.descriptor)
