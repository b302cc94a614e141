"""``python -m benchmarks.stream``; run from the repository's root."""

import argparse
import asyncio
import json
import mmap
import os
import platform
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import table
from benchmarks.stream.task import PIECE_BYTES, REQUEST_BYTES, fill

from art_dataplane import ShmSegmentStore, StreamLocation, decode_json, map_location
from art_dataplane.stream import StreamTransport
from art_dataplane.stream_mac import MAC_NAMES

ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
_SMALL = 4096
_DEADLINE_S = 60.0
_BARE = "bare socket"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all in turn; returns an exit status."""
    options = _parser().parse_args(arguments)
    sizes = [_SMALL, *(mebibytes * _MIB for mebibytes in options.mebibytes)]
    run_id = f"stream-{uuid.uuid4().hex[:8]}"
    owner = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stream.owner", run_id, options.host, *map(str, sizes)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        seconds = asyncio.run(_measure(owner, run_id, options.host, sizes, options.repeats))
    finally:
        owner.communicate(timeout=_DEADLINE_S)
    _report(options, seconds)
    table.write(options.json, _rows(seconds), seconds)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = table.parser(
        "stream",
        "Reads the same segment from another process by a bare socket and by StreamTransport.",
        repeats=9,
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1; or ::1")
    parser.add_argument("--mebibytes", type=int, nargs="+", default=[1, 8, 64, 128, 256, 512], metavar="N")
    return parser


Seconds = dict[str, dict[str, list[float]]]


async def _measure(
    owner: "subprocess.Popen[str]", run_id: str, host: str, sizes: list[int], repeats: int
) -> Seconds:
    assert owner.stdin is not None
    assert owner.stdout is not None
    port = int(owner.stdout.readline())
    most = max(sizes)
    expected, buffer = mmap.mmap(-1, most), mmap.mmap(-1, most)
    fill(memoryview(expected))
    fill(memoryview(buffer))  # touches the pages
    transport = StreamTransport(host)
    seconds: Seconds = {}
    for size in sizes:
        with (
            ShmSegmentStore(run_id, 2 * size + 8192, recycle_bytes=size + 4096) as store,
            memoryview(expected)[:size] as right,
            memoryview(buffer)[:size] as into,
        ):
            found: dict[str, list[float]] = {_BARE: [], **{mac: [] for mac in MAC_NAMES}, "offer": []}
            for turn in range(1 + (repeats if size > _SMALL else 20 * repeats)):
                took = {_BARE: _bare(host, port, into, right)}
                for mac in MAC_NAMES:
                    owner.stdin.write(f"{mac} {size}\n")
                    owner.stdin.flush()
                    told = json.loads(owner.stdout.readline())
                    location = decode_json(told["location"].encode(), StreamLocation)
                    took[mac] = await _stream(transport, location, store, right)
                    took["offer"] = told["seconds"]
                if turn:  # the first one is a rehearsal
                    for name, value in took.items():
                        found[name].append(value)
            seconds[str(size)] = found
    await transport.close(5.0)
    return seconds


def _bare(host: str, port: int, into: memoryview, right: memoryview) -> float:
    into[:1], into[-1:] = b"\0", b"\0"
    began = time.perf_counter()
    with socket.create_connection((host, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(len(into).to_bytes(REQUEST_BYTES))
        filled = 0
        while filled < len(into):
            filled += connection.recv_into(into[filled : filled + PIECE_BYTES])
        seconds = time.perf_counter() - began
    if into != right:
        raise SystemExit("the bare socket read other bytes")
    return seconds


async def _stream(
    transport: StreamTransport, location: StreamLocation, store: ShmSegmentStore, right: memoryview
) -> float:
    began = time.perf_counter()
    received = await transport.receive(location, store, _DEADLINE_S)
    seconds = time.perf_counter() - began
    with map_location(received) as mapped:
        if mapped.view != right:
            raise SystemExit("the stream read other bytes")
    store.drop(received, reusable=True)
    return seconds


def _rows(seconds: Seconds) -> list[table.Row]:
    notes = {
        "aes-gmac": "with the extra `stream`; the ratio is the share of what the bare socket moves",
        "hmac-sha256": "without the extra; one core hashes slower than the socket moves, on two processors",
    }
    return [
        table.compare(
            f"{int(size) // _MIB} MiB, {mac}",
            _BARE,
            found[mac],
            found[_BARE],
            aim=0.5,
            note=f"mutual proof of the secret, every byte verified; {notes[mac]}",
        )
        for size, found in seconds.items()
        if int(size) > _SMALL
        for mac in MAC_NAMES
    ]


def _report(options: argparse.Namespace, seconds: Seconds) -> None:
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors, two processes, {options.host}")
    print(f"medians of {options.repeats}; share of what the bare socket moves: median of pairs")
    print()
    names = [_BARE, *MAC_NAMES]
    shares = [f"{mac}, share" for mac in MAC_NAMES]
    print(" " * 10 + "".join(f"{name:>20}" for name in (*names, *shares)))
    for size, found in seconds.items():
        if int(size) > _SMALL:
            cells = [f"{int(size) / _MIB / median(found[name]):.0f} MiB/s" for name in names]
            cells += [f"{_share(found, mac):.0%}" for mac in MAC_NAMES]
            print(f"{int(size) // _MIB:>6} MiB" + "".join(f"{cell:>20}" for cell in cells))
    print()
    small = seconds[str(_SMALL)]
    latency = ", ".join(f"{name} {median(small[name]) * 1e6:.0f} us" for name in names)
    print(f"latency of {_SMALL} bytes, connecting included: {latency}")
    largest = max(seconds, key=int)
    offers = median(seconds[largest]["offer"]) * 1e3, median(small["offer"]) * 1e3
    print(
        f"making an offer, not in the above: {offers[0]:.1f} ms for the largest, {offers[1]:.1f} ms for least"
    )


def _share(found: dict[str, list[float]], mac: str) -> float:
    return median(bare / ours for bare, ours in zip(found[_BARE], found[mac], strict=True))


if __name__ == "__main__":
    sys.exit(main())
