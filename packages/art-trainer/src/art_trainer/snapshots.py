"""A bounded pool of immutable snapshots of the adapter and the optimizer.

What always holds: at most ``capacity`` snapshots exist; one is never written after :meth:`SnapshotSlot.fill`;
its memory goes when the last lease on it is released, and not before. A new snapshot waits for a free slot,
so slow consumers hold the trainer back instead of filling the memory.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from art_dataplane import DataPlaneError, NamedTensor, ShmSegmentStore, SnapshotManifest, write_manifest
from art_trainer.errors import SnapshotPoolError
from art_trainer.lora import Adapter

_PAGE = 4096


@dataclass(frozen=True)
class TrainerSnapshot:
    """One version: the adapter in shared memory, and copies of the optimizer's moments under PEFT's names.

    ``optimizer`` has ``exp_avg.NAME`` and ``exp_avg_sq.NAME`` per adapter tensor, and ``step``.
    """

    manifest: SnapshotManifest
    optimizer: Mapping[str, Tensor]


class PoolLease:
    """A hold on one snapshot; implements ``art_dataplane.SnapshotLease``. Thread-safe."""

    def __init__(self, slot: "SnapshotSlot") -> None:
        """Made by :meth:`SnapshotSlot.lease`."""
        self._slot: SnapshotSlot | None = slot
        self._snapshot = slot.snapshot

    @property
    def manifest(self) -> SnapshotManifest:
        """The adapter's manifest."""
        return self._snapshot.manifest

    @property
    def snapshot(self) -> TrainerSnapshot:
        """Adapter and optimizer."""
        return self._snapshot

    def release(self) -> None:
        """Gives the hold back; a second call does nothing."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.give_back()


class SnapshotSlot:
    """The right to make one snapshot. ``release`` it, or ``fill`` it and release every lease on it."""

    def __init__(self, pool: "SnapshotPool") -> None:
        """Made by :meth:`SnapshotPool.acquire`; holds itself until :meth:`release`."""
        self._pool = pool
        self._holds = 1
        self._snapshot: TrainerSnapshot | None = None

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
            manifest = write_manifest(version, peft_config, tensors, self._pool.store, generation=generation)
        except DataPlaneError as error:
            raise SnapshotPoolError(
                f"version {version} could not be written to shared memory: {error}"
            ) from error
        self._snapshot = TrainerSnapshot(manifest, optimizer)
        return self._snapshot

    def lease(self) -> PoolLease:
        """One more hold on the snapshot, for a consumer."""
        lease = PoolLease(self)
        with self._pool.lock:
            self._holds += 1
        return lease

    def release(self) -> None:
        """Ends the maker's own hold."""
        self.give_back()

    def give_back(self) -> None:
        """Ends one hold; the last one frees the memory and the slot."""
        with self._pool.lock:
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._pool.free(self)


class SnapshotPool:
    """Owns the snapshots of one run. ``acquire`` and ``close`` belong to one event loop; leases to any
    thread."""

    def __init__(self, run_id: str, capacity: int, snapshot_bytes: int) -> None:
        """Allocates nothing yet.

        Args:
            run_id: shared-memory segments are named after it.
            capacity: most snapshots at once.
            snapshot_bytes: size of one adapter.
        """
        self.lock = threading.Lock()
        self._capacity = capacity
        # Tensors are aligned in the segment, and a segment takes whole pages.
        segment_bytes = (2 * snapshot_bytes // _PAGE + 2) * _PAGE
        self.store = ShmSegmentStore(run_id, capacity * segment_bytes)
        self._slots: set[SnapshotSlot] = set()
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
        with self.lock:
            self._waiters.append(entry)
        try:
            while True:
                with self.lock:
                    if self._closed:
                        raise SnapshotPoolError("the snapshot pool is closed")
                    if len(self._slots) < self._capacity and self._waiters[0] is entry:
                        slot = SnapshotSlot(self)
                        self._slots.add(slot)
                        return slot
                    turn.clear()
                left = end - loop.time()
                if left <= 0:
                    raise SnapshotPoolError(
                        f"all {self._capacity} snapshots are still held after {deadline_s} s "
                        f"({self._versions()}); a sink is too slow or stuck: "
                        "raise snapshot_capacity or look at its error"
                    )
                try:
                    await asyncio.wait_for(turn.wait(), left)
                except TimeoutError:
                    continue  # the deadline is checked above, after a last look
        finally:
            with self.lock:
                self._waiters.remove(entry)
            self._wake()

    def free(self, slot: SnapshotSlot) -> None:
        """Called by a slot when nothing holds it any more."""
        if slot._snapshot is not None:
            self.store.drop(slot._snapshot.manifest.location)
        with self.lock:
            self._slots.discard(slot)
        self._wake()

    def close(self) -> None:
        """Removes every snapshot, held or not, and turns waiters away."""
        with self.lock:
            self._closed = True
            self._slots.clear()
        self.store.close()
        self._wake()

    def _versions(self) -> str:
        filled = sorted(slot._snapshot.manifest.version for slot in self._slots if slot._snapshot is not None)
        return f"versions {', '.join(map(str, filled)) or 'none'}"

    def _wake(self) -> None:
        with self.lock:
            waiting = list(self._waiters)
        for loop, turn in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(turn.set)
