"""What goes wrong is an error in time, and no memory is used again while NIXL may write to it."""

import asyncio
import os
import random
import signal
import threading
import time
from base64 import b64encode

import msgspec
import numpy as np
import pytest

from art_dataplane import DeadlineError, NixlLocation, StreamLocation, TransportError, encode, map_location
from art_dataplane.nixl import NixlTransport
from art_dataplane.nixl_agent import NixlAgent
from art_dataplane.nixl_descriptor import make_location, read_descriptor

MIB = 1 << 20
DEADLINE_S = 30.0


def content(byte_count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, byte_count, dtype=np.uint8)


def is_mapped_with(location, expected):
    with map_location(location) as mapped:
        return bytes(mapped.view) == expected


def remade(location, *, agent=None, metadata=None, **fields):
    """The location with other contents and a seal that fits them."""
    descriptor = msgspec.structs.replace(read_descriptor(location), **fields)
    return make_location(
        agent or location.agent,
        metadata or location.metadata,
        location.backend,
        location.transfer_id,
        location.byte_count,
        descriptor,
    )


async def test_bytes_of_an_owner_that_wakes_up_late_do_not_land_in_memory_with_another_use(
    transport, segments, start_peer, until
):
    owner = start_peer("tcp")
    size = 24 * MIB
    segments.drop(await transport.receive(await owner.offer(size, 1), segments, DEADLINE_S), reusable=True)
    location = await owner.offer(size, 2, reads=10)
    os.kill(owner.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=rf"{size} bytes of agent .* were not here within 0.7 s"):
        await transport.receive(location, segments, 0.7)
    assert 0.7 <= time.monotonic() - began < 3.0
    # What is written now must stay as it is: this is the memory that a careless transport had given back.
    with segments.reserve(size) as reservation:
        reservation.buffer[:] = b"\xaa" * size
        other = reservation.commit()
    await until(lambda: transport.stats().quarantined_bytes == 0 and segments.stats().used_bytes == size)
    again = []
    for _ in range(3):
        with segments.reserve(size) as reservation:
            reservation.buffer[:] = b"\xbb" * size
            again.append(reservation.commit())
    if not await owner.wakes_up():
        location = await start_peer("tcp").offer(size, 2)
    received = await transport.receive(location, segments, DEADLINE_S)  # after what was on its way
    assert is_mapped_with(received, content(size, 2).tobytes())
    assert is_mapped_with(other, b"\xaa" * size)
    assert all(is_mapped_with(one, b"\xbb" * size) for one in again)
    assert transport.stats().registered_bytes <= 2 * size


async def test_a_segment_of_a_read_in_the_air_counts_until_it_is_over(transport, segments, start_peer, until):
    owner = start_peer("tcp")
    size = 24 * MIB
    segments.drop(await transport.receive(await owner.offer(size, 1), segments, DEADLINE_S), reusable=True)
    location = await owner.offer(size, 2)
    os.kill(owner.pid, signal.SIGSTOP)
    with pytest.raises(DeadlineError):
        await transport.receive(location, segments, 0.5)
    assert segments.stats().used_bytes == size, "the memory may still be written"
    os.kill(owner.pid, signal.SIGCONT)
    await until(lambda: segments.stats().used_bytes == 0)
    assert transport.stats().quarantined_bytes == 0


async def test_a_hanging_owner_does_not_keep_others_waiting(transport, segments, start_peer, until):
    silent, lively = start_peer("tcp"), start_peer("tcp")
    stuck = [await silent.offer(MIB, seed) for seed in range(6)]
    good = [await lively.offer(MIB, seed) for seed in range(6)]
    os.kill(silent.pid, signal.SIGSTOP)
    hanging = [asyncio.create_task(transport.receive(one, segments, 20.0)) for one in stuck]
    await until(lambda: transport.stats().reads == 6)
    for seed, one in enumerate(good):
        received = await transport.receive(one, segments, 10.0)
        assert is_mapped_with(received, content(MIB, seed).tobytes())
        segments.drop(received)
    assert not any(task.done() for task in hanging)
    os.kill(silent.pid, signal.SIGCONT)
    for seed, received in enumerate(await asyncio.gather(*hanging)):
        assert is_mapped_with(received, content(MIB, seed).tobytes())


