"""Segments that are used again: nobody ever sees other bytes through what they mapped."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import art_dataplane.segment_files as segment_files
from art_dataplane import Outcome, ShmError, ShmLocation, ShmSegmentStore, list_segments, map_location

PAGE = os.sysconf("SC_PAGESIZE")

READER = """
import os, sys
import numpy as np
from art_dataplane import ShmLocation
from art_dataplane.segments import MappingCache, map_location

def kept(name, count):
    mapped = (cache.map if {cached} else map_location)(ShmLocation(name, 0, count))
    array = np.frombuffer(mapped.view, np.uint8)[3:]
    closed = mapped.close()  # the array is forgotten about
    print(closed, flush=True)
    return array

cache = MappingCache(1 << 30)
array = kept(sys.argv[1], int(sys.argv[2]))
for line in sys.stdin:
    if line.strip() == "fork":
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os.write(1, (str(set(array.tolist())) + chr(10)).encode())
            os._exit(0)
        os.close(read)
        array = None
        print("forked", flush=True)
    elif line.strip() == "join":
        os.write(write, b"x")
        os.waitpid(child, 0)
        print("joined", flush=True)
    elif line.strip() == "see":
        print(set(array.tolist()), flush=True)
    elif line.strip() == "end":
        array = None
        print("ended", flush=True)
"""


class Reader:
    """Another process that keeps an array of a segment after it closed the segment."""

    def __init__(self, location: ShmLocation, cached: bool) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                READER.replace("{cached}", str(cached)),
                location.name,
                str(location.byte_count),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "False"

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, what: str) -> str:
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.answer()


@pytest.fixture
def store(run_id):
    with ShmSegmentStore(run_id, 1 << 20, recycle_bytes=1 << 19) as made:
        yield made


@pytest.fixture
def start_reader():
    readers = []

    def start(location, cached):
        readers.append(Reader(location, cached))
        return readers[-1]

    yield start
    for reader in readers:
        reader.process.kill()
        reader.process.communicate(timeout=30)


def commit(store: ShmSegmentStore, value: int, count: int = 3 * PAGE) -> ShmLocation:
    with store.reserve(count) as reservation:
        np.frombuffer(reservation.buffer, np.uint8)[:] = value
        return reservation.commit()


def inode(location: ShmLocation) -> int:
    return os.stat(f"/dev/shm/{location.name}").st_ino


@pytest.mark.parametrize("cached", [False, True])
def test_an_array_that_outlives_its_lease_never_sees_the_next_batch(store, start_reader, cached):
    first = commit(store, 1)
    number = inode(first)
    lease = store.grant(first, "trainer", 60.0)
    reader = start_reader(first, cached)
    store.release(first, lease, Outcome.CONSUMED)
    assert (store.stats().spare_bytes, store.stats().still_mapped_count) == (0, 1)
    second = commit(store, 2)
    assert inode(second) != number
    assert reader.ask("see") == "{1}"
    assert reader.ask("end") == "ended"
    number, lease = inode(second), store.grant(second, "trainer", 60.0)
    store.release(second, lease, Outcome.CONSUMED)
    assert inode(commit(store, 3)) == number
    assert store.stats().recycled_count == 1


@pytest.mark.parametrize("cached", [False, True])
def test_a_killed_reader_has_nothing_mapped(store, start_reader, cached):
    first = commit(store, 1)
    number = inode(first)
    reader = start_reader(first, cached)
    reader.process.send_signal(signal.SIGKILL)
    reader.process.wait(30)
    store.drop(first, reusable=True)
    assert inode(commit(store, 2)) == number
    assert (store.stats().recycled_count, store.stats().still_mapped_count) == (1, 0)


@pytest.mark.parametrize("cached", [False, True])
def test_what_a_reader_forked_counts_as_mapped_after_the_reader_is_done(store, start_reader, cached):
    first = commit(store, 1)
    reader = start_reader(first, cached)
    assert reader.ask("fork") == "forked"
    store.drop(first, reusable=True)
    assert store.stats().still_mapped_count == 1
    commit(store, 2)
    assert [reader.ask("join"), reader.answer()] == ["{1}", "joined"]


@pytest.mark.parametrize("cached", [False, True])
def test_a_reader_that_ended_its_arrays_does_not_keep_the_segment(store, start_reader, cached):
    first = commit(store, 1)
    number = inode(first)
    reader = start_reader(first, cached)
    assert reader.ask("end") == "ended"
    store.drop(first, reusable=True)
    assert inode(commit(store, 2)) == number


def test_the_owner_keeps_its_mapping_and_writes_to_the_same_pages(store):
    def address() -> tuple[int, ShmLocation]:
        with store.reserve(3 * PAGE) as reservation:
            pointer = np.frombuffer(reservation.buffer, np.uint8).ctypes.data
            return pointer, reservation.commit()

    pointer, location = address()
    for _ in range(3):
        store.drop(location, reusable=True)
        again, location = address()
        assert again == pointer


@pytest.mark.parametrize(("recycle_bytes", "kept"), [(0, 0), (2 * PAGE, 0), (3 * PAGE, 1)])
def test_the_owner_keeps_the_mapping_only_of_what_it_can_use_again(run_id, recycle_bytes, kept):
    with ShmSegmentStore(run_id, 1 << 20, recycle_bytes=recycle_bytes) as store:
        number = f" {inode(commit(store, 1))} "
        assert sum(number in line for line in Path("/proc/self/maps").read_text().splitlines()) == kept


def test_an_aborted_segment_is_used_again_unless_somebody_can_write_to_it(store):
    with store.reserve(PAGE):
        pass
    assert store.stats().spare_bytes == PAGE
    reservation = store.reserve(PAGE)
    writer = np.frombuffer(reservation.buffer, np.uint8)
    reservation.abort()
    assert store.stats().spare_bytes == 0
    location = commit(store, 1, PAGE)
    writer[:] = 2
    with map_location(location) as mapped:
        assert set(mapped.view) == {1}
    assert set(writer.tolist()) == {2}


@pytest.mark.parametrize(
    "slicing",
    [
        lambda view: view[5:9],
        lambda view: view[::2],
        np.frombuffer,
        memoryview,
        pickle.PickleBuffer,
        (ctypes.c_char * 64).from_buffer,
    ],
)
def test_no_view_of_any_kind_can_write_to_a_committed_segment(store, slicing):
    reservation = store.reserve(64)
    view = slicing(reservation.buffer)
    with pytest.raises(ShmError, match="cannot be committed while views of its buffer exist"):
        reservation.commit()
    reservation.buffer[:] = bytes(64)
    del view
    location = reservation.commit()
    with map_location(location) as mapped:
        assert bytes(mapped.view) == bytes(64)


def test_a_buffer_that_was_taken_is_revoked_by_the_commit(store):
    reservation = store.reserve(64)
    buffer = reservation.buffer
    reservation.commit()
    with pytest.raises(ValueError, match="released memoryview"):
        buffer[0] = 1


def test_a_reader_between_opening_and_locking_finds_the_segment_gone(store, monkeypatch):
    """The owner drops the segment, and writes the next, while a reader stands between its steps."""
    location = commit(store, 1)
    real_lock = segment_files.lock

    def late(descriptor, word, *, shared=False):
        if shared:
            store.drop(location, reusable=True)
            commit(store, 2)
        return real_lock(descriptor, word, shared=shared)

    with monkeypatch.context() as patched:
        patched.setattr(segment_files, "lock", late)
        with pytest.raises(ShmError, match="does not exist"):
            map_location(location)
    assert store.stats().recycled_count == 1


def test_a_reader_that_finds_the_segment_being_written_again_is_told_that_it_is_gone(store, monkeypatch):
    location = commit(store, 1)
    real_lock = segment_files.lock
    reservations = []

    def late(descriptor, word, *, shared=False):
        if shared:
            store.drop(location, reusable=True)
            reservations.append(store.reserve(PAGE * 3))
        return real_lock(descriptor, word, shared=shared)

    with monkeypatch.context() as patched:
        patched.setattr(segment_files, "lock", late)
        with pytest.raises(ShmError, match="does not exist"):
            map_location(location)
    assert store.stats().recycled_count == 1
    reservations[0].abort()


def test_a_reader_that_locked_first_keeps_the_owner_from_using_the_segment(store, monkeypatch):
    location = commit(store, 1)
    real_names = segment_files._names

    def late(path, descriptor):
        found = real_names(path, descriptor)
        store.drop(location, reusable=True)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(segment_files, "_names", late)
        mapped = map_location(location)
    assert store.stats().still_mapped_count == 1
    commit(store, 2)
    assert set(mapped.view) == {1}
    mapped.close()


SLOPPY = """
import sys
import numpy as np
from art_dataplane import ShmLocation
from art_dataplane.segments import MappingCache

