"""Bytes that arrive, and offers that end."""

import asyncio
import os
import threading

import msgspec
import pytest

from art_dataplane import (
    DeadlineError,
    ShmError,
    ShmFullError,
    ShmLocation,
    ShmSegmentStore,
    TransportError,
    map_location,
    stream,
)
from art_dataplane.locations import NixlLocation
from art_dataplane.stream_mac import CHUNK_BYTES, MAC_NAMES


@pytest.mark.parametrize("mac", MAC_NAMES)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize(
    "size", [1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES - 7]
)
async def test_the_bytes_of_a_segment_arrive(transport, commit, copies, take, host, mac, size):
    data = os.urandom(size)
    location = await transport(host, mac=mac).offer(commit(data), duration_s=30)
    assert (location.host, location.byte_count, location.mac) == (host, size, mac)
    assert take(await transport().receive(location, copies, 30.0)) == data


async def test_a_part_of_a_segment_is_offered(transport, commit, copies, take):
    data = os.urandom(100_000)
    whole = commit(data)
    location = await transport().offer(ShmLocation(whole.name, 4321, 54_321), duration_s=30)
    assert take(await transport().receive(location, copies, 30.0)) == data[4321 : 4321 + 54_321]


async def test_a_name_is_an_address_too(transport, commit, copies, take):
    location = await transport("localhost").offer(commit(b"by name"), duration_s=30)
    assert location.host == "localhost"
    assert take(await transport().receive(location, copies, 30.0)) == b"by name"


async def test_many_offers_share_one_port(transport, commit, copies, take):
    owner, reader = transport(), transport()
    locations = [await owner.offer(commit(bytes([n]) * 10_000), duration_s=30) for n in range(20)]
    assert len({location.port for location in locations}) == 1
    assert len({location.secret for location in locations}) == 20
    received = await asyncio.gather(*(reader.receive(location, copies, 30.0) for location in locations))
    assert [take(one) for one in received] == [bytes([n]) * 10_000 for n in range(20)]


async def test_an_offer_is_over_when_it_was_read_as_often_as_it_says(
    transport, commit, copies, take, eventually, is_mapped, segments
):
    owner, reader = transport(), transport()
    source = commit(b"x" * 100_000)
    location = await owner.offer(source, duration_s=30, reads=3)
    both = await asyncio.gather(*(reader.receive(location, copies, 30.0) for _ in range(2)))
    assert [len(take(one)) for one in both] == [100_000, 100_000]
    await eventually(lambda: owner.stats().completed_reads == 2)
    assert owner.stats().offers == 1
    assert is_mapped()
    take(await reader.receive(location, copies, 30.0))
    await eventually(lambda: owner.stats().offers == 0)
    assert not is_mapped()
    with pytest.raises(TransportError, match="did not admit the read"):
        await reader.receive(location, copies, 30.0)
    assert not await owner.withdraw(location)
    assert segments.drop(source)


async def test_a_failed_read_does_not_count(transport, commit, copies, take, relay, eventually):
    owner, reader = transport(), transport()
    data = os.urandom(3 * CHUNK_BYTES)
    location = await owner.offer(commit(data), duration_s=30, reads=1)
    through = await relay.start(location)
    relay.to_reader = lambda offset, piece: None if offset > CHUNK_BYTES else piece
    for _ in range(3):
        with pytest.raises(TransportError):
            await reader.receive(through, copies, 30.0)
    await eventually(lambda: owner.stats().failed_reads == 3)
    assert owner.stats().completed_reads == 0
    assert take(await reader.receive(location, copies, 30.0)) == data
    await eventually(lambda: owner.stats().completed_reads == 1)


async def test_a_read_without_its_receipt_does_not_count(transport, commit, copies, take, relay, eventually):
    owner, reader = transport(), transport()
    location = await owner.offer(commit(b"y" * 1000), duration_s=30, reads=1)
    through = await relay.start(location)
    before_receipt = 8 + 16 + 32 + 32
    relay.to_owner = lambda offset, piece: None if offset >= before_receipt else piece
    assert take(await reader.receive(through, copies, 30.0)) == b"y" * 1000
    await eventually(lambda: owner.stats().failed_reads == 1)
    assert owner.stats().offers == 1


async def test_an_offer_expires(transport, commit, copies, eventually, is_mapped):
    owner = transport()
    location = await owner.offer(commit(b"z"), duration_s=0.05)
    await eventually(lambda: owner.stats().offers == 0)
    assert not is_mapped()
    with pytest.raises(TransportError, match="did not admit the read"):
        await transport().receive(location, copies, 30.0)