async def test_a_read_that_hangs_spoils_no_read_that_goes_on(transport, segments, start_peer, until):
    silent, slow = start_peer("tcp"), start_peer("tcp")
    stuck, late = await silent.offer(MIB, 1), await slow.offer(24 * MIB, 2)
    os.kill(silent.pid, signal.SIGSTOP)
    os.kill(slow.pid, signal.SIGSTOP)
    patient = asyncio.create_task(transport.receive(late, segments, DEADLINE_S))
    with pytest.raises(DeadlineError):
        await transport.receive(stuck, segments, 0.3)
    await until(lambda: transport.stats().quarantined_bytes == MIB)
    fresh = await start_peer("tcp").offer(MIB, 3)  # with an agent of its own, since the first is spoiled
    assert is_mapped_with(await transport.receive(fresh, segments, 10.0), content(MIB, 3).tobytes())
    assert transport.stats().quarantined_bytes == MIB
    os.kill(slow.pid, signal.SIGCONT)
    assert is_mapped_with(await patient, content(24 * MIB, 2).tobytes())
    await until(lambda: transport.stats().quarantined_bytes == 0)


async def test_a_cancelled_read_is_given_back(transport, segments, start_peer, until):
    owner = start_peer("tcp")
    location = await owner.offer(24 * MIB, 5, reads=2)
    os.kill(owner.pid, signal.SIGSTOP)
    task = asyncio.create_task(transport.receive(location, segments, DEADLINE_S))
    await until(lambda: segments.stats().used_bytes > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: segments.stats().used_bytes == 0)
    if not await owner.wakes_up():
        owner = start_peer("tcp")
        location = await owner.offer(24 * MIB, 5, reads=2)
    for delay_s in (0.0, 0.001, 0.01, 0.05):  # whatever a healthy read is doing when it is cancelled
        task = asyncio.create_task(transport.receive(location, segments, DEADLINE_S))
        await asyncio.sleep(delay_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: transport.stats().reads == 0 and segments.stats().used_bytes == 0)
    fresh = await owner.offer(MIB, 6)
    assert is_mapped_with(await transport.receive(fresh, segments, DEADLINE_S), content(MIB, 6).tobytes())


