"""Segments mapped for a device that other hosts read and write by address.

What always holds:

- An address that was given to another host stays mapped until :meth:`AddressRanges.close`: when a window
  ends, a page of zeros takes its place. A host that comes late reads zeros; with nothing mapped there, it
  would end this process, since software emulations of remote reads touch the address in the process that
  owns it.
- A window is registered once, and used again while its segment's file lives: stores recycle files.
- Pages of a window that nobody uses are held only while their file has a name, or until the next
  :meth:`RegisteredPool.sweep`.

Nothing here is thread-safe: one thread owns it.
"""

import ctypes
import mmap
import os
from typing import Protocol

from art_dataplane.errors import ShmError
from art_dataplane.segment_files import SHM_DIRECTORY, parse_segment_name

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_POPULATE = 0x8000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class AddressRanges:
    """Ranges of this process's address space, powers of two long, each mapped at all times."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}
        self._all: dict[int, int] = {}

    @property
    def byte_count(self) -> int:
        """Bytes of address space that are held, mapped to zeros or to segments."""
        return sum(self._all.values())

    def take(self, byte_count: int) -> int:
        """A range for ``byte_count`` bytes, of zeros that can only be read; returns its address.

        Raises:
            ShmError: the system has no address space left.
        """
        size = _range_size(byte_count)
        if self._free.get(size):
            return self._free[size].pop()
        address = _map(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)
        self._all[address] = size
        return address

    def give_back(self, address: int) -> None:
        """Puts zeros into a range and keeps it for the next."""
        size = self._all[address]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        _map(address, size, mmap.PROT_READ, flags, -1)
        self._free.setdefault(size, []).append(address)

    def close(self) -> None:
        """Unmaps every range. No other host may be able to reach them any more."""
        for address, size in self._all.items():
            _libc.munmap(address, size)
        self._all.clear()
        self._free.clear()


class Registrar(Protocol):
    """What makes memory reachable for other hosts."""

    def register(self, address: int, byte_count: int) -> object:
        """Registers memory; returns what :meth:`deregister` takes."""
        ...

    def deregister(self, registration: object) -> None:
        """Ends a registration."""
        ...


class Window:
    """A segment's whole file, mapped and registered. Made by :meth:`RegisteredPool.acquire`."""

    def __init__(self, descriptor: int, address: int, byte_count: int) -> None:
        self.descriptor = descriptor
        self.address = address
        self.byte_count = byte_count
        self.registration: object = None
        self.users = 0

    def view(self, offset: int, byte_count: int) -> memoryview:
        """Bytes of the window. The view must not be used after the window was released."""
        array = (ctypes.c_ubyte * byte_count).from_address(self.address + offset)
        return memoryview(array).cast("B")

    @property
    def is_orphan(self) -> bool:
        """Whether its file has no name any more."""
        return os.fstat(self.descriptor).st_nlink == 0


class RegisteredPool:
    """The windows of one registrar.

    Args:
        registrar: registers them.
        ranges: where they are mapped; shared with other pools of the same thread.
        spare_bytes: how many bytes of windows without a user are kept to be used again.
    """

    def __init__(self, registrar: Registrar, ranges: AddressRanges, spare_bytes: int) -> None:
        self._registrar = registrar
        self._ranges = ranges
        self._spare_bytes = spare_bytes
        self._windows: dict[tuple[int, int], Window] = {}

    @property
    def byte_count(self) -> int:
        """Bytes that are mapped and registered, with and without a user."""
        return sum(window.byte_count for window in self._windows.values())

    @property
    def has_spare(self) -> bool:
        """Whether there are windows without a user."""
        return any(window.users == 0 for window in self._windows.values())

    def acquire(self, name: str) -> Window:
        """Maps and registers a segment of this host, to be read and written; each user releases it.

        Raises:
            ShmError: the segment is gone, or its name is not one of a segment.
            TransportError: it cannot be registered.
        """
        descriptor = _open(name)
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        window = self._windows.pop(key, None)
        if window is not None:
            os.close(descriptor)
        else:
            window = self._map(descriptor, status.st_size)
        self._windows[key] = window  # the last of the dict: the one that was used last
        window.users += 1
        return window

    def release(self, window: Window, *, keep: bool) -> None:
        """Ends one use; with the last one, the window is kept for another use or ended.

        Args:
            window: what was acquired.
            keep: whether it may stay mapped; False puts zeros in its place at once.
        """
        window.users -= 1
        if window.users == 0 and not keep:
            self._end(window)
        self.sweep()

    def sweep(self) -> None:
        """Ends windows without a user whose file is gone, and the oldest ones above the bound."""
        spare = [window for window in self._windows.values() if window.users == 0]
        total = sum(window.byte_count for window in spare)
        for window in spare:
            if window.is_orphan or total > self._spare_bytes:
                total -= window.byte_count
                self._end(window)

    def abandon(self) -> None:
        """Ends every window, used or not, of a registrar that has ended and cannot write any more."""
        for window in self._windows.values():
            self._unmap(window)
        self._windows.clear()

    def _map(self, descriptor: int, byte_count: int) -> Window:
        address = self._ranges.take(byte_count)
        window = Window(descriptor, address, byte_count)
        try:
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            _map(address, byte_count, protection, mmap.MAP_SHARED | _MAP_FIXED | _MAP_POPULATE, descriptor)
            window.registration = self._registrar.register(address, byte_count)
        except BaseException:
            self._unmap(window)
            raise
        return window

    def _end(self, window: Window) -> None:
        self._windows = {key: other for key, other in self._windows.items() if other is not window}
        try:
            self._registrar.deregister(window.registration)
        finally:
            self._unmap(window)

    def _unmap(self, window: Window) -> None:
        self._ranges.give_back(window.address)
        os.close(window.descriptor)


def allocate(ranges: AddressRanges, byte_count: int) -> int:
    """Maps zeros that can be written into a range of ``ranges``; returns its address.

    Raises:
        ShmError: there is no memory.
    """
    address = ranges.take(byte_count)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    _map(address, _range_size(byte_count), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1)
    return address


def _range_size(byte_count: int) -> int:
    return max(mmap.PAGESIZE, 1 << (byte_count - 1).bit_length())


def _open(name: str) -> int:
    """Opens a segment to be read and written, though committed ones may only be read: devices register memory
    only with the right to write, and the segment's owner asked for it.
    """
    parse_segment_name(name)
    path = SHM_DIRECTORY / name
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags)
        except PermissionError:
            os.chmod(path, 0o600)
            try:
                return os.open(path, flags)
            finally:
                os.chmod(path, 0o400)
    except FileNotFoundError as error:
        raise ShmError(
            f"segment {name} does not exist: its owner dropped it, ended, or runs on another host"
        ) from error


def _map(address: int | None, byte_count: int, protection: int, flags: int, descriptor: int) -> int:
    mapped: int | None = _libc.mmap(address, byte_count, protection, flags, descriptor, 0)
    if mapped is None or mapped == _FAILED:
        number = ctypes.get_errno()
        raise ShmError(
            f"{byte_count} bytes cannot be mapped: {os.strerror(number)}; "
            "raise the limits of memory or of mappings (vm.max_map_count)"
        )
    return mapped
