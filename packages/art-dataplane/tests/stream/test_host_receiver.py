"""One read per host, whoever asks and whoever fails."""

import asyncio
import multiprocessing
import os
import subprocess
import sys

import msgspec
import pytest

from art_dataplane import (
    DeadlineError,
    InlineLocation,
    Lease,
    PackedBatchRef,
    PackingCounts,
    ProcessIdentity,
    ShmFullError,
    ShmLocation,
    StreamLocation,
    TransportError,
    decode_json,
    map_location,
    read_tensors,
    write_manifest,
)
from art_dataplane.host_receiver import HostReceiver, receive_batch, receive_snapshot
from art_dataplane.transport import choose_transport

HANDSHAKE_BYTES = 32 + 32
SEAL_BYTES = 32


class Scripted:
    """A transport whose reads end when the test says so."""

    name = "stream"

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.deadlines: list[float] = []
        self.go_on = asyncio.Event()
        self.over = asyncio.Event()
        self.error: Exception | None = None

    async def receive(self, location, segments, deadline_s):
        self.begun += 1
        self.deadlines.append(deadline_s)
        try:
            async with asyncio.timeout(deadline_s):
                await self.go_on.wait()
        except TimeoutError:
            raise DeadlineError(f"not within {deadline_s} s") from None
        finally:
            self.ended += 1
            self.over.set()
        if self.error is not None:
            raise self.error
        with segments.reserve(location.byte_count) as reservation:
            reservation.buffer[:] = b"c" * location.byte_count
            return reservation.commit()


LOCATION = StreamLocation("10.0.0.1", 1, "00" * 16, 10, bytes(32))


@pytest.fixture
def scripted():
    return Scripted()


@pytest.fixture
def receiver(copies, scripted):
    return HostReceiver(copies, {"stream": scripted})


def read(location: ShmLocation) -> bytes:
    with map_location(location) as mapped:
        return bytes(mapped.view)


