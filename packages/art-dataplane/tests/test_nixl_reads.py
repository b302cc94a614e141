"""Reads over an agent whose every step the test decides: memory is free when the agent says so."""

import ctypes
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import Future

import msgspec
import numpy as np
import pytest

from art_dataplane import NixlLocation, ShmSegmentStore, TransportError, map_location
from art_dataplane.checksum import block_values
from art_dataplane.nixl_agent import TransferState, nixl_module_name
from art_dataplane.nixl_descriptor import SLOT_BYTES, NixlDescriptor, make_location, read_descriptor
from art_dataplane.nixl_offers import NixlOffers
from art_dataplane.nixl_reads import CHUNK_BYTES, GRACE_S, NixlReads, Read
from art_dataplane.windows import AddressRanges

SIZE = CHUNK_BYTES + 1000


class ScriptedAgent:
    """An agent of this process: a read copies when the test lets it, until the agent is closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.registered: set[tuple[int, int]] = set()
        self.running: dict[int, tuple[int, int, int]] = {}
        self.failed: set[int] = set()
        self.lets = True
        self.breaks = False
        self.peers: list[str] = []
        self.removed: list[str] = []
        self.messages: list[bytes] = []
        self.inbox: list[bytes] = []
        self.closed = False
        self.count = 0

    def register(self, address, byte_count):
        self.registered.add((address, byte_count))
        return address, byte_count

    def deregister(self, registration):
        assert not any(
            registration[0] <= local < registration[0] + registration[1]
            for local, _, _ in self.running.values()
        ), "memory that is still written was deregistered"
        self.registered.remove(registration)

    def metadata(self, regions):
        return msgspec.msgpack.encode([self.name, sorted(regions), self.count])

    def add_peer(self, metadata):
        name = msgspec.msgpack.decode(metadata)[0]
        self.peers.append(name)
        return name

    def remove_peer(self, name):
        self.removed.append(name)

    def read(self, peer, local, remote, byte_count):
        self.count += 1
        self.running[self.count] = (local, remote, byte_count)
        return self.count

    def state(self, handle):
        if handle in self.failed or self.breaks:
            self.failed.add(handle)
            return TransferState.FAILED
        if not self.lets:
            return TransferState.RUNNING
        self.land(handle)
        return TransferState.DONE

    def land(self, handle):
        assert not self.closed, "a closed agent does not write"
        local, remote, byte_count = self.running.pop(handle)
        ctypes.memmove(local, remote, byte_count)

    def release(self, handle):
        assert self.closed is False

    def notify(self, peer, message):
        self.messages.append(message)

    def notifications(self):
        arrived, self.inbox = self.inbox, []
        return arrived

    def close(self):
        self.running.clear()
        self.closed = True


@pytest.fixture
def world(run_id):
    """An owner's offers and a reader's reads, in one process, and the store that both use."""

    class World:
        pass

    world = World()
    world.ranges = AddressRanges()
    with ShmSegmentStore(run_id, 64 << 20, recycle_bytes=64 << 20) as world.store:

        def sum_bytes(data):
            future = Future()
            future.set_result(block_values(data))
            return future

        world.owner, world.reader = ScriptedAgent("owner"), ScriptedAgent("reader")
        world.offers = NixlOffers(world.owner, "UCX", world.ranges, 1 << 30, sum_bytes)
        world.reads = NixlReads(world.reader, world.ranges, 1 << 30, sum_bytes)

        def offer(seed=0, reads=1, duration_s=100.0):
            with world.store.reserve(SIZE) as reservation:
                reservation.buffer[:] = np.random.default_rng(seed).bytes(SIZE)
                source = reservation.commit()
            result = Future()
            world.offers.open(source, duration_s, reads, result)
            world.offers.step()
            return source, result.result(0)

        world.offer = offer

        def read(location):
            result = Future()
            world.reads.add(Read(location, world.store, result))
            return result

        world.read = read

        def step_until(condition):
            for _ in range(100):
                if condition():
                    return
                world.reads.step()
            raise AssertionError("not true after 100 steps")

        world.step_until = step_until
        yield world
        if not world.reader.closed:
            world.reads.close()
        world.offers.close()
        world.ranges.close()


def test_bytes_arrive_and_the_owner_is_told(world):
    source, location = world.offer(3)
    assert isinstance(location, NixlLocation)
    result = world.read(location)
    world.step_until(result.done)
    with map_location(result.result()) as mapped:
        assert bytes(mapped.view) == np.random.default_rng(3).bytes(SIZE)
    assert world.reader.running == {}
    world.owner.inbox = [b"something else", b"art-read:unknown", *world.reader.messages]
    assert len(world.offers) == 1
    world.offers.step()
    assert len(world.offers) == 0
    world.store.drop(source)


def test_memory_of_a_read_that_was_given_up_is_kept_until_it_has_landed(world):
    source, location = world.offer()
    world.reader.lets = False
    result = world.read(location)
    world.reads.step()
    assert world.reader.running
    assert result.cancel()
    used = world.store.stats().used_bytes
    world.reads.step()
    assert world.store.stats().used_bytes == used
    assert len(world.reads) == 1
    world.reader.lets = True
    world.reads.step()
    assert world.store.stats().used_bytes < used
    assert not world.reads.is_spoiled
    assert len(world.reads) == 0
    world.store.drop(source)


def test_memory_of_a_read_that_never_lands_is_kept_until_the_agent_has_ended(world, monkeypatch):
    source, location = world.offer()
    world.reader.lets = False
    result = world.read(location)
    world.reads.step()
    used = world.store.stats().used_bytes
    result.cancel()
    now = [100.0]
    monkeypatch.setattr("art_dataplane.nixl_reads.time.monotonic", lambda: now[0])
    world.reads.step()
    assert not world.reads.is_spoiled
    now[0] += GRACE_S
    world.reads.step()
    assert world.reads.is_spoiled
    assert world.reads.quarantined_bytes == SIZE
    assert world.store.stats().used_bytes == used
    for handle in list(world.reader.running):
        world.reader.land(handle)  # the peer woke up: what it writes must have a place
    close_agent, used_then = world.reader.close, []

    def close_and_note():
        used_then.append(world.store.stats().used_bytes)
        close_agent()

    monkeypatch.setattr(world.reader, "close", close_and_note)
    world.reads.close()
    assert used_then == [used], "the agent ends before its memory is free"
    assert world.reads.quarantined_bytes == 0
    assert world.store.stats().used_bytes < used
    world.store.drop(source)


def test_a_read_that_breaks_tells_at_once_and_keeps_its_memory(world):
    source, location = world.offer()
    world.reader.lets = False
    result = world.read(location)
    world.reads.step()
    used = world.store.stats().used_bytes
    world.reader.breaks = True
    world.reads.step()
    with pytest.raises(TransportError, match="broke after"):
        result.result(0)
    assert world.reads.is_spoiled
    assert world.store.stats().used_bytes == used
    world.reads.close()
    assert world.store.stats().used_bytes < used
    world.store.drop(source)


def test_a_slot_that_is_cleared_while_the_bytes_move_is_an_error(world):
    source, location = world.offer()
    result = world.read(location)
    original = world.reader.read

    def read_and_withdraw(peer, local, remote, byte_count):
        if byte_count != SLOT_BYTES and len(world.offers):
            assert world.offers.withdraw(location.transfer_id)
        return original(peer, local, remote, byte_count)

    world.reader.read = read_and_withdraw
    world.reads.step()
    world.step_until(lambda: not len(world.reads))
    with pytest.raises(TransportError, match="does not offer transfer"):
        result.result(0)
    assert world.reader.messages == []
    world.store.drop(source)


def test_bytes_that_are_not_those_of_the_offer_are_refused(world):
    source, location = world.offer(reads=2)
    descriptor = os.open(f"/dev/shm/{source.name}", os.O_WRONLY)
    os.pwrite(descriptor, b"\0\1\2", SIZE - 3)
    os.close(descriptor)
    result = world.read(location)
    world.step_until(result.done)
    with pytest.raises(TransportError, match=r"have checksum \w+, their owner offered"):
        result.result(0)
    assert world.reader.messages == []
    assert not world.reads.is_spoiled
    world.store.drop(source)


def test_an_offer_keeps_its_pages_from_being_used_again(world):
    source, location = world.offer(5)
    assert world.store.drop(source, reusable=True)
    assert world.store.stats().spare_bytes == 0
    other, _ = world.offer(6)
    result = world.read(location)
    world.step_until(result.done)
    with map_location(result.result()) as mapped:
        assert bytes(mapped.view) == np.random.default_rng(5).bytes(SIZE)
    world.store.drop(other)


def test_metadata_that_say_something_else_about_known_memory_replace_the_old(world):
    source, location = world.offer(reads=3)
    other = make_location(
        location.agent, location.metadata + b"", location.backend, location.transfer_id, SIZE,
        read_descriptor(location),
    )  # fmt: skip
    world.owner.count += 1
    renewed = make_location(
        location.agent, world.owner.metadata([]), location.backend, location.transfer_id, SIZE,
        read_descriptor(location),
    )  # fmt: skip
    for one in (location, other):
        result = world.read(one)
        world.step_until(result.done)
    assert (world.reader.peers, world.reader.removed) == (["owner"], [])
    world.reader.lets = False
    slow = world.read(location)
    world.reads.step()
    waiting = world.read(renewed)
    world.reads.step()
    assert world.reader.removed == [], "not while something is read from it"
    world.reader.lets = True
    world.step_until(waiting.done)
    assert slow.result(0)
    assert (world.reader.peers, world.reader.removed) == (["owner", "owner"], ["owner"])
    world.store.drop(source)


def test_a_location_that_is_damaged_is_refused():
    descriptor = NixlDescriptor(1, 2, 3, 4, b"c" * 16, b"")
    location = make_location("a", b"m", "UCX", "t", 5, descriptor)
    assert read_descriptor(location).address == 1
    for field, value in (
        ("agent", "b"), ("metadata", b"n"), ("transfer_id", "u"), ("byte_count", 6), ("backend", "GDS"),
    ):  # fmt: skip
        with pytest.raises(TransportError, match="its seal does not fit"):
            read_descriptor(msgspec.structs.replace(location, **{field: value}))
    with pytest.raises(TransportError, match="cannot be read"):
        read_descriptor(msgspec.structs.replace(location, descriptor=b"\x80\x04pickle"))


@pytest.mark.parametrize(
    ("installed", "cuda13", "chosen"),
    [
        (["nixl_cu12"], False, "nixl_cu12"),
        (["nixl_cu13"], False, "nixl_cu13"),
        (["nixl_cu12", "nixl_cu13"], False, "nixl_cu12"),
        (["nixl_cu12", "nixl_cu13"], True, "nixl_cu13"),
    ],
)
def test_the_build_of_nixl_is_the_installed_one(monkeypatch, installed, cuda13, chosen):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.setattr(
        importlib.metadata.Distribution, "discover", lambda name: iter([name] if cuda13 else [])
    )
    assert nixl_module_name() == chosen


def test_without_nixl_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TransportError, match=r"install art-dataplane\[nixl\], which brings nixl-cu12"):
        nixl_module_name()


def test_importing_the_transport_does_not_import_nixl():
    program = (
        "import sys, art_dataplane.nixl; "
        "assert not [n for n in sys.modules if n.startswith(('nixl', 'torch'))], sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