@pytest.mark.parametrize("how", ["withdrawn", "expired", "closed"])
async def test_a_read_that_has_begun_fails_when_its_offer_ends(
    transport, commit, copies, relay, is_mapped, eventually, how
):
    owner, reader = transport(), transport()
    duration_s = 1.0 if how == "expired" else 60.0
    location = await owner.offer(commit(os.urandom(30 << 20)), duration_s=duration_s)
    relay.hold_after = CHUNK_BYTES
    relay.go_on.clear()
    read = asyncio.create_task(reader.receive(await relay.start(location), copies, 60.0))
    await asyncio.wait_for(relay.held.wait(), 30)
    if how == "withdrawn":
        assert await owner.withdraw(location)
        assert not await owner.withdraw(location)
    elif how == "closed":
        await owner.close(5.0)
    await eventually(lambda: owner.stats().offers == 0 and owner.stats().sending == 0)
    relay.hold_after = None
    relay.go_on.set()
    with pytest.raises(TransportError):
        await asyncio.wait_for(read, 30)
    assert not is_mapped()
    assert owner.stats().failed_reads == 1


async def test_without_room_nothing_is_read_and_the_offer_stays(transport, commit, copies, take, run_id):
    owner, reader = transport(), transport()
    location = await owner.offer(commit(b"a" * (1 << 20)), duration_s=30)
    with ShmSegmentStore(run_id, 4096) as small, pytest.raises(ShmFullError):
        await reader.receive(location, small, 30.0)
    assert take(await reader.receive(location, copies, 30.0)) == b"a" * (1 << 20)


async def test_a_segment_that_is_gone_cannot_be_offered(transport, commit, segments):
    owner = transport()
    source = commit(b"gone")
    segments.drop(source)
    with pytest.raises(ShmError, match="does not exist"):
        await owner.offer(source, duration_s=30)
    assert owner.stats().offers == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "0"])
async def test_no_transport_listens_on_every_address(transport, commit, host):
    with pytest.raises(TransportError, match="stands for every address"):
        await transport(host).offer(commit(b"b"), duration_s=30)


async def test_only_the_given_address_is_listened_on(transport, commit):
    location = await transport("127.0.0.1").offer(commit(b"c"), duration_s=30)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", location.port)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("::1", location.port)


async def test_a_port_that_is_taken_is_told(transport, commit):
    location = await transport().offer(commit(b"d"), duration_s=30)
    with pytest.raises(
        TransportError, match=f"cannot listen on 127.0.0.1 port {location.port}: Address already"
    ):
        await transport(port=location.port).offer(commit(b"e"), duration_s=30)


@pytest.mark.parametrize(
    ("duration_s", "reads"), [(0, 1), (-1, 1), (float("inf"), 1), (float("nan"), 1), (1, 0)]
)
async def test_offers_that_make_no_sense_are_refused(transport, commit, duration_s, reads):
    with pytest.raises(TransportError, match="positive finite time"):
        await transport().offer(commit(b"f"), duration_s=duration_s, reads=reads)


@pytest.mark.parametrize("deadline_s", [0, -1, float("inf"), float("nan")])
async def test_deadlines_that_make_no_sense_are_refused(transport, commit, copies, deadline_s):
    location = await transport().offer(commit(b"g"), duration_s=30)
    with pytest.raises(DeadlineError, match="finite number of seconds"):
        await transport().receive(location, copies, deadline_s)


@pytest.mark.parametrize(
    "change",
    [{"transfer_id": "zz"}, {"transfer_id": "00"}, {"secret": b"short"}, {"port": 0}, {"byte_count": 0}],
)
async def test_malformed_locations_are_refused(transport, commit, copies, change):
    location = await transport().offer(commit(b"h"), duration_s=30)
    with pytest.raises(TransportError, match="malformed"):
        await transport().receive(msgspec.structs.replace(location, **change), copies, 5.0)


async def test_locations_of_another_transport_are_refused(transport, copies):
    other = NixlLocation("agent", b"", b"", "id", 1)
    with pytest.raises(TransportError, match="not one of a stream"):
        await transport().receive(other, copies, 5.0)
    with pytest.raises(TransportError, match="not one of a stream"):
        await transport().withdraw(other)


async def test_a_closed_transport_does_nothing_more(transport, commit, copies):
    owner = transport()
    source = commit(b"i")
    location = await owner.offer(source, duration_s=30)
    await owner.close(5.0)
    await owner.close(5.0)
    assert owner.stats().offers == 0
    with pytest.raises(TransportError, match="closed"):
        await owner.offer(source, duration_s=30)
    with pytest.raises(TransportError, match="closed"):
        await owner.receive(location, copies, 5.0)
    assert not await owner.withdraw(location)
    with pytest.raises(TransportError, match="cannot connect"):
        await transport().receive(location, copies, 5.0)


async def test_a_cancelled_offer_leaves_no_mapping(transport, commit, is_mapped, eventually, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def map_late(location):
        begun.set()
        assert go_on.wait(30)
        return map_location(location)

    monkeypatch.setattr(stream, "map_location", map_late)
    owner = transport()
    offer = asyncio.create_task(owner.offer(commit(bytes(1 << 20)), duration_s=30))
    await eventually(begun.is_set)
    offer.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await offer
    assert owner.stats().offers == 0
    assert not is_mapped()