async def ask(receiver: HostReceiver, count: int, deadline_s: float = 30.0, **options) -> list[asyncio.Task]:
    waiters = [asyncio.create_task(receiver.local(LOCATION, deadline_s, **options)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return waiters


async def test_eight_ranks_cost_one_read_on_the_wire(transport, commit, copies, relay, eventually):
    data = os.urandom(3 << 20)
    owner = transport()
    location = await relay.start(await owner.offer(commit(data), duration_s=30, reads=1))
    receiver = HostReceiver(copies, {"stream": transport()})
    early = await asyncio.gather(*(receiver.local(location, 30.0, users=8) for _ in range(5)))
    for one in early:
        assert read(one) == data
        assert receiver.release(one)
    assert receiver.stats().users == 0
    late = await asyncio.gather(*(receiver.local(location, 30.0, users=8) for _ in range(3)))
    assert len({*early, *late}) == 1
    await eventually(lambda: owner.stats().completed_reads == 1)
    assert relay.connections == 1
    assert len(relay.passed_to_reader) == HANDSHAKE_BYTES + len(data) + SEAL_BYTES
    assert receiver.stats().completed_reads == 1
    assert receiver.stats().held_bytes == len(data)
    for one in late:
        assert copies.stats().segment_count == 1
        assert receiver.release(location if one is late[0] else one)
    assert copies.stats().segment_count == 0
    assert not receiver.release(location)


async def test_what_is_on_this_host_is_returned_as_it_is(receiver, scripted, segments, commit):
    source = commit(b"here")
    inline = InlineLocation(b"here")
    assert await receiver.local(source, 5.0) is source
    assert await receiver.local(inline, 5.0) is inline
    assert not receiver.release(source)
    assert not receiver.release(inline)
    assert scripted.begun == 0
    assert segments.drop(source)


async def test_a_failure_is_told_to_all_and_the_next_one_reads_again(receiver, scripted, copies):
    waiters = await ask(receiver, 5)
    scripted.error = TransportError("the owner broke")
    scripted.go_on.set()
    for told in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(told, TransportError)
        assert str(told) == "the owner broke"
    assert scripted.begun == 1
    assert (receiver.stats().failed_reads, receiver.stats().reading) == (1, 0)
    assert copies.stats().segment_count == 0
    scripted.error = None
    received = await receiver.local(LOCATION, 5.0)
    assert scripted.begun == 2
    assert receiver.release(received)


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_a_waiter_that_is_cancelled_does_not_cancel_the_others(receiver, scripted, first):
    waiters = await ask(receiver, 3)
    waiters[first].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiters[first]
    assert (scripted.begun, scripted.ended) == (1, 0)
    scripted.go_on.set()
    rest = [await waiter for waiter in waiters if waiter is not waiters[first]]
    assert [read(one) for one in rest] == [b"c" * 10] * 2
    assert receiver.stats().users == 2
    for one in rest:
        assert receiver.release(one)


async def test_a_read_that_nobody_waits_for_any_more_is_ended(receiver, scripted, copies):
    waiters = await ask(receiver, 3)
    for waiter in waiters:
        waiter.cancel()
    for told in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(told, asyncio.CancelledError)
    assert (scripted.begun, scripted.ended) == (1, 1)
    assert receiver.stats().reading == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert copies.stats().segment_count == 0


async def test_a_waiter_that_is_cancelled_as_its_read_ends_keeps_nothing(receiver, scripted, copies):
    (waiter,) = await ask(receiver, 1)
    scripted.go_on.set()
    await scripted.over.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert copies.stats().segment_count == 0
    assert receiver.stats().copies == 0


async def test_each_waiter_has_its_own_deadline(receiver, scripted):
    patient = await ask(receiver, 1, 30.0)
    with pytest.raises(DeadlineError, match=r"not received within 0\.05 s"):
        await receiver.local(LOCATION, 0.05)
    assert scripted.ended == 0
    scripted.go_on.set()
    assert receiver.release(await patient[0])
    assert scripted.begun == 1


async def test_the_deadline_of_the_first_is_not_that_of_the_second(receiver, scripted, eventually):
    hasty = await ask(receiver, 1, 0.05)
    patient = await ask(receiver, 2, 30.0)
    with pytest.raises(DeadlineError):
        await hasty[0]
    await eventually(lambda: scripted.begun == 2)
    scripted.go_on.set()
    received = await asyncio.gather(*patient)
    assert received[0] == received[1]
    assert scripted.begun == 2
    assert scripted.deadlines[0] <= 0.05 < scripted.deadlines[1] <= 30.0
    for one in received:
        assert receiver.release(one)


@pytest.mark.parametrize(
    ("deadline_s", "users"), [(0, 1), (-1, 1), (float("inf"), 1), (float("nan"), 1), (5, 0)]
)
async def test_numbers_that_make_no_sense_are_refused(receiver, scripted, deadline_s, users):
    with pytest.raises(DeadlineError, match="finite number of seconds"):
        await receiver.local(LOCATION, deadline_s, users=users)
    assert scripted.begun == 0


async def test_a_transport_that_is_not_here_is_told(copies, scripted):
    receiver = HostReceiver(copies, {})
    with pytest.raises(TransportError, match="needs the transport stream, which this host does not have"):
        await receiver.local(LOCATION, 5.0)
    assert receiver.stats().reading == 0
    with pytest.raises(TransportError, match="stands under the name 'nixl'"):
        HostReceiver(copies, {"nixl": scripted})


async def test_a_copy_without_room_is_an_error(receiver, scripted, copies):
    scripted.go_on.set()
    with pytest.raises(ShmFullError):
        await receiver.local(msgspec.structs.replace(LOCATION, byte_count=1 << 40), 5.0)
    assert receiver.stats().failed_reads == 1


@pytest.fixture
def rank():
    """Another process, which says who it is and waits."""
    code = (
        "from art_dataplane import ProcessIdentity, encode_json\n"
        "print(encode_json(ProcessIdentity.current()).decode(), flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


async def test_the_share_of_a_killed_process_is_given_back_by_its_owner(receiver, scripted, copies, rank):
    scripted.go_on.set()
    holder = decode_json(rank.stdout.readline().encode(), ProcessIdentity)
    received = await receiver.local(LOCATION, 5.0, holder=holder)
    assert await receiver.local(LOCATION, 5.0) == received
    assert receiver.release_dead() == 0
    assert not receiver.release(received, holder=ProcessIdentity(1, 1, 1))
    rank.kill()
    rank.wait(30)
    assert receiver.release_dead() == 1
    assert not receiver.release(received, holder=holder)
    assert copies.stats().segment_count == 1  # this process has its share still
    assert receiver.release(received)
    assert copies.stats().segment_count == 0


async def test_the_next_read_takes_dead_shares_away_first(receiver, scripted, copies):
    scripted.go_on.set()
    ended = ProcessIdentity(2**22 + 1, 1, ProcessIdentity.current().namespace)
    await receiver.local(LOCATION, 5.0, holder=ended)
    other = msgspec.structs.replace(LOCATION, transfer_id="11" * 16)
    received = await receiver.local(other, 5.0)
    assert copies.stats().segment_count == 1
    assert receiver.release(received)


async def test_a_copy_is_dropped_whoever_has_it(receiver, scripted, copies):
    scripted.go_on.set()
    received = await receiver.local(LOCATION, 5.0, users=4)
    with map_location(received) as mapped:
        assert receiver.drop(LOCATION)
        assert bytes(mapped.view) == b"c" * 10
    assert not receiver.drop(LOCATION)
    assert not receiver.release(received)
    assert copies.stats().segment_count == 0


async def test_closing_tells_the_waiters_and_drops_the_copies(receiver, scripted, copies, eventually):
    scripted.go_on.set()
    await receiver.local(LOCATION, 5.0)
    scripted.go_on.clear()
    other = msgspec.structs.replace(LOCATION, transfer_id="11" * 16)
    waiter = asyncio.create_task(receiver.local(other, 30.0))
    await eventually(lambda: scripted.begun == 2)
    await receiver.close(5.0)
    with pytest.raises(TransportError, match="receiver was closed"):
        await waiter
    assert copies.stats().segment_count == 0
    with pytest.raises(TransportError, match="closed"):
        await receiver.local(LOCATION, 5.0)


async def test_a_snapshot_of_another_host_is_read_with_its_digest(transport, segments, copies):
    tensor = ("lora_A.weight", "float32", (4, 2), os.urandom(32))
    manifest = write_manifest(7, "{}", [tensor], segments)
    location = await transport().offer(manifest.location, duration_s=30)
    receiver = HostReceiver(copies, {"stream": transport()})
    here = await receive_snapshot(msgspec.structs.replace(manifest, location=location), receiver, 30.0)
    with read_tensors(here) as snapshot:
        assert bytes(snapshot["lora_A.weight"].data) == tensor[3]
    assert here.location != manifest.location
    assert msgspec.structs.replace(here, location=manifest.location) == manifest
    assert receiver.release(here.location)


def _map_sum(location: ShmLocation) -> int:
    with map_location(location) as mapped:
        return sum(mapped.view)


async def test_a_batch_of_another_host_is_mapped_by_processes_of_this_one(transport, commit, copies):
    data = os.urandom(100_000)
    location = await transport().offer(commit(data), duration_s=30, reads=1)
    counts = PackingCounts(1, 1, 1, 1, 1)
    ref = PackedBatchRef(
        "b",
        "owner",
        Lease("l", 1, "trainer", 60.0),
        (),
        len(data),
        location,
        1,
        8,
        counts,
        (0,),
        ("r",),
        ("g",),
    )
    receiver = HostReceiver(copies, {"stream": transport()})
    here = await receive_batch(ref, receiver, 30.0)
    assert msgspec.structs.replace(here, location=location) == ref
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = await asyncio.to_thread(pool.map, _map_sum, [here.location] * 2)
    assert sums == [sum(data)] * 2
    assert receiver.release(here.location)


@pytest.mark.parametrize(
    ("choice", "same_host", "available", "expected"),
    [
        ("auto", True, ("stream", "nixl"), "shm"),
        ("auto", False, ("stream", "nixl"), "nixl"),
        ("auto", False, ("stream",), "stream"),
        ("shm", True, (), "shm"),
        ("stream", False, ("stream", "nixl"), "stream"),
        ("stream", True, ("stream",), "stream"),
        ("nixl", False, ("nixl", "stream"), "nixl"),
    ],
)
def test_the_rule_that_chooses_a_transport(choice, same_host, available, expected):
    assert choose_transport(choice, same_host=same_host, available=available) == expected


@pytest.mark.parametrize(
    ("choice", "available", "message"),
    [
        ("auto", (), "no transport between hosts is available"),
        ("shm", ("stream",), "shared memory does not reach another host"),
        ("nixl", ("stream",), "transport nixl is not available at both ends; available: stream"),
        ("stream", (), "transport stream is not available at both ends; available: none"),
        ("rdma", ("stream",), "there is no transport 'rdma'"),
    ],
)
def test_a_transport_that_is_not_possible_is_an_error_not_another_one(choice, available, message):
    with pytest.raises(TransportError, match=message):
        choose_transport(choice, same_host=False, available=available)
