"""A full file system, names under threads and forks, and readers in other namespaces."""

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from art_dataplane import ShmError, ShmFullError, ShmSegmentStore, list_segments, map_location

IN_A_SMALL_FOLDER = """
import os
from art_dataplane import ShmFullError, ShmSegmentStore, list_segments, map_location

PAGE = os.sysconf("SC_PAGESIZE")
store = ShmSegmentStore("small", 1 << 30, recycle_bytes=1 << 30)

def commit(pages):
    with store.reserve(pages * PAGE) as reservation:
        reservation.buffer[:] = b"x" * (pages * PAGE)
        return reservation.commit()

held = commit(40)
try:
    commit(30)
except ShmFullError as error:
    print(error)
assert len(list_segments("small")) == 1
assert len(os.listdir("/dev/shm")) == 1
commit(24)
with map_location(held) as mapped:
    assert set(mapped.view) == set(b"x")
store.drop(held, reusable=True)
commit(40)  # the pages that are there already
store.close()
assert os.listdir("/dev/shm") == []
print("survived")
"""


def test_a_full_dev_shm_is_an_error_before_the_write_and_the_process_goes_on():
    """A file system of 64 pages in a mount namespace: writing beyond it would be SIGBUS."""
    size = 64 * os.sysconf("SC_PAGESIZE")
    ended = subprocess.run(
        [
            "unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
            f'mount -t tmpfs -o size={size} none /dev/shm && exec "$0" -c "$1"',
            sys.executable, IN_A_SMALL_FOLDER,
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    refused, survived = ended.stdout.splitlines()
    free = 24 * os.sysconf("SC_PAGESIZE")
    assert f"does not fit into /dev/shm: {free} bytes are free; stop what fills it" in refused
    assert survived == "survived"


def test_names_differ_among_threads_and_stores(run_id):
    names: list[str] = []
    with ShmSegmentStore(run_id, 1 << 30) as first, ShmSegmentStore(run_id, 1 << 30) as second:

        def fill(store: ShmSegmentStore) -> None:
            for _ in range(50):
                with store.reserve(1) as reservation:
                    names.append(reservation.commit().name)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(fill, [first, second] * 4))
        assert len(set(names)) == len(names) == 400
        assert {info.name for info in list_segments(run_id)} == set(names)


def _own_store(run_id, names, leave):
    with ShmSegmentStore(run_id, 1 << 20) as store:
        names.put([store.reserve(1).commit().name for _ in range(20)])
        leave.wait(30)


def test_names_differ_among_a_process_and_those_it_forked(run_id):
    context = multiprocessing.get_context("fork")
    names, leave = context.Queue(), context.Event()
    with ShmSegmentStore(run_id, 1 << 20) as store:
        mine = [store.reserve(1).commit().name for _ in range(20)]
        children = [context.Process(target=_own_store, args=(run_id, names, leave)) for _ in range(2)]
        for child in children:
            child.start()
        theirs = [name for _ in children for name in names.get(timeout=30)]
        assert len({*mine, *theirs}) == 60
        assert {info.name for info in list_segments(run_id)} == {*mine, *theirs}
        leave.set()
        for child in children:
            child.join(30)
            assert child.exitcode == 0
        assert {info.name for info in list_segments(run_id)} == set(mine)


def _misuse(store, location, lease, reservation, outcomes):
    for action in (
        lambda: store.drop(location),
        lambda: store.grant(location, "child", 1.0),
        lambda: store.release(location, lease, None),
        lambda: store.reclaim(99),
        lambda: store.reclaim_expired(),
    ):
        try:
            action()
            outcomes.put("done")
        except ShmError as error:
            outcomes.put(str(error))
    reservation.abort()
    outcomes.put("aborted")


def test_a_forked_child_cannot_take_away_what_its_parent_owns(segments, run_id):
    with segments.reserve(3) as reservation:
        reservation.buffer[:] = b"abc"
        location = reservation.commit()
    lease = segments.grant(location, "trainer", 60.0)
    context = multiprocessing.get_context("fork")
    outcomes = context.Queue()
    with segments.reserve(3) as reservation:
        child = context.Process(target=_misuse, args=(segments, location, lease, reservation, outcomes))
        child.start()
        seen = [outcomes.get(timeout=30) for _ in range(6)]
        child.join(30)
        assert all(f"belongs to process {os.getpid()}" in each for each in seen[:5])
        assert seen[5] == "aborted"
        reservation.buffer[:] = b"def"
        second = reservation.commit()
    for place, content in ((location, b"abc"), (second, b"def")):
        with map_location(place) as mapped:
            assert bytes(mapped.view) == content


def test_threads_that_reserve_and_drop_never_exceed_the_capacity(run_id):
    page = os.sysconf("SC_PAGESIZE")
    with ShmSegmentStore(run_id, 12 * page, recycle_bytes=6 * page) as store:
        done = threading.Event()
        seen: set[int] = set()

        def churn(seed: int) -> int:
            refused = 0
            for turn in range(200):
                try:
                    with store.reserve((1 + (seed + turn) % 5) * page) as reservation:
                        reservation.buffer[:1] = b"x"
                        location = reservation.commit()
                except ShmFullError:
                    refused += 1
                else:
                    store.drop(location, reusable=turn % 3 != 0)
            return refused

        def watch() -> None:
            while not done.is_set():
                stats = store.stats()
                seen.add((stats.used_bytes + stats.spare_bytes) // page)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(6) as threads:
            refused = sum(threads.map(churn, range(6)))
        done.set()
        watcher.join(30)
        assert refused > 0
        assert max(seen) <= 12
        stats = store.stats()
        assert (stats.segment_count, stats.used_bytes) == (0, 0)
        assert 0 < stats.spare_bytes <= 6 * page
        assert stats.recycled_count > 0
    assert list_segments(run_id) == ()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_store_with_many_segments_gives_all_descriptors_back(run_id, count):
    before = len(os.listdir("/proc/self/fd"))
    with ShmSegmentStore(run_id, 1 << 20, recycle_bytes=1 << 14) as store:
        locations = []
        for _ in range(count):
            with store.reserve(1) as reservation:
                locations.append(reservation.commit())
        for location in locations[::2]:
            store.drop(location, reusable=True)
    assert len(os.listdir("/proc/self/fd")) == before
