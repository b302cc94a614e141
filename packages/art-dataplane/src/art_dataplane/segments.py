"""Segments as others than their owner see them: mapped, found in ``/dev/shm``, and swept. Linux only.

What always holds: bytes that are mapped do not change, whatever becomes of their segment, and no access ever
reaches unmapped memory. No resource tracker takes part: only the owner removes a segment while it lives.
"""

import mmap
import os
import stat
import threading
import weakref
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from art_dataplane.errors import ShmError
from art_dataplane.locations import InlineLocation, Location, ShmLocation
from art_dataplane.processes import ProcessIdentity
from art_dataplane.segment_files import (
    OWNER_LOCK,
    SHM_DIRECTORY,
    is_locked,
    is_segment_name,
    open_segment,
    parse_segment_name,
    remove_segment,
)

__all__ = [
    "SHM_DIRECTORY",
    "MappedBytes",
    "MappingCache",
    "SegmentInfo",
    "list_segments",
    "map_location",
    "parse_segment_name",
    "sweep",
]


class MappedBytes:
    """A read-only view of a location's bytes. Made by :func:`map_location`; close it, or use ``with``.

    After ``close()`` the view here is revoked. Memory that others still see through views taken before stays
    mapped, and its segment is not used again, until the last of these is gone: nobody ever reads unmapped
    memory or the bytes of something else.
    """

    def __init__(self, array: np.ndarray) -> None:
        """Takes the bytes over, uint8 ``[n]``; the caller keeps no reference."""
        self._view: memoryview | None = memoryview(array).toreadonly()
        self._bytes = weakref.ref(array)

    @property
    def view(self) -> memoryview:
        """The bytes, read-only.

        Raises:
            ShmError: after ``close()``.
        """
        if self._view is None:
            raise ShmError("these bytes were closed; map the location again")
        return self._view

    def close(self) -> bool:
        """Revokes the view and unmaps; a second call does nothing.

        Returns:
            False when views taken before keep the memory mapped for now.
        """
        view, self._view = self._view, None
        if view is None:
            return True
        try:
            view.release()
        except BufferError:
            return False
        return self._bytes() is None  # every view of any kind refers to the array

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()


def map_location(location: Location) -> MappedBytes:
    """Maps a location of this host read-only; any process may, not only the owner.

    Pages come into this process's page table when they are first read.

    Raises:
        ShmError: the segment is gone, smaller than the location says, not one of ART's, or on another host.
    """
    if isinstance(location, InlineLocation):
        return MappedBytes(np.frombuffer(location.data, np.uint8))
    here = _of_this_host(location)
    descriptor = open_segment(here)
    try:
        # The mapping has a duplicate of the descriptor and with it the lock, until nothing refers to it.
        mapping = mmap.mmap(
            descriptor, here.offset + here.byte_count, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ
        )
    finally:
        os.close(descriptor)
    return MappedBytes(np.frombuffer(mapping, np.uint8, here.byte_count, here.offset))


