"""Windows on segments: registered once, used again, and zeros in their place when they end."""

import ctypes
import os

import numpy as np
import pytest

from art_dataplane import ShmError, ShmSegmentStore
from art_dataplane.windows import AddressRanges, RegisteredPool, allocate

SIZE = 3 * 4096 + 5


class Registrar:
    def __init__(self, *, refuses: bool = False) -> None:
        self.registered: list[tuple[int, int]] = []
        self.calls = 0
        self.refuses = refuses

    def register(self, address: int, byte_count: int) -> object:
        if self.refuses:
            raise OSError("no")
        self.calls += 1
        self.registered.append((address, byte_count))
        return address, byte_count

    def deregister(self, registration: object) -> None:
        self.registered.remove(registration)


@pytest.fixture
def ranges():
    ranges = AddressRanges()
    yield ranges
    ranges.close()


@pytest.fixture
def store(run_id):
    with ShmSegmentStore(run_id, 1 << 22, recycle_bytes=1 << 21) as store:
        yield store


def committed(store, byte=7):
    with store.reserve(SIZE) as reservation:
        reservation.buffer[:] = bytes([byte]) * SIZE
        return reservation.commit()


def mapped_from(address):
    """The file that is mapped at an address, and whether it can be written, as the kernel says."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights, *_, last = line.split()
            start, end = (int(one, 16) for one in span.split("-"))
            if start <= address < end:
                return last, rights[:2]
    return None


def test_a_window_shows_the_segment_and_is_registered_until_it_ends(ranges, store):
    registrar = Registrar()
    pool = RegisteredPool(registrar, ranges, 1 << 20)
    source = committed(store)
    window = pool.acquire(source.name)
    assert bytes(window.view(0, SIZE)) == b"\7" * SIZE
    assert window.byte_count == pool.byte_count == 4 * 4096
    assert registrar.registered == [(window.address, window.byte_count)]
    assert mapped_from(window.address) == (f"/dev/shm/{source.name}", "rw")
    assert os.stat(f"/dev/shm/{source.name}").st_mode & 0o777 == 0o400
    address = window.address
    pool.release(window, keep=False)
    assert registrar.registered == []
    assert pool.byte_count == 0
    assert ctypes.string_at(address, SIZE) == bytes(SIZE), "a late reader finds zeros"
    assert mapped_from(address)[1] == "r-"


def test_a_recycled_segment_has_the_same_window(ranges, store):
    registrar = Registrar()
    pool = RegisteredPool(registrar, ranges, 1 << 20)
    first = committed(store, 1)
    window = pool.acquire(first.name)
    pool.release(window, keep=True)
    assert pool.has_spare
    assert store.drop(first, reusable=True)
    second = committed(store, 2)
    assert second.name != first.name
    again = pool.acquire(second.name)
    assert again is window
    assert registrar.calls == 1
    assert bytes(again.view(0, SIZE)) == b"\2" * SIZE
    pool.abandon()


def test_a_segment_that_two_use_ends_with_the_second(ranges, store):
    registrar = Registrar()
    pool = RegisteredPool(registrar, ranges, 0)
    source = committed(store)
    first, second = pool.acquire(source.name), pool.acquire(source.name)
    assert first is second
    pool.release(first, keep=False)
    assert bytes(second.view(0, 3)) == b"\7\7\7"
    assert len(registrar.registered) == 1
    pool.release(second, keep=True)  # but none may be spare
    assert registrar.registered == []


def test_spare_windows_end_with_their_files_and_above_the_bound_the_oldest_first(ranges, store):
    registrar = Registrar()
    pool = RegisteredPool(registrar, ranges, 2 * 4 * 4096)
    sources = [committed(store) for _ in range(3)]
    windows = [pool.acquire(source.name) for source in sources]
    for window in windows:
        pool.release(window, keep=True)
    assert registrar.registered == [(window.address, window.byte_count) for window in windows[1:]]
    store.drop(sources[1])
    pool.sweep()
    assert registrar.registered == [(windows[2].address, windows[2].byte_count)]


def test_ranges_are_used_again_and_end_together(ranges):
    first = ranges.take(5000)
    second = ranges.take(8192)
    assert ranges.byte_count == 2 * 8192
    ranges.give_back(first)
    assert ranges.take(6000) == first
    written = allocate(ranges, 100)
    ctypes.memset(written, 1, 100)
    ranges.give_back(written)
    assert ctypes.string_at(written, 100) == bytes(100)
    assert mapped_from(second) is not None
    ranges.close()
    assert mapped_from(second) is None
    assert ranges.byte_count == 0


def test_what_cannot_be_mapped_or_registered_leaves_nothing(ranges, store):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ShmError, match="does not exist"):
        RegisteredPool(Registrar(), ranges, 0).acquire(committed(store).name + "9")
    with pytest.raises(ShmError, match="is not the name of a segment"):
        RegisteredPool(Registrar(), ranges, 0).acquire("../passwd")
    pool = RegisteredPool(Registrar(refuses=True), ranges, 0)
    source = committed(store)
    with pytest.raises(OSError, match="no"):
        pool.acquire(source.name)
    assert pool.byte_count == 0
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert np.frombuffer(ctypes.string_at(ranges.take(SIZE), SIZE), np.uint8).sum() == 0


def test_a_user_without_the_right_to_write_takes_it_for_the_moment(ranges, store, monkeypatch):
    source = committed(store)
    path = f"/dev/shm/{source.name}"
    really_open = os.open

    def open_as_a_user(name, flags, *rest):
        if str(name) == path and flags & os.O_RDWR and not os.stat(path).st_mode & 0o200:
            raise PermissionError(13, "no", path)  # what anyone but root meets
        return really_open(name, flags, *rest)

    monkeypatch.setattr("art_dataplane.windows.os.open", open_as_a_user)
    pool = RegisteredPool(Registrar(), ranges, 0)
    window = pool.acquire(source.name)
    assert os.stat(path).st_mode & 0o777 == 0o400
    pool.release(window, keep=False)
