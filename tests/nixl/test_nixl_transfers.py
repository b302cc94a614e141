"""Segments arrive whole from another process over real NIXL, or not at all."""

import asyncio
import hashlib
import json
import os
import subprocess
import time
from base64 import b64encode

import numpy as np
import pytest

from art_dataplane import ShmFullError, ShmSegmentStore, TransportError, encode, map_location
from art_dataplane.nixl import NixlTransport
from art_dataplane.nixl_reads import CHUNK_BYTES

MIB = 1 << 20
DEADLINE_S = 30.0


def content(byte_count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, byte_count, dtype=np.uint8)


async def listening(options):
    asked = await asyncio.create_subprocess_exec("ss", options, stdout=subprocess.PIPE)
    output, _ = await asked.communicate()
    assert asked.returncode == 0
    return output.decode()


async def test_bytes_of_any_number_arrive_whole_and_can_be_read_as_often_as_was_offered(
    transport, segments, start_peer, until
):
    owner = start_peer("tcp")

    async def has_no_offers():
        return (await owner.ask("stats"))["offers"] == 0

    sizes = [1, 7, 4096, 262_145, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 9, 5 * CHUNK_BYTES + 3]
    for seed, size in enumerate(sizes):
        location = await owner.offer(size, seed, reads=2)
        assert (location.byte_count, location.backend) == (size, "UCX")
        for _ in range(2):
            received = await transport.receive(location, segments, DEADLINE_S)
            with map_location(received) as mapped:
                assert mapped.view.readonly
                assert bytes(mapped.view) == content(size, seed).tobytes()
            assert segments.drop(received, reusable=True)
        await until(has_no_offers)
        with pytest.raises(TransportError, match=r"does not offer transfer .* any more"):
            await transport.receive(location, segments, DEADLINE_S)
        assert await owner.ask("withdraw", location=b64encode(encode(location)).decode()) is False
        assert await owner.ask("drop", transfer_id=location.transfer_id)
    assert segments.stats().used_bytes == 0
    assert transport.stats().quarantined_bytes == 0


async def test_a_process_of_the_same_host_may_choose_its_way(segments, start_peer):
    transport = NixlTransport(["lo"])
    try:
        location = await start_peer().offer(20 * MIB, 3)
        received = await transport.receive(location, segments, DEADLINE_S)
        with map_location(received) as mapped:
            assert bytes(mapped.view) == content(20 * MIB, 3).tobytes()
    finally:
        await transport.close(2.0)


async def test_many_segments_arrive_at_the_same_time_from_two_owners(transport, segments, start_peer):
    owners = [start_peer("tcp"), start_peer("tcp")]
    locations = [await owners[index % 2].offer(MIB + index, index) for index in range(12)]
    received = await asyncio.gather(
        *(transport.receive(location, segments, DEADLINE_S) for location in locations)
    )
    for index, one in enumerate(received):
        with map_location(one) as mapped:
            assert bytes(mapped.view) == content(MIB + index, index).tobytes()


async def test_a_withdrawn_offer_cannot_be_read_and_its_owner_survives_who_tries(
    transport, segments, start_peer
):
    owner = start_peer("tcp")
    location = await owner.offer(20 * MIB, reads=5)
    segments.drop(await transport.receive(location, segments, DEADLINE_S))
    assert await owner.ask("withdraw", location=b64encode(encode(location)).decode()) is True
    assert await owner.ask("drop", transfer_id=location.transfer_id)
    for _ in range(3):
        with pytest.raises(TransportError, match="withdrawn, is too old, or was read"):
            await transport.receive(location, segments, DEADLINE_S)
    assert await owner.ask("stats") == {
        "offers": 0, "reads": 0, "quarantined_bytes": 0, "registered_bytes": 0,
    }  # fmt: skip
    assert segments.stats().used_bytes == 0


async def test_an_offer_ends_with_its_time(transport, segments, start_peer, until):
    owner = start_peer("tcp")
    location = await owner.offer(MIB, duration_s=0.3, reads=100)
    await asyncio.sleep(0.4)
    with pytest.raises(TransportError, match="is too old"):
        await transport.receive(location, segments, DEADLINE_S)


async def test_bytes_that_changed_since_they_were_offered_are_refused(transport, segments, start_peer):
    owner = start_peer("tcp")
    location = await owner.offer(20 * MIB)
    await owner.ask("overwrite", transfer_id=location.transfer_id, at=17 * MIB + 5)
    with pytest.raises(TransportError, match=r"have checksum .* their owner offered"):
        await transport.receive(location, segments, DEADLINE_S)
    assert segments.stats().used_bytes == 0
    assert (await owner.ask("stats"))["offers"] == 1, "a read that failed does not count"


async def test_what_does_not_fit_is_refused_before_anything_is_read(transport, run_id, start_peer):
    owner = start_peer("tcp")
    location = await owner.offer(2 * MIB)
    with (
        ShmSegmentStore(f"{run_id}s", MIB) as small,
        pytest.raises(ShmFullError, match="does not fit"),
    ):
        await transport.receive(location, small, DEADLINE_S)
    assert (await owner.ask("stats"))["offers"] == 1
    with ShmSegmentStore(f"{run_id}s", 2 * MIB) as enough:
        received = await transport.receive(location, enough, DEADLINE_S)
        with map_location(received) as mapped:
            assert hashlib.sha256(mapped.view).digest() == hashlib.sha256(content(2 * MIB).data).digest()


async def test_memory_of_segments_that_are_gone_is_not_kept(transport, run_id, start_peer, until):
    owner = start_peer("tcp")
    with ShmSegmentStore(f"{run_id}k", 64 * MIB) as store:  # does not recycle
        for seed in range(3):
            location = await owner.offer(4 * MIB, seed)
            received = await transport.receive(location, store, DEADLINE_S)
            store.drop(received)
        await until(lambda: transport.stats().registered_bytes == 0)


async def test_a_transport_that_has_nothing_to_do_leaves_the_processor_to_others(
    transport, segments, start_peer
):
    received = await transport.receive(await start_peer("tcp").offer(MIB), segments, DEADLINE_S)
    await transport.offer(received, duration_s=60.0)
    used, began = time.process_time(), time.monotonic()
    await asyncio.sleep(2.0)
    share = (time.process_time() - used) / (time.monotonic() - began)
    assert share < 0.15, "a thread of NIXL polls without a pause unless it is told not to"


async def test_an_agent_listens_on_its_interface_only(transport, segments, start_peer):
    owner = start_peer("tcp")
    segments.drop(await transport.receive(await owner.offer(MIB), segments, DEADLINE_S))
    output = await listening("-Htlnp")
    for pid in (owner.pid, os.getpid()):
        local = [line.split()[3] for line in output.splitlines() if f"pid={pid}," in line]
        assert local, output
        assert all(address.startswith("127.0.0.1:") for address in local), json.dumps(local)
    assert f"pid={owner.pid}," not in await listening("-Hulnp")
