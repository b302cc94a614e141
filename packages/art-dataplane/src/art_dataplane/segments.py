"""Segments as files: how they are named, created, mapped, found and removed. Linux only.

A segment is a file in ``/dev/shm`` named ``art-RUN-PID-START.NAMESPACE-SEQUENCE``: the name says which run it
belongs to and which process owns it, so that any other process can tell an orphan from a segment in use. No
resource tracker takes part: only the owner removes a segment while it lives.
"""

import errno
import itertools
import mmap
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from art_dataplane.errors import ShmError, ShmFullError
from art_dataplane.locations import InlineLocation, Location, ShmLocation
from art_dataplane.processes import ProcessIdentity

SHM_DIRECTORY = Path("/dev/shm")

_RUN = r"[A-Za-z0-9_.\-]{1,96}"
_NAME = re.compile(rf"art-(?P<run>{_RUN})-(?P<pid>[0-9]+)-(?P<start>[0-9]+)\.(?P<ns>[0-9]+)-(?P<seq>[0-9]+)")
_sequence = itertools.count()


class MappedBytes:
    """A read-only view of a location's bytes. Made by :func:`map_location`; close it, or use ``with``.

    After ``close()`` the view here is revoked. Memory that others still see through views taken before stays
    mapped until the last of these is gone, so nobody ever reads unmapped memory.
    """

    def __init__(self, view: memoryview, mapping: mmap.mmap | None) -> None:
        self._view: memoryview | None = view
        self._mapping = mapping

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
        view, mapping, self._view, self._mapping = self._view, self._mapping, None, None
        if view is None:
            return True
        try:
            view.release()
            if mapping is not None:
                mapping.close()
        except BufferError:
            return False
        return True

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

    Raises:
        ShmError: the segment is gone, smaller than the location says, not one of ART's, or on another host.
    """
    if isinstance(location, InlineLocation):
        return MappedBytes(memoryview(location.data).toreadonly(), None)
    if not isinstance(location, ShmLocation):
        raise ShmError(f"{location} is on another host; receive it first (art_dataplane.HostReceiver)")
    parse_segment_name(location.name)
    end = location.offset + location.byte_count
    if location.offset < 0 or location.byte_count <= 0:
        raise ShmError(
            f"segment {location.name}: {location.byte_count} bytes at {location.offset} cannot be mapped"
        )
    try:
        descriptor = os.open(SHM_DIRECTORY / location.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ShmError(
            f"segment {location.name} does not exist: its owner dropped it, ended, or runs on another host"
        ) from error
    try:
        size = os.fstat(descriptor).st_size
        if size < end:
            raise ShmError(f"segment {location.name} holds {size} bytes, the location ends at {end}")
        mapping = mmap.mmap(descriptor, end, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return MappedBytes(memoryview(mapping)[location.offset : end], mapping)


class SegmentInfo(msgspec.Struct, frozen=True):
    """One segment found in ``/dev/shm``.

    Args:
        name: of the file.
        run_id: of the run that it belongs to.
        owner: the process that made it.
        byte_count: its bytes, in whole pages.
        owner_alive: whether the owner still runs; None for one in another PID namespace.
    """

    name: str
    run_id: str
    owner: ProcessIdentity
    byte_count: int
    owner_alive: bool | None


def is_run_id(text: str) -> bool:
    """Whether ``text`` can name a run: 1 to 96 letters, digits, ``_``, ``.`` and ``-``."""
    return re.fullmatch(_RUN, text) is not None


def new_segment_name(run_id: str, owner: ProcessIdentity) -> str:
    """A name that no other segment has."""
    return f"art-{run_id}-{owner.pid}-{owner.start_ticks}.{owner.namespace}-{next(_sequence)}"


def parse_segment_name(name: str) -> tuple[str, ProcessIdentity]:
    """Returns the run and the owner that a segment's name states.

    Raises:
        ShmError: the name is not one that this package gives.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ShmError(f"{name!r} is not the name of a segment of ART")
    return match["run"], ProcessIdentity(int(match["pid"]), int(match["start"]), int(match["ns"]))


def list_segments(run_id: str | None = None) -> tuple[SegmentInfo, ...]:
    """The segments of this user, of one run or (``run_id`` None) of all, by name."""
    found: list[SegmentInfo] = []
    for entry in sorted(os.scandir(SHM_DIRECTORY), key=lambda entry: entry.name):
        match = _NAME.fullmatch(entry.name)
        if match is None or (run_id is not None and match["run"] != run_id):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # removed by its owner since the folder was read
            continue
        if status.st_uid == os.geteuid():
            run, owner = parse_segment_name(entry.name)
            found.append(SegmentInfo(entry.name, run, owner, status.st_size, owner.is_alive()))
    return tuple(found)


def sweep(run_id: str | None = None) -> tuple[SegmentInfo, ...]:
    """Removes this user's segments whose owner is dead, of one run or (``run_id`` None) of all.

    Returns:
        What was removed.
    """
    dead = tuple(info for info in list_segments(run_id) if info.owner_alive is False)
    for info in dead:
        unlink_segment(info.name)
    return dead


def create_segment(name: str, byte_count: int) -> int:
    """Creates a segment with all its pages allocated; returns its descriptor.

    Raises:
        ShmFullError: no room in ``/dev/shm``; nothing was left behind.
    """
    status = os.statvfs(SHM_DIRECTORY)
    free = status.f_bavail * status.f_frsize
    if free < byte_count:
        raise _no_space(byte_count, free)
    path = SHM_DIRECTORY / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, byte_count)
    except BaseException as error:
        os.close(descriptor)
        unlink_segment(name)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise _no_space(byte_count, free) from error
        raise
    return descriptor


def _no_space(byte_count: int, free: int) -> ShmFullError:
    return ShmFullError(
        f"a segment of {byte_count} bytes does not fit into {SHM_DIRECTORY}: {free} bytes are free; "
        "stop what fills it, run a sweep, or give the container a larger shm size"
    )


def unlink_segment(name: str) -> None:
    """Removes a segment's name; mappings stay valid."""
    (SHM_DIRECTORY / name).unlink(missing_ok=True)
