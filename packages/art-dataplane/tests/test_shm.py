"""Real segments, real processes, real kills."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import art_dataplane.segments as segments_module
import art_dataplane.shm as shm_module
from art_dataplane import (
    LeaseError,
    Outcome,
    ProcessIdentity,
    ShmError,
    ShmFullError,
    ShmLocation,
    ShmSegmentStore,
    list_segments,
    map_location,
    sweep,
)

PAGE = os.sysconf("SC_PAGESIZE")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def commit(store: ShmSegmentStore, data: bytes) -> ShmLocation:
    with store.reserve(len(data)) as reservation:
        reservation.buffer[:] = data
        return reservation.commit()


def read(location) -> bytes:
    with map_location(location) as mapped:
        return bytes(mapped.view)


def start_owner(run_id: str) -> tuple[subprocess.Popen, ShmLocation]:
    """Another process that owns one committed segment of five bytes and waits."""
    code = (
        "import sys; from art_dataplane import ShmSegmentStore\n"
        f"store = ShmSegmentStore({run_id!r}, 1 << 20)\n"
        "r = store.reserve(5); r.buffer[:] = b'hello'; print(r.commit().name, flush=True)\n"
        "sys.stdin.read(); store.close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    name = process.stdout.readline().strip()
    assert name, "the owner did not start"
    return process, ShmLocation(name, 0, 5)


def finish(process: subprocess.Popen) -> None:
    process.communicate(timeout=30)


def test_bytes_written_in_place_are_read_by_name(segments, run_id):
    location = commit(segments, b"some bytes")
    assert location.name.startswith(f"art-{run_id}-{os.getpid()}-")
    assert read(location) == b"some bytes"
    assert read(ShmLocation(location.name, 5, 5)) == b"bytes"
    assert segments.drop(location)
    assert not segments.drop(location)
    with pytest.raises(ShmError, match="does not exist: its owner dropped it"):
        map_location(location)


def test_a_reservation_that_is_not_committed_leaves_nothing(segments, run_id):
    def write_half(reservation):
        with reservation:
            reservation.buffer[:3] = b"abc"
            raise RuntimeError("half way")

    reservation = segments.reserve(100)
    with pytest.raises(RuntimeError, match="half way"):
        write_half(reservation)
    assert list_segments(run_id) == ()
    with pytest.raises(ShmError, match="is over"):
        _ = reservation.buffer
    with pytest.raises(ShmError, match="is over"):
        reservation.commit()


def test_committing_waits_for_nobody_who_could_still_write(segments):
    reservation = segments.reserve(64)
    writer = np.frombuffer(reservation.buffer, np.uint8)
    with pytest.raises(ShmError, match="views of its buffer exist"):
        reservation.commit()
    writer[:] = 7
    del writer
    assert read(reservation.commit()) == b"\x07" * 64


def test_aborting_under_a_writer_is_safe(segments, run_id):
    reservation = segments.reserve(64)
    writer = np.frombuffer(reservation.buffer, np.uint8)
    reservation.abort()
    writer[:] = 7  # still memory, but nobody's segment
    assert writer.sum() == 7 * 64
    assert list_segments(run_id) == ()


def test_mapped_bytes_cannot_be_written(segments):
    location = commit(segments, b"abc")
    with map_location(location) as mapped:
        assert mapped.view.readonly
        assert not np.frombuffer(mapped.view, np.uint8).flags.writeable


def test_views_taken_before_a_close_stay_readable_and_later_access_raises(segments):
    mapped = map_location(commit(segments, b"abcd" * 1000))
    taken = np.frombuffer(mapped.view, np.uint8)
    assert mapped.close() is False
    with pytest.raises(ShmError, match="closed"):
        _ = mapped.view
    assert taken[:4].tolist() == [97, 98, 99, 100]
    assert mapped.close() is True


def test_a_committed_segment_is_its_users_and_read_only(segments):
    location = commit(segments, b"abc")
    status = os.stat(f"/dev/shm/{location.name}")
    assert (status.st_mode & 0o777, status.st_uid) == (0o400, os.geteuid())


def test_a_mapping_survives_the_drop_of_its_segment(segments):
    location = commit(segments, b"abc")
    with map_location(location) as mapped:
        segments.drop(location)
        assert bytes(mapped.view) == b"abc"


def test_the_capacity_counts_pages_and_is_never_exceeded(run_id):
    with ShmSegmentStore(run_id, 3 * PAGE) as store:
        first = commit(store, b"x")
        commit(store, b"x" * (PAGE + 1))
        with pytest.raises(
            ShmFullError, match=rf"{PAGE} bytes does not fit: {3 * PAGE} of {3 * PAGE} bytes are used by 2"
        ):
            store.reserve(1)
        store.drop(first)
        assert store.stats().used_bytes == 2 * PAGE
        commit(store, b"x")


def test_a_file_system_without_room_is_an_error_before_anything_is_written(run_id):
    status = os.statvfs("/dev/shm")
    too_many = (status.f_blocks + 1) * status.f_frsize  # more than others could free meanwhile
    with ShmSegmentStore(run_id, 2 * too_many) as store:
        with pytest.raises(ShmFullError, match=r"does not fit into /dev/shm: \d+ bytes are free"):
            store.reserve(too_many)
        assert list_segments(run_id) == ()


def test_room_that_vanishes_after_the_check_is_the_same_error(run_id, monkeypatch):
    size = (os.statvfs("/dev/shm").f_blocks + 1) * os.statvfs("/dev/shm").f_frsize

    class Plenty:
        f_bavail, f_frsize = 1 << 50, 1

    monkeypatch.setattr(segments_module.os, "statvfs", lambda _: Plenty)
    with ShmSegmentStore(run_id, 2 * size) as store:
        with pytest.raises(ShmFullError, match="does not fit into /dev/shm") as caught:
            store.reserve(size)  # the kernel refuses to allocate it
        assert caught.value.__cause__.errno == errno.ENOSPC
        assert list_segments(run_id) == ()


def test_every_page_is_there_before_the_first_write(segments, run_id):
    reservation = segments.reserve(100 * PAGE)
    (info,) = list_segments(run_id)
    assert os.stat(f"/dev/shm/{info.name}").st_blocks * 512 >= 100 * PAGE
    reservation.abort()


def test_the_segments_finished_last_are_kept(run_id):
    with ShmSegmentStore(run_id, 1 << 20, recycle_bytes=4 * PAGE) as store:
        small = [commit(store, b"a") for _ in range(4)]
        large = commit(store, b"b" * (3 * PAGE))
        inode = os.stat(f"/dev/shm/{large.name}").st_ino
        for location in (*small, large):
            store.drop(location, reusable=True)
        assert (store.stats().spare_bytes, store.stats().used_bytes) == (4 * PAGE, 0)
        assert os.stat(f"/dev/shm/{commit(store, b'c' * (3 * PAGE)).name}").st_ino == inode
        too_large = commit(store, b"d" * (5 * PAGE))
        store.drop(too_large, reusable=True)
        assert store.stats().spare_bytes == PAGE


def test_finished_segments_are_used_again_under_a_new_name(run_id):
    with ShmSegmentStore(run_id, 1 << 20, recycle_bytes=4 * PAGE) as store:
        first = commit(store, b"a" * (2 * PAGE))
        inode = os.stat(f"/dev/shm/{first.name}").st_ino
        store.drop(first, reusable=True)
        assert (store.stats().used_bytes, store.stats().spare_bytes) == (0, 2 * PAGE)
        with pytest.raises(ShmError, match="does not exist"):
            map_location(first)
        second = commit(store, b"b" * (PAGE + 1))
        assert os.stat(f"/dev/shm/{second.name}").st_ino == inode
        assert read(second) == b"b" * (PAGE + 1)
        assert store.stats().spare_bytes == 0
        store.drop(second)  # a reader may have it: never used again
        assert store.stats().spare_bytes == 0
    assert list_segments(run_id) == ()


def test_spare_segments_make_room_and_stay_within_their_bound(run_id):
    with ShmSegmentStore(run_id, 4 * PAGE, recycle_bytes=3 * PAGE) as store:
        two, one, other = (commit(store, b"x" * size) for size in (2 * PAGE, PAGE, PAGE))
        for location in (two, one, other):
            store.drop(location, reusable=True)
        assert store.stats().spare_bytes == 2 * PAGE  # the third made room for itself
        commit(store, b"x" * (4 * PAGE))
        assert (store.stats().used_bytes, store.stats().spare_bytes) == (4 * PAGE, 0)


def test_leases_on_segments_end_by_release_fence_or_deadline(run_id):
    clock = Clock()
    with ShmSegmentStore(run_id, 1 << 20, clock=clock) as store:
        locations = [commit(store, b"x") for _ in range(4)]
        leases = [store.grant(location, "trainer", 10.0) for location in locations[:3]]
        with pytest.raises(LeaseError, match="is leased to 'trainer'"):
            store.grant(locations[0], "other", 10.0)
        with pytest.raises(LeaseError, match="is not one on"):
            store.release(locations[1], leases[0], Outcome.CONSUMED)
        store.release(locations[0], leases[0], Outcome.DISCARDED)
        assert read(locations[0]) == b"x"
        assert store.reclaim(leases[1].fence) == (locations[1],)
        with pytest.raises(LeaseError, match="not in force"):
            store.release(locations[1], leases[1], Outcome.CONSUMED)
        clock.now = 11.0
        assert store.reclaim_expired() == (locations[2],)
        assert {info.name for info in list_segments(run_id)} == {locations[0].name, locations[3].name}
        with pytest.raises(ShmError, match="is not held here"):
            store.grant(locations[2], "trainer", 1.0)


def test_another_process_maps_what_it_does_not_own_and_leaves_it_there(segments, run_id):
    process, location = start_owner(run_id)
    try:
        assert read(location) == b"hello"
        assert [info.owner_alive for info in list_segments(run_id)] == [True]
        assert sweep(run_id) == ()
        assert not segments.drop(location)
    finally:
        finish(process)
    assert list_segments(run_id) == ()


def test_what_a_killed_owner_left_is_found_and_swept_only_once_it_is_dead(run_id):
    process, location = start_owner(run_id)
    process.kill()
    try:
        # Not reaped yet: a zombie is dead.
        deadline = time.monotonic() + 10
        while list_segments(run_id)[0].owner_alive and time.monotonic() < deadline:
            time.sleep(0.01)
        with map_location(location) as mapped:
            (swept,) = sweep(run_id)
            assert (swept.name, swept.owner.pid, swept.run_id) == (location.name, process.pid, run_id)
            assert bytes(mapped.view) == b"hello"
    finally:
        process.communicate(timeout=30)
    assert list_segments(run_id) == ()


def test_a_reused_process_id_is_not_mistaken_for_the_owner(run_id):
    me = ProcessIdentity.current()
    earlier = f"art-{run_id}-{me.pid}-{me.start_ticks - 1}.{me.namespace}-0"
    mine = f"art-{run_id}-{me.pid}-{me.start_ticks}.{me.namespace}-999999"
    paths = [Path("/dev/shm") / name for name in (earlier, mine)]
    for path in paths:
        path.write_bytes(b"x")
    try:
        assert {info.name: info.owner_alive for info in list_segments(run_id)} == {earlier: False, mine: True}
        assert [info.name for info in sweep(run_id)] == [earlier]
        assert [path.exists() for path in paths] == [False, True]
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def test_an_owner_in_another_namespace_lives_as_long_as_it_holds_its_lock(segments, run_id):
    me = ProcessIdentity.current()
    elsewhere = f"art-{run_id}-{me.pid}-{me.start_ticks}.{me.namespace + 1}-0"
    location = commit(segments, b"abc")
    os.link(f"/dev/shm/{location.name}", f"/dev/shm/{elsewhere}")
    assert {info.name: info.owner_alive for info in list_segments(run_id)}[elsewhere] is True
    assert sweep(run_id) == ()
    segments.drop(location)
    assert [(info.name, info.owner_alive) for info in list_segments(run_id)] == [(elsewhere, False)]
    assert [info.name for info in sweep(run_id)] == [elsewhere]
    assert list_segments(run_id) == ()


def test_a_run_whose_name_begins_like_another_is_left_alone(run_id):
    me = ProcessIdentity.current()
    path = Path("/dev/shm") / f"art-{run_id}-b-{me.pid}-1.{me.namespace}-0"
    path.write_bytes(b"x")
    try:
        assert sweep(run_id) == ()
        assert [info.run_id for info in sweep(f"{run_id}-b")] == [f"{run_id}-b"]
    finally:
        path.unlink(missing_ok=True)


def _use_in_child(store, location, results):
    outcomes = []
    for action in (lambda: store.reserve(1), store.close):
        try:
            action()
            outcomes.append("done")
        except ShmError as error:
            outcomes.append(str(error))
    results.put((*outcomes, read(location)))


def test_a_forked_child_neither_uses_nor_removes_what_its_parent_owns(segments):
    location = commit(segments, b"abc")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_use_in_child, args=(segments, location, results))
    child.start()
    refused, closed, seen = results.get(timeout=30)
    child.join(30)
    assert f"belongs to process {os.getpid()}" in refused
    assert (closed, seen) == ("done", b"abc")
    assert read(location) == b"abc"


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "art-x/../../etc/passwd", "psm_1234", "art-run-1-2.3-", "", "art-r-1-2.3-4\n"]
)
def test_names_that_are_not_ours_are_never_opened(name):
    with pytest.raises(ShmError, match="is not the name of a segment of ART"):
        map_location(ShmLocation(name, 0, 1))


def test_locations_beyond_the_segment_are_refused(segments):
    location = commit(segments, b"abc")
    for offset, count in ((0, PAGE + 1), (PAGE, 1), (-1, 2), (0, 0), (0, -1)):
        with pytest.raises(ShmError, match=r"the location ends at|cannot be mapped"):
            map_location(ShmLocation(location.name, offset, count))


def test_bad_stores_and_sizes_are_refused(run_id, segments):
    for bad in ("", "a/b", "a b", "x" * 97):
        with pytest.raises(ShmError, match="run id"):
            ShmSegmentStore(bad, 1)
    with pytest.raises(ShmError, match="must be positive"):
        ShmSegmentStore(run_id, 0)
    with pytest.raises(ShmError, match="of 0 bytes"):
        segments.reserve(0)


def test_elsewhere_than_linux_the_error_says_so(run_id, monkeypatch):
    monkeypatch.setattr(shm_module.sys, "platform", "darwin")
    with pytest.raises(ShmError, match="needs Linux with /dev/shm; this is darwin"):
        ShmSegmentStore(run_id, 1)


def test_a_closed_store_takes_open_reservations_with_it(run_id):
    store = ShmSegmentStore(run_id, 1 << 20)
    reservation = store.reserve(10)
    store.close()
    assert list_segments(run_id) == ()
    with pytest.raises(ShmError, match="its store was closed"):
        reservation.commit()


def test_killing_a_writer_leaves_what_a_sweep_removes(run_id):
    code = (
        "import os, signal; from art_dataplane import ShmSegmentStore\n"
        f"r = ShmSegmentStore({run_id!r}, 1 << 20).reserve(1000); r.buffer[:500] = b'x' * 500\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert len(sweep(run_id)) == 1
    assert list_segments(run_id) == ()


def test_a_new_store_removes_what_a_killed_owner_of_any_run_left(run_id):
    process, location = start_owner(run_id)
    alive, kept = start_owner(f"{run_id}-alive")
    try:
        process.kill()
        process.wait(30)
        with ShmSegmentStore(f"{run_id}-next", 1 << 20) as store:
            assert location.name in [info.name for info in store.swept]
            assert kept.name not in [info.name for info in store.swept]
        assert list_segments(run_id) == ()
        assert read(kept) == b"hello"
    finally:
        process.communicate(timeout=30)
        finish(alive)
