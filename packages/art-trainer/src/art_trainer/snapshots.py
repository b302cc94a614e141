"""A bounded pool of immutable snapshots of the adapter and the optimizer.

What always holds: at most ``capacity`` snapshots exist; one is never written after :meth:`SnapshotSlot.fill`;
its memory goes when the last lease on it has ended, and not before. A new snapshot waits for a free slot, so
slow consumers hold the trainer back instead of filling the memory.

Each holder of a snapshot has a lease of its own, with a fence and a deadline
(:class:`art_dataplane.LeaseTable`), so that one that is stuck for ever does not hold its slot for ever: the
lease expires, which is logged, and what the holder says afterwards is refused.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from art_dataplane import (
    DataPlaneError,
    Lease,
    LeaseError,
    LeaseTable,
    NamedTensor,
    ShmSegmentStore,
    SnapshotManifest,
    write_manifest,
)
from art_dataplane.leases import Ended
from art_trainer.errors import SnapshotPoolError
from art_trainer.lora import Adapter
from art_trainer.specs import SNAPSHOT_LEASE_S

_PAGE = 4096
_logger = logging.getLogger("art_trainer")


@dataclass(frozen=True)
class TrainerSnapshot:
    """One version: the adapter in shared memory, and copies of the optimizer's moments under PEFT's names.

    ``optimizer`` has ``exp_avg.NAME`` and ``exp_avg_sq.NAME`` per adapter tensor, and ``step``.
    """

    manifest: SnapshotManifest
    optimizer: Mapping[str, Tensor]


class PoolLease:
    """A hold on one snapshot by one holder; implements ``art_dataplane.SnapshotLease``. Thread-safe.

    It ends when it is released, when its deadline passes, or when the pool revokes its holder's leases. After
    that the snapshot's bytes may be gone, and :meth:`check` says why.
    """

    def __init__(self, slot: "SnapshotSlot", name: str, lease: Lease) -> None:
        """Made by :meth:`SnapshotSlot.lease`."""
        self.name = name
        self.lease = lease
        self.ended = ""  # in words, when it was not released by its holder; written by the pool
        self.slot = slot
        self._snapshot = slot.snapshot

    @property
    def holder(self) -> str:
        """Who holds it."""
        return self.lease.holder

    @property
    def manifest(self) -> SnapshotManifest:
        """The adapter's manifest."""
        return self._snapshot.manifest

    @property
    def snapshot(self) -> TrainerSnapshot:
        """Adapter and optimizer."""
        return self._snapshot

    @property
    def is_held(self) -> bool:
        """Whether it has not ended."""
        return self.slot.pool.holds(self)

    def check(self) -> None:
        """Does nothing while it is held, and after its holder released it.

        Raises:
            LeaseError: it expired or was revoked.
        """
        if not self.is_held and self.ended:
            raise LeaseError(self.ended)

    def renew(self, duration_s: float | None = None) -> None:
        """Moves the deadline to ``duration_s`` seconds from now, by default as long as it was granted for.

        Raises:
            LeaseError: it has ended.
        """
        self.lease = self.slot.pool.renew(self, self.lease.duration_s if duration_s is None else duration_s)

    def release(self) -> None:
        """Gives the hold back; nothing happens once it has ended."""
        self.slot.pool.release(self)


