"""A process of another host: offers and receives segments as its standard input asks, one JSON line each."""

import asyncio
import hashlib
import json
import os
import sys
import time
from base64 import b64decode, b64encode
from typing import Any

import msgspec
import numpy as np

from art_dataplane import (
    DataPlaneError,
    NamedTensor,
    NixlLocation,
    ShmLocation,
    ShmSegmentStore,
    decode,
    encode,
    map_location,
    write_manifest,
)
from art_dataplane.nixl import NixlTransport


def content(byte_count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, byte_count, dtype=np.uint8)


class Peer:
    def __init__(self, run_id: str, devices: list[str], transports: list[str]) -> None:
        self.store = ShmSegmentStore(run_id, 4 << 30, recycle_bytes=1 << 30)
        self.transport = NixlTransport(devices, transports=transports)
        self.offered: dict[str, ShmLocation] = {}

    async def offer(self, byte_count: int, seed: int, duration_s: float = 60.0, reads: int = 1) -> Any:
        with self.store.reserve(byte_count) as reservation:
            reservation.buffer[:] = content(byte_count, seed)
            source = reservation.commit()
        location = await self.transport.offer(source, duration_s=duration_s, reads=reads)
        self.offered[location.transfer_id] = source
        return b64encode(encode(location)).decode()

    async def offer_snapshot(self, version: int) -> Any:
        tensors = [
            NamedTensor("a.lora_A.weight", "float32", (64, 512), content(131072, 1).data),
            NamedTensor("a.lora_B.weight", "bfloat16", (512, 64), content(65536, 2).data),
        ]
        manifest = write_manifest(version, '{"peft_type": "LORA"}', tensors, self.store)
        location = await self.transport.offer(manifest.location, duration_s=60.0)
        return b64encode(encode(msgspec.structs.replace(manifest, location=location))).decode()

    async def withdraw(self, location: str) -> Any:
        return await self.transport.withdraw(decode(b64decode(location), NixlLocation))

    async def drop(self, transfer_id: str) -> Any:
        return self.store.drop(self.offered.pop(transfer_id), reusable=True)

    async def overwrite(self, transfer_id: str, at: int) -> Any:
        with map_location(self.offered[transfer_id]) as mapped:
            byte = mapped.view[at] ^ 1
        descriptor = os.open(f"/dev/shm/{self.offered[transfer_id].name}", os.O_WRONLY)
        os.pwrite(descriptor, bytes([byte]), at)
        os.close(descriptor)
        return True

    async def receive(self, location: str, deadline_s: float) -> Any:
        began = time.perf_counter()
        received = await self.transport.receive(
            decode(b64decode(location), NixlLocation), self.store, deadline_s
        )
        seconds = time.perf_counter() - began
        with map_location(received) as mapped:
            digest = hashlib.sha256(mapped.view).hexdigest()
        self.store.drop(received, reusable=True)
        return {"digest": digest, "seconds": seconds}

    async def stats(self) -> Any:
        return msgspec.to_builtins(self.transport.stats())

    async def close(self) -> Any:
        await self.transport.close(2.0)
        return True


async def main() -> None:
    peer = Peer(sys.argv[1], sys.argv[2].split(","), [name for name in sys.argv[3].split(",") if name])
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            try:
                answer = {"result": await getattr(peer, request.pop("do"))(**request)}
            except DataPlaneError as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        await peer.transport.close(2.0)
        peer.store.close()


asyncio.run(main())
