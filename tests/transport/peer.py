"""A process of a host: ``peer.py owner RUN HOST SIZE MAC`` or ``peer.py reader RUN USERS DEADLINE``.

An owner prints the location of its offer and, when its input ends, what it counted. A reader takes a location
from its input, prints ``admitted`` once the owner has begun to send, goes on after one more line, and prints
what it read.
"""

import asyncio
import hashlib
import json
import sys

from art_dataplane import (
    DataPlaneError,
    Reservation,
    ShmSegmentStore,
    StreamLocation,
    decode_json,
    encode_json,
    map_location,
)
from art_dataplane.host_receiver import HostReceiver
from art_dataplane.stream import StreamTransport


class HeldStore(ShmSegmentStore):
    """Reserves when it is told to; the owner is in the middle of sending until then."""

    def reserve(self, byte_count: int) -> Reservation:
        print("admitted", flush=True)
        sys.stdin.readline()
        return super().reserve(byte_count)


async def own(run_id: str, host: str, size: int, mac: str) -> None:
    transport = StreamTransport(host, mac=mac)
    with ShmSegmentStore(run_id, size + 8192) as store:
        with store.reserve(size) as reservation:
            reservation.buffer[:] = bytes(range(251)) * (size // 251) + bytes(size % 251)
            source = reservation.commit()
        location = await transport.offer(source, duration_s=60.0, reads=1)
        print(encode_json(location).decode(), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        counted = transport.stats()
        await transport.close(5.0)
    print(encode_json(counted).decode(), flush=True)


async def read(run_id: str, users: int, deadline_s: float) -> None:
    location = decode_json(sys.stdin.readline().encode(), StreamLocation)
    transport = StreamTransport("127.0.0.1")
    with HeldStore(run_id, location.byte_count + 8192) as store:
        receiver = HostReceiver(store, {"stream": transport})
        loop = asyncio.get_running_loop()
        began = loop.time()
        found: dict[str, object] = {}
        asked = (receiver.local(location, deadline_s, users=users) for _ in range(users))
        received = await asyncio.gather(*asked, return_exceptions=True)
        found["seconds"] = loop.time() - began
        found["errors"] = [type(one).__name__ for one in received if isinstance(one, DataPlaneError)]
        if not found["errors"]:
            with map_location(received[0]) as mapped:
                found["digest"] = hashlib.sha256(mapped.view).hexdigest()
            found["names"] = len(set(received))
            for one in received:
                receiver.release(one)
        found["kept"] = store.stats().segment_count
        await receiver.close(5.0)
        await transport.close(5.0)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "owner":
        asyncio.run(own(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
    else:
        asyncio.run(read(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