class MappingCache:
    """Maps locations as :func:`map_location` does, and keeps the mappings of segments that are used again.

    An owner that recycles its segments writes the next batch into pages that a reader has in its page table
    already; the reader that keeps the mapping pays for them once. Nothing refers to a mapping that is only
    kept, it takes no lock and no memory: it ends when the cache finds its segment removed, or is full.
    Thread-safe.

    Args:
        keep_bytes: bound, in bytes, on the address space of all mappings kept; the least recently used go
            first.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int], mmap.mmap] = {}

    @property
    def kept_bytes(self) -> int:
        """Address space of the mappings that are kept, in bytes."""
        return sum(len(mapping) for mapping in [*self._kept.values()])

    def map(self, location: Location) -> MappedBytes:
        """Maps ``location`` read-only.

        Raises:
            ShmError: as :func:`map_location`.
        """
        if isinstance(location, InlineLocation):
            return map_location(location)
        here = _of_this_host(location)
        descriptor = open_segment(here)
        try:
            mapping = self._mapping(descriptor)
            array = np.frombuffer(mapping, np.uint8, here.byte_count, here.offset)
            # Every view refers to this array, and to it alone: with it the lock ends.
            weakref.finalize(array, self._end, descriptor).atexit = False
        except BaseException:
            os.close(descriptor)
            raise
        return MappedBytes(array)

    def close(self) -> None:
        """Keeps nothing; what is in use stays mapped until it is closed."""
        with self._lock:
            self._kept.clear()

    def _mapping(self, descriptor: int) -> mmap.mmap:
        status = os.fstat(descriptor)
        with self._lock:
            mapping = self._kept.pop((status.st_dev, status.st_ino), None)
            if mapping is None:
                # Opened again: a mapping that is kept must not share the lock of the one who reads.
                unlocked = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    mapping = mmap.mmap(unlocked, status.st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
                finally:
                    os.close(unlocked)
            self._kept[status.st_dev, status.st_ino] = mapping
            total = sum(map(len, self._kept.values()))
            for key in [*self._kept]:
                if total <= self._keep_bytes:
                    break
                total -= len(self._kept.pop(key))
            return mapping

    def _end(self, descriptor: int) -> None:
        """Called when nothing refers to the bytes of one :meth:`map` any more, in any thread at any point."""
        status = os.fstat(descriptor)
        if status.st_nlink == 0:
            self._kept.pop((status.st_dev, status.st_ino), None)
        os.close(descriptor)


def _of_this_host(location: Location) -> ShmLocation:
    if not isinstance(location, ShmLocation):
        raise ShmError(f"{location} is on another host; receive it first (art_dataplane.HostReceiver)")
    return location


class SegmentInfo(msgspec.Struct, frozen=True):
    """One segment found in ``/dev/shm``.

    Args:
        name: of the file.
        run_id: of the run that it belongs to.
        owner: the process that made it.
        byte_count: its bytes, in whole pages.
        owner_alive: whether the owner still runs. For one in another PID namespace the kernel's lock on the
            segment says so: also true while a process that the owner forked still runs.
    """

    name: str
    run_id: str
    owner: ProcessIdentity
    byte_count: int
    owner_alive: bool


def list_segments(run_id: str | None = None) -> tuple[SegmentInfo, ...]:
    """The segments of this user, of one run or (``run_id`` None) of all, by name."""
    found: list[SegmentInfo] = []
    for name in sorted(entry.name for entry in os.scandir(SHM_DIRECTORY)):
        if not is_segment_name(name) or (run_id is not None and parse_segment_name(name)[0] != run_id):
            continue
        try:
            info = _inspect(name)
        except FileNotFoundError:  # removed by its owner since the folder was read
            continue
        if info is not None:
            found.append(info)
    return tuple(found)


def _inspect(name: str) -> SegmentInfo | None:
    run, owner = parse_segment_name(name)
    status = os.stat(SHM_DIRECTORY / name, follow_symlinks=False)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        return None
    alive = owner.is_alive()
    if alive is None:
        descriptor = os.open(SHM_DIRECTORY / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            alive = is_locked(descriptor, OWNER_LOCK)
        finally:
            os.close(descriptor)
    return SegmentInfo(name, run, owner, status.st_size, alive)


def sweep(run_id: str | None = None) -> tuple[SegmentInfo, ...]:
    """Removes this user's segments whose owner is dead, of one run or (``run_id`` None) of all.

    Returns:
        What was removed.
    """
    swept: list[SegmentInfo] = []
    for info in list_segments(run_id):
        if info.owner_alive:
            continue
        try:
            descriptor = _open_for_writing(info.name)
        except FileNotFoundError:  # another one swept it
            continue
        try:
            remove_segment(info.name, descriptor)
        finally:
            os.close(descriptor)
        swept.append(info)
    return tuple(swept)


def _open_for_writing(name: str) -> int:
    read_only = os.open(SHM_DIRECTORY / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(read_only, 0o600)
        return os.open(f"/proc/self/fd/{read_only}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(read_only)
