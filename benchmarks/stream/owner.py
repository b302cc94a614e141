"""The process that has the bytes. Serves them over a bare socket, and offers them when it is told to.

It prints the port of the bare socket, and for each line ``MAC SIZE`` on its input the location of a new offer
and the seconds that making it took.
"""

import asyncio
import json
import socket
import sys
import threading
import time

from benchmarks.stream.task import PIECE_BYTES, REQUEST_BYTES, fill

from art_dataplane import ShmLocation, ShmSegmentStore, encode_json, map_location
from art_dataplane.stream import StreamTransport
from art_dataplane.stream_mac import MAC_NAMES


def main(run_id: str, host: str, sizes: list[int]) -> None:
    """Serves until its input ends."""
    with ShmSegmentStore(run_id, max(sizes) + 4096) as store:
        with store.reserve(max(sizes)) as reservation:
            fill(reservation.buffer)
            whole = reservation.commit()
        segments = {size: ShmLocation(whole.name, 0, size) for size in sizes}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listener:
            threading.Thread(target=_serve, args=(listener, segments), daemon=True).start()
            print(listener.getsockname()[1], flush=True)
            asyncio.run(_offer(host, segments))


def _serve(listener: socket.socket, segments: dict[int, ShmLocation]) -> None:
    mapped = {size: map_location(location) for size, location in segments.items()}
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            size = int.from_bytes(connection.recv(REQUEST_BYTES, socket.MSG_WAITALL))
            for start in range(0, size, PIECE_BYTES):
                connection.sendall(mapped[size].view[start : start + PIECE_BYTES])


async def _offer(host: str, segments: dict[int, ShmLocation]) -> None:
    transports = {mac: StreamTransport(host, mac=mac) for mac in MAC_NAMES}
    while line := await asyncio.to_thread(sys.stdin.readline):
        mac, size = line.split()
        began = time.perf_counter()
        location = await transports[mac].offer(segments[int(size)], duration_s=600.0)
        seconds = time.perf_counter() - began
        print(json.dumps({"location": encode_json(location).decode(), "seconds": seconds}), flush=True)
    for transport in transports.values():
        await transport.close(5.0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])