class SnapshotSlot:
    """The right to make one snapshot. ``release`` it, or ``fill`` it and release every lease on it."""

    def __init__(self, pool: "SnapshotPool", number: int) -> None:
        """Made by :meth:`SnapshotPool.acquire`; holds itself until :meth:`release`."""
        self.pool = pool
        self.number = number
        self.being_made = True
        self.holds: set[str] = set()
        self._snapshot: TrainerSnapshot | None = None

    @property
    def version(self) -> int | None:
        """Of what was filled in; None before."""
        return None if self._snapshot is None else self._snapshot.manifest.version

    @property
    def snapshot(self) -> TrainerSnapshot:
        """What was filled in.

        Raises:
            SnapshotPoolError: nothing yet.
        """
        if self._snapshot is None:
            raise SnapshotPoolError("this slot has no snapshot yet; fill it first")
        return self._snapshot

    def fill(
        self,
        *,
        version: int,
        generation: str | None,
        adapter: Adapter,
        peft_config: str,
        optimizer: Mapping[str, Tensor],
    ) -> TrainerSnapshot:
        """Copies the adapter as it is now into shared memory; ``optimizer`` must be copies already.

        Raises:
            SnapshotPoolError: filled already, or shared memory has no room.
        """
        if self._snapshot is not None:
            raise SnapshotPoolError(f"this slot holds version {self._snapshot.manifest.version} already")
        tensors = [
            NamedTensor(name, "float32", tuple(tensor.shape), tensor.detach().numpy())
            for name, tensor in adapter.named_tensors()
        ]
        try:
            manifest = write_manifest(version, peft_config, tensors, self.pool.store, generation=generation)
        except DataPlaneError as error:
            raise SnapshotPoolError(
                f"version {version} could not be written to shared memory: {error}"
            ) from error
        self._snapshot = TrainerSnapshot(manifest, optimizer)
        return self._snapshot

    def lease(self, holder: str, duration_s: float = SNAPSHOT_LEASE_S) -> PoolLease:
        """One more hold on the snapshot.

        Args:
            holder: who it is for; one hold each.
            duration_s: seconds until it ends by itself, unless it is renewed.

        Raises:
            LeaseError: ``holder`` has one on this snapshot, or ``duration_s`` is not positive and finite.
            SnapshotPoolError: nothing is filled in yet.
        """
        return self.pool.grant(self, holder, duration_s)

    def release(self) -> None:
        """Ends the maker's own hold."""
        self.pool.made(self)