cache = MappingCache(1 << 30)
kept = []
wrong = 0
for line in sys.stdin:
    name, count, value = line.split()
    mapped = cache.map(ShmLocation(name, 0, int(count)))
    array = np.frombuffer(mapped.view, np.uint8)
    kept.append((array, int(value)))
    del array
    mapped.close()
    wrong += sum(not (array == value).all() for array, value in kept)
    while len(kept) > (len(line) + int(value)) % 4:  # forgets to let go of some, for a while
        del kept[0]
    print("done", flush=True)
print(wrong, flush=True)
"""


def test_readers_that_hold_on_to_arrays_see_only_what_they_mapped(run_id):
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", SLOPPY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    sizes = [PAGE, 3 * PAGE, 2 * PAGE - 7, 5 * PAGE + 1]
    try:
        with ShmSegmentStore(run_id, 1 << 20, recycle_bytes=1 << 19) as store:
            for turn in range(300):
                location = commit(store, turn % 251, sizes[turn % 4])
                for reader in readers:
                    reader.stdin.write(f"{location.name} {location.byte_count} {turn % 251}\n")
                    reader.stdin.flush()
                assert [reader.stdout.readline() for reader in readers] == ["done\n"] * 2
                store.drop(location, reusable=True)
            stats = store.stats()
            assert stats.recycled_count > 30
            assert stats.still_mapped_count > 30
        assert [reader.communicate(timeout=30)[0] for reader in readers] == ["0\n"] * 2
    finally:
        for reader in readers:
            reader.kill()
            reader.wait(30)
    assert list_segments(run_id) == ()
