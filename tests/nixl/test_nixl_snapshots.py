"""An adapter's snapshot crosses to another process with NIXL and is verified by its manifest's digest."""

import asyncio
import hashlib
from base64 import b64decode

import msgspec
import numpy as np
import pytest

from art_dataplane import NixlLocation, ShmError, SnapshotError, SnapshotManifest, decode, read_tensors
from art_dataplane.host_receiver import HostReceiver, receive_snapshot

DEADLINE_S = 30.0


def content(byte_count, seed):
    return np.random.default_rng(seed).integers(0, 256, byte_count, dtype=np.uint8)


async def test_a_snapshot_of_another_process_is_mapped_with_its_tensors(transport, segments, start_peer):
    owner = start_peer("tcp")
    manifest = decode(b64decode(await owner.ask("offer_snapshot", version=9)), SnapshotManifest)
    assert isinstance(manifest.location, NixlLocation)
    with pytest.raises(ShmError, match="is on another host; receive it first"):
        read_tensors(manifest)
    received = await transport.receive(manifest.location, segments, DEADLINE_S)
    local = msgspec.structs.replace(manifest, location=received)
    with read_tensors(local) as tensors:
        assert (tensors.manifest.version, list(tensors)) == (9, ["a.lora_A.weight", "a.lora_B.weight"])
        assert tensors["a.lora_A.weight"].dtype == "float32"
        assert bytes(tensors["a.lora_A.weight"].data) == content(131072, 1).tobytes()
        assert tensors["a.lora_B.weight"].shape == (512, 64)
        assert bytes(tensors["a.lora_B.weight"].data) == content(65536, 2).tobytes()
    expected = hashlib.blake2b(
        content(131072, 1).tobytes() + content(65536, 2).tobytes(), digest_size=32
    ).hexdigest()
    assert manifest.digest == expected
    other = msgspec.structs.replace(local, digest="0" * 64)
    with pytest.raises(SnapshotError, match="they were changed or belong to another snapshot"):
        read_tensors(other)


async def test_all_of_a_host_share_one_read_of_a_snapshot(transport, segments, start_peer):
    manifest = decode(b64decode(await start_peer("tcp").ask("offer_snapshot", version=3)), SnapshotManifest)
    receiver = HostReceiver(segments, {"nixl": transport})
    first, second = await asyncio.gather(
        *(receive_snapshot(manifest, receiver, DEADLINE_S) for _ in range(2))
    )
    assert first == second
    assert segments.stats().segment_count == 1
    with read_tensors(second) as tensors:
        assert bytes(tensors["a.lora_B.weight"].data) == content(65536, 2).tobytes()
    assert receiver.release(first.location)
    assert receiver.release(second.location)
    assert segments.stats().segment_count == 0
    await receiver.close(1.0)