class SnapshotPool:
    """Owns the snapshots of one run. ``acquire`` and ``close`` belong to one event loop; leases to any
    thread."""

    def __init__(
        self,
        run_id: str,
        capacity: int,
        snapshot_bytes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allocates nothing yet.

        Args:
            run_id: shared-memory segments are named after it.
            capacity: most snapshots at once.
            snapshot_bytes: size of one adapter.
            clock: for leases; seconds, monotonic.
        """
        self._lock = threading.Lock()
        self._capacity = capacity
        # Tensors are aligned in the segment, and a segment takes whole pages.
        segment_bytes = (2 * snapshot_bytes // _PAGE + 2) * _PAGE
        self.store = ShmSegmentStore(run_id, capacity * segment_bytes)
        self._slots: set[SnapshotSlot] = set()
        self._numbers = itertools.count()
        self._leases = LeaseTable(clock=clock)
        self._held: dict[str, PoolLease] = {}
        self._waiters: deque[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = deque()
        self._closed = False

    @property
    def held(self) -> int:
        """Slots in use."""
        return len(self._slots)

    async def acquire(self, deadline_s: float) -> SnapshotSlot:
        """Waits for a free slot, first come first served.

        Raises:
            SnapshotPoolError: none became free within ``deadline_s`` seconds, or the pool is closed.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        turn = asyncio.Event()
        entry = (loop, turn)
        with self._lock:
            self._waiters.append(entry)
        try:
            while True:
                self.expire()
                with self._lock:
                    if self._closed:
                        raise SnapshotPoolError("the snapshot pool is closed")
                    if len(self._slots) < self._capacity and self._waiters[0] is entry:
                        slot = SnapshotSlot(self, next(self._numbers))
                        self._slots.add(slot)
                        return slot
                    turn.clear()
                    next_expiry_s = self._leases.seconds_to_next_expiry()
                left = end - loop.time()
                if left <= 0:
                    raise SnapshotPoolError(
                        f"all {self._capacity} snapshots are still held after {deadline_s} s "
                        f"({self._versions()}); a sink is too slow or stuck: "
                        f"raise snapshot_capacity or look at its error. {self._holders()}"
                    )
                try:
                    await asyncio.wait_for(
                        turn.wait(), left if next_expiry_s is None else min(left, next_expiry_s)
                    )
                except TimeoutError:
                    continue  # the deadline is checked above, after a last look
        finally:
            with self._lock:
                self._waiters.remove(entry)
            self._wake()

    def grant(self, slot: SnapshotSlot, holder: str, duration_s: float) -> PoolLease:
        """See :meth:`SnapshotSlot.lease`."""
        name = f"{slot.number}/{slot.snapshot.manifest.version}/{holder}"
        with self._lock:
            lease = PoolLease(slot, name, self._leases.grant([name], holder, duration_s))
            self._held[name] = lease
            slot.holds.add(name)
        return lease

    def holds(self, lease: PoolLease) -> bool:
        """Whether ``lease`` has not ended."""
        self.expire()
        with self._lock:
            return self._held.get(lease.name) is lease

    def renew(self, lease: PoolLease, duration_s: float) -> Lease:
        """See :meth:`PoolLease.renew`."""
        self.expire()
        with self._lock:
            return self._leases.renew(lease.lease, duration_s)

    def release(self, lease: PoolLease) -> None:
        """See :meth:`PoolLease.release`."""
        self.expire()
        with self._lock:
            if self._held.get(lease.name) is not lease:
                return
            self._leases.revoke(lease.lease.lease_id)  # whatever its deadline
            self._take_off([lease])
        self._free([lease.slot])

    def made(self, slot: SnapshotSlot) -> None:
        """See :meth:`SnapshotSlot.release`."""
        with self._lock:
            slot.being_made = False
        self._free([slot])

    def expire(self) -> tuple[PoolLease, ...]:
        """Ends the leases past their deadline, which frees what only they held; returns these."""
        return self._end(self._leases.expire, "expired after {duration_s:g} s without a renewal")

    def revoke_holder(self, holder: str) -> tuple[PoolLease, ...]:
        """Ends the leases of ``holder``, who is known to be dead or stuck, and returns them."""
        return self._end(lambda: self._leases.revoke_holder(holder), "was revoked")

    def _end(self, end: Callable[[], Ended], how: str) -> tuple[PoolLease, ...]:
        with self._lock:
            ended = [self._held[name] for _, names in end() for name in names]
            for lease in ended:
                what = how.format(duration_s=lease.lease.duration_s)
                lease.ended = (
                    f"the lease of {lease.holder!r} (fence {lease.lease.fence}) on version "
                    f"{lease.manifest.version} {what}; the snapshot may be gone, and what was made of it "
                    "does not count"
                )
            self._take_off(ended)
        for lease in ended:
            _logger.warning("%s", lease.ended)
        self._free([lease.slot for lease in ended])
        return tuple(ended)

    def _take_off(self, leases: Sequence[PoolLease]) -> None:
        for lease in leases:
            del self._held[lease.name]
            lease.slot.holds.discard(lease.name)

    def _free(self, slots: Sequence[SnapshotSlot]) -> None:
        """Frees the memory and the place of slots that nothing holds any more."""
        with self._lock:
            idle = [slot for slot in slots if slot in self._slots and not slot.being_made and not slot.holds]
        for slot in idle:
            if slot.version is not None:
                self.store.drop(slot.snapshot.manifest.location)
        with self._lock:
            self._slots.difference_update(idle)
        if idle:
            self._wake()

    def close(self) -> None:
        """Removes every snapshot, held or not, and turns waiters away."""
        with self._lock:
            self._closed = True
            self._slots.clear()
        self.store.close()
        self._wake()

    def _versions(self) -> str:
        with self._lock:
            filled = sorted(slot.version for slot in self._slots if slot.version is not None)
        return f"versions {', '.join(map(str, filled)) or 'none'}"

    def _holders(self) -> str:
        with self._lock:
            names = sorted({lease.holder for lease in self._held.values()})
        return f"Held by {', '.join(names)}" if names else "No sink holds any"

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiters)
        for loop, turn in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(turn.set)