async def test_an_owner_killed_amid_a_read_is_an_error_and_the_next_owner_is_read(
    transport, segments, start_peer, until
):
    owner = start_peer("tcp")
    location = await owner.offer(256 * MIB, 7)
    task = asyncio.create_task(transport.receive(location, segments, DEADLINE_S))
    await until(lambda: segments.stats().used_bytes > 0)
    os.kill(owner.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(TransportError, match="its process ended, or the network did"):
        await task
    assert time.monotonic() - began < 10.0
    await until(lambda: segments.stats().used_bytes == 0)
    with pytest.raises(TransportError):
        await transport.receive(location, segments, DEADLINE_S)
    await until(lambda: segments.stats().used_bytes == 0)
    fresh = await start_peer("tcp").offer(MIB, 8)
    assert is_mapped_with(await transport.receive(fresh, segments, DEADLINE_S), content(MIB, 8).tobytes())


async def test_damaged_and_foreign_locations_are_refused_and_nothing_is_kept(transport, segments, start_peer):
    owner, other = start_peer("tcp"), start_peer("tcp")
    location = await owner.offer(MIB, 1, reads=100)
    foreign = await other.offer(MIB, 2)
    chance = random.Random(0)
    for _ in range(40):
        field = chance.choice(["metadata", "descriptor"])
        damaged = bytearray(getattr(location, field))
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        with pytest.raises(TransportError, match=r"is damaged|cannot be read"):
            await transport.receive(
                msgspec.structs.replace(location, **{field: bytes(damaged)}), segments, DEADLINE_S
            )
    mixed = msgspec.structs.replace(location, metadata=foreign.metadata)
    with pytest.raises(TransportError, match="is damaged"):
        await transport.receive(mixed, segments, DEADLINE_S)
    bad = [
        (remade(location, metadata=foreign.metadata), "are those of agent"),
        (
            remade(location, metadata=location.metadata[:-20]),
            "cannot be reached, or its metadata are damaged",
        ),
        (remade(location, metadata=b"x"), "cannot be reached, or its metadata are damaged"),
        (remade(location, agent="nobody"), "the location says nobody"),
        (remade(location, address=read_descriptor(location).address + 4096), "no read of"),
        (remade(location, address=4096), "no read of"),
        (remade(location, slot_address=4096), "no read of 64 bytes"),
        (remade(location, slot_address=read_descriptor(location).slot_address - 64), "does not offer"),
        (remade(location, checksum=bytes(16)), "their owner offered 00000000000000000000000000000000"),
        (msgspec.structs.replace(location, backend="GDS"), "moves at least one, over UCX"),
        (msgspec.structs.replace(location, byte_count=0), "asks for 0 bytes"),
        (StreamLocation("::1", 1, "t", 1, b"s"), "not a location of NIXL"),
    ]
    for wrong, message in bad:
        with pytest.raises(TransportError, match=message):
            await transport.receive(wrong, segments, DEADLINE_S)
        assert segments.stats().used_bytes == 0
    assert is_mapped_with(await transport.receive(location, segments, DEADLINE_S), content(MIB, 1).tobytes())


async def test_a_late_reader_without_manners_does_not_end_the_owner(transport, segments, start_peer):
    owner = start_peer("tcp")
    location = await owner.offer(8 * MIB, 1, reads=10)
    segments.drop(await transport.receive(location, segments, DEADLINE_S))
    assert await owner.ask("withdraw", location=b64encode(encode(location)).decode())
    assert await owner.ask("drop", transfer_id=location.transfer_id)
    target = np.full(8 * MIB, 7, np.uint8)

    def read_blindly():
        agent = NixlAgent("blind", "UCX", ["lo"], ["tcp"])
        agent.register(target.ctypes.data, target.nbytes)
        agent.add_peer(location.metadata)
        handle = agent.read(
            location.agent, target.ctypes.data, read_descriptor(location).address, target.nbytes
        )
        deadline = time.monotonic() + 10
        while agent.state(handle).value == "running" and time.monotonic() < deadline:
            time.sleep(0.001)
        state = agent.state(handle).value
        agent.release(handle)
        agent.close()
        return state

    assert await asyncio.to_thread(read_blindly) == "done"
    assert not target.any(), "zeros are where the segment was"
    assert (await owner.ask("stats"))["offers"] == 0
    assert owner.process.poll() is None


async def test_a_close_amid_reads_and_offers_is_in_time_and_leaves_nothing(segments, start_peer, until):
    threads = set(threading.enumerate())
    transport = NixlTransport(["lo"], transports=["tcp"])
    owner = start_peer("tcp")
    stuck = await owner.offer(24 * MIB)
    with segments.reserve(MIB) as reservation:
        source = reservation.commit()
    offered = await transport.offer(source, duration_s=60.0)
    assert isinstance(offered, NixlLocation)
    os.kill(owner.pid, signal.SIGSTOP)
    task = asyncio.create_task(transport.receive(stuck, segments, DEADLINE_S))
    await until(lambda: transport.stats().reads == 1)
    began = time.monotonic()
    await transport.close(0.5)
    assert time.monotonic() - began < 3.0
    with pytest.raises(TransportError, match="the transport was closed"):
        await task
    assert segments.stats().used_bytes == MIB
    assert {thread for thread in threading.enumerate() if "nixl" in thread.name} <= threads
    for use in (
        transport.offer(source, duration_s=1.0),
        transport.withdraw(offered),
        transport.receive(stuck, segments, 1.0),
    ):
        with pytest.raises(TransportError, match="is closed"):
            await use
    await transport.close(0.5)
    segments.drop(source)
    os.kill(owner.pid, signal.SIGCONT)


async def test_failures_leave_no_descriptor_and_no_thread_behind(segments, start_peer, until):
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    async def fail_once():
        transport = NixlTransport(["lo"], transports=["tcp"])
        owner = start_peer("tcp")
        location = await owner.offer(MIB, reads=2)
        os.kill(owner.pid, signal.SIGSTOP)
        with pytest.raises(DeadlineError):
            await transport.receive(location, segments, 0.2)
        await until(lambda: segments.stats().used_bytes == 0)
        if not await owner.wakes_up():
            location = await start_peer("tcp").offer(MIB)
        segments.drop(await transport.receive(location, segments, DEADLINE_S))
        await transport.close(1.0)
        owner.end()

    await fail_once()
    before = held()
    for _ in range(3):
        await fail_once()
    await until(lambda: held() <= before)


async def test_a_transport_without_an_interface_or_with_a_wrong_one_says_so(segments):
    with pytest.raises(TransportError, match="name the interfaces"):
        NixlTransport([])
    transport = NixlTransport(["nosuch0"])
    with segments.reserve(10) as reservation:
        source = reservation.commit()
    with pytest.raises(TransportError, match=r"no NIXL agent with backend UCX, devices \['nosuch0'\]"):
        await transport.offer(source, duration_s=1.0)
    with pytest.raises(TransportError, match="positive finite time"):
        await transport.offer(source, duration_s=0.0)
    await transport.close(1.0)
    segments.drop(source)
