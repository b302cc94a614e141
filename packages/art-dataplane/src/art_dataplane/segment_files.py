"""Segments as files: their names, their locks, and how they are created and removed. Linux only.

A segment is a file in ``/dev/shm`` named ``art-RUN-PID-START.NAMESPACE-SEQUENCE``: the name says which run it
belongs to and which process owns it, so that any other process can tell an orphan from a segment in use.

Two bytes of each file are lock words; the kernel keeps the locks (``F_OFD_SETLK``) and ends them with the
last descriptor of their holder, also when it is killed. They say nothing about the file's contents.

- ``OWNER_LOCK``: its owner holds it from before the name appears until the segment is gone.
- ``USE_LOCK``: shared by everyone who reads the segment, for as long as anything of it is mapped; exclusive
  while the owner writes it or keeps it to be used again. Nobody reads what can change, in no process and no
  namespace, because the kernel does not grant both.
"""

import errno
import fcntl
import itertools
import mmap
import os
import re
import struct
from pathlib import Path

from art_dataplane.errors import ShmError, ShmFullError
from art_dataplane.locations import ShmLocation
from art_dataplane.processes import ProcessIdentity

SHM_DIRECTORY = Path("/dev/shm")

OWNER_LOCK = 0
"""The byte that the owner of a segment has locked."""

USE_LOCK = 1
"""The byte that readers share, or the owner has for itself."""

_RUN = r"[A-Za-z0-9_.\-]{1,96}"
_NAME = re.compile(rf"art-(?P<run>{_RUN})-(?P<pid>[0-9]+)-(?P<start>[0-9]+)\.(?P<ns>[0-9]+)-(?P<seq>[0-9]+)")
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
_sequence = itertools.count()


def is_run_id(text: str) -> bool:
    """Whether ``text`` can name a run: 1 to 96 letters, digits, ``_``, ``.`` and ``-``."""
    return re.fullmatch(_RUN, text) is not None


def new_segment_name(run_id: str, owner: ProcessIdentity) -> str:
    """A name that no other segment has."""
    return f"art-{run_id}-{owner.pid}-{owner.start_ticks}.{owner.namespace}-{next(_sequence)}"


def is_segment_name(name: str) -> bool:
    """Whether ``name`` is one that this package gives."""
    return _NAME.fullmatch(name) is not None


def parse_segment_name(name: str) -> tuple[str, ProcessIdentity]:
    """Returns the run and the owner that a segment's name states.

    Raises:
        ShmError: the name is not one that this package gives.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ShmError(f"{name!r} is not the name of a segment of ART")
    return match["run"], ProcessIdentity(int(match["pid"]), int(match["start"]), int(match["ns"]))


def lock(descriptor: int, word: int, *, shared: bool = False) -> bool:
    """Takes a lock of a segment for all who share this open file; False when another holds it. No waiting."""
    return _set_lock(descriptor, word, fcntl.F_RDLCK if shared else fcntl.F_WRLCK)


def unlock(descriptor: int, word: int) -> None:
    """Gives a lock back."""
    _set_lock(descriptor, word, fcntl.F_UNLCK)


def is_locked(descriptor: int, word: int) -> bool:
    """Whether another open file holds a lock exclusively."""
    asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, word, 1, 0)
    found: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0]
    return found != fcntl.F_UNLCK


def _set_lock(descriptor: int, word: int, kind: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, word, 1, 0))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EACCES:
            return False
        raise
    return True


def create_segment(name: str, byte_count: int) -> int:
    """Creates a segment with all its pages allocated and both locks held; returns its descriptor.

    The name appears last, so nobody finds a segment that is not locked or not complete.

    Raises:
        ShmFullError: no room in ``/dev/shm``; nothing was left behind.
    """
    status = os.statvfs(SHM_DIRECTORY)
    free = status.f_bavail * status.f_frsize
    if free < byte_count:
        raise _no_space(byte_count, free)
    descriptor = os.open(SHM_DIRECTORY, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    try:
        for word in (OWNER_LOCK, USE_LOCK):
            lock(descriptor, word)
        os.posix_fallocate(descriptor, 0, byte_count)
        folder = os.open(SHM_DIRECTORY, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # with a folder's descriptor, os.link follows the link of /proc to the file itself
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise _no_space(byte_count, free) from error
        raise
    return descriptor


def _no_space(byte_count: int, free: int) -> ShmFullError:
    return ShmFullError(
        f"a segment of {byte_count} bytes does not fit into {SHM_DIRECTORY}: {free} bytes are free; "
        "stop what fills it, run a sweep, or give the container a larger shm size"
    )


def open_segment(location: ShmLocation) -> int:
    """Opens a committed segment for reading under its shared lock; returns the descriptor.

    Raises:
        ShmError: the name is not one of ART's, the segment is gone or smaller than the location says.
    """
    if not is_segment_name(location.name):
        raise ShmError(f"{location.name!r} is not the name of a segment of ART")
    end = location.offset + location.byte_count
    if location.offset < 0 or location.byte_count <= 0:
        raise ShmError(
            f"segment {location.name}: {location.byte_count} bytes at {location.offset} cannot be mapped"
        )
    path = f"{SHM_DIRECTORY}/{location.name}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _gone(location.name) from error
    try:
        # The owner takes the name away before it asks for the lock, and we ask for the lock before we look at
        # the name: either it does not get the lock, or we do not find the name.
        if not lock(descriptor, USE_LOCK, shared=True) or not _names(path, descriptor):
            raise _gone(location.name)
        size = os.fstat(descriptor).st_size
        if size < end:
            raise ShmError(f"segment {location.name} holds {size} bytes, the location ends at {end}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _names(path: str, descriptor: int) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _gone(name: str) -> ShmError:
    return ShmError(f"segment {name} does not exist: its owner dropped it, ended, or runs on another host")


def remove_segment(name: str, descriptor: int) -> None:
    """Removes a segment and gives its pages back; when somebody has them mapped, they go with the last.

    Args:
        name: of the segment; it may be gone.
        descriptor: opened for writing; stays open.
    """
    unlink_segment(name)
    # Readers may keep a mapping that nothing refers to any more (MappingCache): it must not hold the pages.
    if lock(descriptor, USE_LOCK) and os.fstat(descriptor).st_size:
        with mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED) as mapping:
            mapping.madvise(mmap.MADV_REMOVE)


def unlink_segment(name: str) -> None:
    """Removes a segment's name; mappings stay valid."""
    (SHM_DIRECTORY / name).unlink(missing_ok=True)
