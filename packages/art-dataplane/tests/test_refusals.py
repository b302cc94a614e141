"""What is wrong is refused where it comes in, in words, and not taken for something else."""

import asyncio
import math
import os
import subprocess
import sys
import threading

import msgspec
import numpy as np
import pytest

from art_dataplane import (
    AdvantageRule,
    DataPlaneError,
    DeadlineError,
    InlineLocation,
    KlRule,
    Lease,
    LookaheadRule,
    LossWeightRule,
    NamedTensor,
    PackingError,
    PackingRequest,
    QueueError,
    QueueLimits,
    RecordError,
    Selection,
    SelectionRule,
    ShmError,
    ShmSegmentStore,
    SnapshotError,
    StoreError,
    StreamTransport,
    TrajectoryQueue,
    TrajectoryStore,
    TransportError,
    VersionSpan,
    encode,
    fetch_available,
    fetch_groups,
    list_segments,
    pack_bins,
    read_tensors,
    trajectory_ref,
    write_arrays,
    write_manifest,
)

SELECTION = Selection((), Lease("l", 1, "p", 60.0))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: AdvantageRule(scale="batch"), "did you mean 'batch_std'"),
        (lambda: AdvantageRule(baseline="loo"), "one of 'mean', 'leave_one_out'"),
        (lambda: AdvantageRule(zero_variance="x"), "'drop', 'keep'"),
        (lambda: LossWeightRule("token-mean"), "did you mean 'token_mean'"),
        (lambda: KlRule(0.1, "x"), "place is 'x'"),
        (lambda: SelectionRule("x"), "order is 'x'"),
        (lambda: LookaheadRule("x"), "on_change is 'x'"),
        (lambda: PackingRequest(SELECTION, 8, 1, 0, objective="SFT"), "objective is 'SFT'"),
        (lambda: PackingRequest(SELECTION, 8, 1, 0, merge_routes="x"), "merge_routes is 'x'"),
    ],
)
def test_a_misspelt_word_of_a_rule_is_refused(make, word):
    with pytest.raises(ValueError, match=word):
        make()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"reward": True}, "reward True is not a number"),
        ({"reward": np.bool_(True)}, "is not a number"),
        ({"reward": np.array(1.0)}, "is not a number"),
        ({"reward": "1"}, "reward '1' is not a number"),
        ({"reward": 10**400}, "too large for float32"),
        ({"reward": 1e308}, "too large for float32"),
        ({"metrics": {"x": True}}, "metric 'x' is True"),
        ({"metadata": {"x": [1]}}, "metadata 'x' is"),
        ({"metadata": {1: 2}}, "metadata 1 is 2"),
        ({"metadata": {"x": object()}}, "metadata 'x' is"),
        ({"metadata": {"x": 10**30}}, "record .* cannot be encoded"),
        ({"record_id": "\ud800"}, "cannot be encoded"),
    ],
)
def test_a_record_that_cannot_travel_is_refused_by_its_store(record, fields, word):
    store = TrajectoryStore("w", 10, 1 << 20)
    with pytest.raises(RecordError, match=word):
        store.put(msgspec.structs.replace(record(), **fields))
    assert asyncio.run(store.stats()).record_count == 0


def test_numbers_of_numpy_are_numbers(record):
    given = msgspec.structs.replace(record(), reward=np.float32(0.5), metrics={"x": np.int64(3)})
    ref = TrajectoryStore("w", 10, 1 << 20).put(given)
    assert ref.reward == 0.5


@pytest.mark.parametrize("temperature", [1e-300, 1e300, math.nan, -1.0])
def test_a_temperature_is_one_that_float32_can_hold(exchange, temperature):
    with pytest.raises(RecordError, match="temperature"):
        msgspec.structs.replace(exchange([1], [2]), temperature=temperature).validate()


def test_a_version_is_one_that_int32_can_hold(exchange):
    given = exchange([1], [2])
    spans = (VersionSpan(0, len(given.completion_ids), 2**31),)
    with pytest.raises(RecordError, match="completion_spans"):
        msgspec.structs.replace(given, completion_spans=spans).validate()


@pytest.mark.parametrize("fetch", [fetch_groups, fetch_available])
@pytest.mark.parametrize("deadline_s", [math.inf, math.nan, -1.0])
async def test_nothing_is_fetched_without_an_end(record, fetch, deadline_s):
    class Silent:
        async def fetch(self, *_):
            await asyncio.Event().wait()

    ref = trajectory_ref(record(), "w")
    selection = Selection(((ref,),), Lease("l", 1, "p", 60.0))
    async with asyncio.timeout(30):
        with pytest.raises(DeadlineError, match="finite number of seconds"):
            await fetch(selection, {"w": Silent()}, deadline_s)


async def test_an_owner_that_runs_out_of_time_is_late(record):
    class Proxy:
        async def fetch(self, *_):
            raise TimeoutError("the socket was silent")

    selection = Selection(((trajectory_ref(record(), "w"),),), Lease("l", 1, "p", 60.0))
    with pytest.raises(DeadlineError, match=r"owners \['w'\] within 1.0 s") as caught:
        await fetch_groups(selection, {"w": Proxy()}, 1.0)
    assert str(caught.value.__cause__) == "the socket was silent"


