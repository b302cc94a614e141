"""Mappings that readers keep between uses of recycled segments."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from art_dataplane import InlineLocation, NixlLocation, ShmError, ShmLocation, ShmSegmentStore, sweep
from art_dataplane.segments import MappingCache, map_location

PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def store(run_id):
    with ShmSegmentStore(run_id, 1 << 20, recycle_bytes=1 << 19) as made:
        yield made


def commit(store: ShmSegmentStore, value: int, count: int = PAGE) -> ShmLocation:
    with store.reserve(count) as reservation:
        reservation.buffer[:] = bytes([value]) * count
        return reservation.commit()


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_inodes() -> set[int]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "/dev/shm/art-" in line and " r--s " in line}


def test_a_segment_that_is_used_again_is_mapped_already(store):
    cache = MappingCache(1 << 20)
    places = set()
    for value in range(5):
        location = commit(store, value)
        with cache.map(location) as mapped:
            assert set(mapped.view) == {value}
            places.add(address(mapped.view))
        store.drop(location, reusable=True)
    assert len(places) == 1
    assert store.stats().recycled_count == 4
    assert cache.kept_bytes == PAGE


def test_parts_of_a_segment_and_several_uses_at_a_time_share_its_mapping(store):
    cache = MappingCache(1 << 20)
    location = commit(store, 7, 3 * PAGE)
    part = ShmLocation(location.name, PAGE + 5, 10)
    first, second = cache.map(location), cache.map(part)
    assert second.view.nbytes == 10
    assert address(second.view) == address(first.view) + PAGE + 5
    assert first.close()
    assert set(second.view) == {7}
    store.drop(location, reusable=True)
    assert store.stats().still_mapped_count == 1
    assert set(second.view) == {7}
    assert second.close()


def test_views_taken_before_a_close_keep_their_bytes_and_their_lock(store):
    cache = MappingCache(1 << 20)
    location = commit(store, 1)
    mapped = cache.map(location)
    view = mapped.view
    kept = view[5:9]
    assert mapped.close() is False
    with pytest.raises(ShmError, match="closed"):
        _ = mapped.view
    with pytest.raises(ValueError, match="released memoryview"):
        view[0]
    store.drop(location, reusable=True)
    commit(store, 2)
    assert bytes(kept) == b"\x01" * 4


def test_bytes_are_read_only_and_gone_segments_are_errors(store):
    cache = MappingCache(1 << 20)
    location = commit(store, 1)
    with cache.map(location) as mapped:
        assert mapped.view.readonly
        assert not np.frombuffer(mapped.view, np.uint8).flags.writeable
    store.drop(location, reusable=True)
    with pytest.raises(ShmError, match="does not exist"):
        cache.map(location)
    with pytest.raises(ShmError, match=r"the location ends at"):
        cache.map(ShmLocation(commit(store, 1).name, 0, PAGE + 1))
    with pytest.raises(ShmError, match="is on another host"):
        cache.map(NixlLocation("agent", b"", b"", "t", 1))
    with cache.map(InlineLocation(b"abc")) as mapped:
        assert bytes(mapped.view) == b"abc"
    with cache.map(InlineLocation(b"")) as mapped:
        assert bytes(mapped.view) == b""


def test_no_more_is_kept_than_was_asked_for_and_the_last_used_stay(store):
    cache = MappingCache(2 * PAGE)
    locations = [commit(store, value) for value in range(3)]
    inodes = [os.stat(f"/dev/shm/{location.name}").st_ino for location in locations]
    for index in (0, 1, 0, 2):
        with cache.map(locations[index]):
            pass
    assert cache.kept_bytes == 2 * PAGE
    assert mapped_inodes() & set(inodes) == {inodes[0], inodes[2]}
    cache.close()
    assert cache.kept_bytes == 0
    assert not mapped_inodes() & set(inodes)


def test_a_cache_that_keeps_nothing_still_maps(store):
    cache = MappingCache(0)
    location = commit(store, 3)
    with cache.map(location) as mapped:
        assert set(mapped.view) == {3}
    assert cache.kept_bytes == 0


def test_descriptors_end_with_the_bytes_that_they_are_for(store):
    cache = MappingCache(1 << 20)
    location = commit(store, 3)
    with cache.map(location):
        pass
    before = open_descriptors()
    for _ in range(20):
        mapped = cache.map(location)
        array = np.frombuffer(mapped.view, np.uint8)
        mapped.close()
        assert array[0] == 3
        del array
    assert open_descriptors() == before


def test_bytes_in_a_cycle_are_let_go_by_the_collector(store):
    cache = MappingCache(1 << 20)
    location = commit(store, 3)
    mapped = cache.map(location)
    cycle = [np.frombuffer(mapped.view, np.uint8)]
    cycle.append(cycle)
    assert mapped.close() is False
    del cycle
    gc.collect()
    store.drop(location, reusable=True)
    assert store.stats().still_mapped_count == 0


def test_a_mapping_that_is_only_kept_holds_no_memory_of_a_removed_segment(store, run_id):
    cache = MappingCache(1 << 20)
    location = commit(store, 3, 64 * PAGE)
    with cache.map(location):
        pass
    descriptor = os.open(f"/dev/shm/{location.name}", os.O_RDONLY)
    try:
        assert os.fstat(descriptor).st_blocks * 512 == 64 * PAGE
        store.drop(location)
        assert os.fstat(descriptor).st_blocks == 0
    finally:
        os.close(descriptor)


def test_memory_in_use_outlives_the_segment_and_then_its_mapping_is_not_kept(store):
    cache = MappingCache(1 << 20)
    location = commit(store, 3, 4 * PAGE)
    mapped = cache.map(location)
    store.drop(location)
    assert set(mapped.view) == {3}
    assert cache.kept_bytes == 4 * PAGE
    mapped.close()
    assert cache.kept_bytes == 0


def test_sweeping_gives_the_pages_back_that_a_reader_only_kept(run_id):
    store = ShmSegmentStore(run_id, 1 << 20)
    location = commit(store, 3, 8 * PAGE)
    cache = MappingCache(1 << 20)
    with cache.map(location):
        pass
    dead = location.name.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1")  # started at another time
    os.rename(f"/dev/shm/{location.name}", f"/dev/shm/{dead}")
    descriptor = os.open(f"/dev/shm/{dead}", os.O_RDONLY)
    try:
        assert [info.name for info in sweep(run_id)] == [dead]
        assert os.fstat(descriptor).st_blocks == 0
    finally:
        os.close(descriptor)
        store.close()


def test_uncached_mappings_hold_one_descriptor_and_give_it_back(store):
    location = commit(store, 3)
    before = open_descriptors()
    with map_location(location):
        assert open_descriptors() == before + 1
    assert open_descriptors() == before
