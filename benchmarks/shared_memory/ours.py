"""art-dataplane: a segment of a store, its reference over a pipe, a mapping in each consumer."""

import hashlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
from benchmarks.shared_memory.task import CONSUMERS, look

from art_dataplane import Outcome, ShmSegmentStore, decode, encode
from art_dataplane.locations import TensorSpec
from art_dataplane.segments import MappingCache
from art_dataplane.shared_arrays import ArraysRef, read_arrays, write_arrays

_TIMEOUT_S = 60.0


class Ours:
    """A store that recycles its segments and readers that keep their mappings; or, ``fresh``, neither."""

    def __init__(self, mib: int, *, fresh: bool = False) -> None:
        self.name = "art-dataplane, new pages" if fresh else "art-dataplane"
        size = mib << 20
        self._store = ShmSegmentStore(
            f"benchmark-{os.getpid()}-{'fresh' if fresh else 'recycled'}",
            4 * size,
            recycle_bytes=0 if fresh else 2 * size,
        )
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(CONSUMERS):
            mine, theirs = context.Pipe()
            process = context.Process(target=_consume, args=(theirs, fresh), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        self._ref: ArraysRef | None = None

    def hand_over(self, array: np.ndarray, every_page: bool) -> Sequence[int]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._ref = write_arrays({"data": array}, self._store)
        return self._tell(self._ref, "page" if every_page else "ends")

    def hand_over_written(self, array: np.ndarray, every_page: bool) -> tuple[float, Sequence[int]]:
        """The same for bytes that are in the segment already, as packing leaves them; the seconds as well."""
        reservation = self._store.reserve(array.nbytes)
        target = np.frombuffer(reservation.buffer, array.dtype)
        np.copyto(target, array)
        del target
        started = time.perf_counter()
        location = reservation.commit()
        lease = self._store.grant(location, "consumers", 60.0)
        spec = TensorSpec("data", array.dtype.name, array.shape, 0, array.nbytes)
        self._ref = ArraysRef((spec,), location)
        seen = self._tell(self._ref, "page" if every_page else "ends")
        took = time.perf_counter() - started
        self._store.release(location, lease, Outcome.DISCARDED)
        return took, seen

    def release(self) -> None:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._tell(None, "release")
        assert self._ref is not None
        self._store.drop(self._ref.location, reusable=True)

    def digests(self, array: np.ndarray) -> Sequence[str]:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._ref = write_arrays({"data": array}, self._store)
        found = self._tell(self._ref, "digest")
        self.release()
        return found

    def close(self) -> None:
        """As :class:`benchmarks.shared_memory.task.Side` says."""
        self._tell(None, "end")
        for process in self._processes:
            process.join(_TIMEOUT_S)
        if self._store.stats().still_mapped_count:
            raise SystemExit("a consumer had a segment mapped that it had released")
        self._store.close()

    def _tell(self, ref: ArraysRef | None, what: str) -> list:
        message = encode((what, ref))
        for pipe in self._pipes:
            pipe.send_bytes(message)
        return [pipe.recv() for pipe in self._pipes]


def _consume(pipe: Connection, fresh: bool) -> None:
    cache = None if fresh else MappingCache(1 << 34)
    arrays = None
    while True:
        what, ref = decode(pipe.recv_bytes(), tuple[str, ArraysRef | None])
        if what == "end":
            pipe.send(None)
            return
        if what == "release":
            arrays.close()
            pipe.send(None)
            continue
        arrays = read_arrays(ref, cache)
        if what == "digest":
            pipe.send(hashlib.blake2b(arrays["data"]).hexdigest())
        else:
            pipe.send(look(arrays["data"], what == "page"))