@pytest.mark.parametrize("changes", [{"reward": 99.0}, {"group_id": "other"}])
async def test_an_owner_that_sends_something_else_is_named(record, changes):
    class Wrong:
        async def fetch(self, *_):
            return InlineLocation(encode([msgspec.structs.replace(record(), **changes)]))

    selection = Selection(((trajectory_ref(record(), "w"),),), Lease("l", 1, "p", 60.0))
    with pytest.raises(PackingError, match="owner w was asked for"):
        await fetch_groups(selection, {"w": Wrong()}, 1.0)


async def test_an_owner_that_sends_no_records_is_named(record):
    class Wrong:
        async def fetch(self, *_):
            return InlineLocation(b"\x93\x01\x02\x03")

    selection = Selection(((trajectory_ref(record(), "w"),),), Lease("l", 1, "p", 60.0))
    with pytest.raises(PackingError, match="owner w was asked for 1 records and sent something else"):
        await fetch_groups(selection, {"w": Wrong()}, 1.0)


def test_a_closed_store_takes_nothing(run_id):
    with ShmSegmentStore(run_id, 1 << 20) as store:
        pass
    with pytest.raises(ShmError, match="was closed"):
        store.reserve(1)
    assert list_segments(run_id) == ()


def test_a_store_that_is_forgotten_takes_its_segments_along(run_id):
    code = (
        "from art_dataplane import ShmSegmentStore, list_segments\n"
        f"store = ShmSegmentStore({run_id!r}, 1 << 20)\n"
        "with store.reserve(10) as reservation: reservation.commit()\n"
        f"print(len(list_segments({run_id!r})))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "1\n"
    assert list_segments(run_id) == ()


def test_a_forked_child_is_told_even_when_a_thread_was_inside_at_the_fork(run_id):
    with ShmSegmentStore(run_id, 1 << 20) as store:
        inside, leave = threading.Event(), threading.Event()

        def hold():
            with store._lock:
                inside.set()
                leave.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(30)
        child = os.fork()
        if child == 0:  # the child ends here whatever happens
            code = 1
            try:
                for use in (lambda: store.reserve(1), store.stats):
                    with pytest.raises(ShmError, match="make one in"):
                        use()
                store.close()
                code = 0
            finally:
                os._exit(code)
        leave.set()
        thread.join(30)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("limits", [(math.nan, 1, 1), (1.5, 2, 2), (1, 1, 0)])
def test_the_limits_of_a_queue_are_whole_numbers(limits):
    with pytest.raises(QueueError, match="positive whole numbers"):
        TrajectoryQueue(QueueLimits(*limits))


@pytest.mark.parametrize("bounds", [(math.nan, 1, 1), (1, 1.5, None), (1, 1, 0), (True, 1, 1)])
def test_the_bounds_of_a_store_are_whole_numbers(bounds):
    with pytest.raises(StoreError, match="positive whole numbers"):
        TrajectoryStore("w", bounds[0], bounds[1], max_groups=bounds[2])


@pytest.mark.parametrize("room", [(1.5, 1), (1, math.nan), (True, 1)])
async def test_room_is_reserved_in_whole_numbers(room):
    with pytest.raises(QueueError, match="positive and whole"):
        await TrajectoryQueue(QueueLimits(2, 2, 2)).reserve("g0", *room, 1.0)
    with pytest.raises(StoreError, match="positive whole numbers"):
        await TrajectoryStore("w", 2, 2).reserve("g0", *room, holder="p", lease_s=1.0, deadline_s=1.0)


@pytest.mark.parametrize("bounds", [(math.nan, 0), (1.5, 0), (1 << 20, 0.5)])
def test_the_bounds_of_a_segment_store_are_whole_numbers(run_id, bounds):
    with pytest.raises(ShmError, match="whole number of bytes"):
        ShmSegmentStore(run_id, bounds[0], recycle_bytes=bounds[1])


async def test_a_share_of_groups_is_not_selected():
    queue = TrajectoryQueue(QueueLimits(2, 2, 2))
    with pytest.raises(QueueError, match=r"cannot select 1.5 groups"):
        await queue.select(1.5, SelectionRule(), 1.0)


async def test_what_is_no_segment_or_no_number_is_not_offered(segments):
    transport = StreamTransport("127.0.0.1")
    try:
        with pytest.raises(TransportError, match="it is no segment of this host"):
            await transport.offer(InlineLocation(b"x"), duration_s=1.0)
        with segments.reserve(8) as reservation:
            location = reservation.commit()
        with pytest.raises(TransportError, match=r"1.5 reads"):
            await transport.offer(location, duration_s=1.0, reads=1.5)
    finally:
        await transport.close(5.0)


def test_arrays_of_another_byte_order_are_named(segments):
    with pytest.raises(DataPlaneError, match=r"'x' has the byte order of >i4; write x.astype\('int32'\)"):
        write_arrays({"x": np.arange(3, dtype=">i4")}, segments)


def test_items_of_bins_are_whole():
    with pytest.raises(ValueError, match="items have whole sizes"):
        pack_bins([1.9, 1.9], 3)


def test_a_manifest_that_miscounts_its_bytes_is_refused(segments):
    tensor = NamedTensor("x", "float32", (2,), np.ones(2, np.float32))
    manifest = write_manifest(0, "{}", [tensor], segments)
    with pytest.raises(SnapshotError, match="says 9 bytes; its tensors have 8"):
        read_tensors(msgspec.structs.replace(manifest, byte_count=9))
    with pytest.raises(SnapshotError, match="version -1 is negative"):
        write_manifest(-1, "{}", [tensor], segments)
