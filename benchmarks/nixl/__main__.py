"""``python -m benchmarks.nixl``; run from the repository's root."""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from base64 import b64decode
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks import table
from benchmarks.nixl.raw import DEADLINE_S, RawMemory, content, raw_agent, raw_read

from art_dataplane import NixlLocation, ShmSegmentStore, decode, map_location
from art_dataplane.nixl import NixlTransport

ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
_WAYS = {"cma": "", "tcp": "tcp"}
"""UCX's choice between processes of one host (it copies through the kernel), and TCP forced."""

Seconds = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both in turn; returns an exit status."""
    options = _parser().parse_args(arguments)
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors; medians of {options.repeats}")
    print(
        "NIXL alone registers, describes, reads and polls; NixlTransport.receive also allocates the segment,"
    )
    print("looks twice whether the offer stands, sums the bytes and tells the owner.")
    found: dict[str, dict[int, Seconds]] = {}
    for way in options.ways:
        print(f"\n{way:<5}{'MiB':>6}{'NIXL':>12}{'ours':>12}{'NIXL':>13}{'ours':>13}{'share':>8}", flush=True)
        found[way] = _measure(_WAYS[way], options.mebibytes, options.repeats)
    table.write(options.json, _rows(found), found)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = table.parser(
        "nixl",
        "Reads the same bytes from another process by NIXL alone and by NixlTransport, in turn.",
        repeats=15,
    )
    parser.add_argument("--ways", nargs="+", choices=list(_WAYS), default=list(_WAYS), metavar="WAY")
    parser.add_argument("--mebibytes", type=int, nargs="+", default=[1, 16, 64, 256], metavar="N")
    return parser


def _rows(found: dict[str, dict[int, Seconds]]) -> list[table.Row]:
    ways = {
        "cma": "one copy through the kernel, UCX's choice on one host",
        "tcp": "TCP forced, over loopback",
    }
    return [
        table.compare(
            f"{mebibytes} MiB, {way}",
            f"NIXL {version('nixl-cu12')} alone",
            seconds["ours"],
            seconds["raw"],
            aim=0.8 if mebibytes == 64 else None,
            note=f"{ways[way]}; ART also allocates, sums every byte, looks twice whether the offer stands",
        )
        for way, sizes in found.items()
        for mebibytes, seconds in sizes.items()
    ]


def _measure(transports: str, mebibytes: list[int], repeats: int) -> dict[int, Seconds]:
    run_id = f"nixl-{uuid.uuid4().hex[:8]}"
    sizes = [size * _MIB for size in mebibytes]
    owner = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.nixl.owner", run_id, transports, *map(str, sizes)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        names = [name for name in transports.split(",") if name]
        return asyncio.run(_read(run_id, names, _told(owner), sizes, repeats))
    finally:
        owner.communicate(timeout=DEADLINE_S)


async def _read(
    run_id: str, transports: list[str], told: Any, sizes: list[int], repeats: int
) -> dict[int, Seconds]:
    transport = NixlTransport(["lo"], transports=transports)
    agent = raw_agent(f"{run_id}-reader", transports)
    peer = agent.add_remote_agent(b64decode(told["metadata"])).decode()
    found = {}
    try:
        with ShmSegmentStore(run_id, 2 * sum(sizes), recycle_bytes=sum(sizes)) as segments:
            for size, (text, address) in zip(sizes, told["offers"], strict=True):
                location = decode(b64decode(text), NixlLocation)
                memory = RawMemory(size)
                seconds: Seconds = {"raw": [], "ours": []}
                for repeat in range(-2, repeats):  # two to warm up
                    began = time.perf_counter()
                    raw_read(agent, peer, memory, address, size)
                    raw = time.perf_counter() - began
                    began = time.perf_counter()
                    received = await transport.receive(location, segments, DEADLINE_S)
                    ours = time.perf_counter() - began
                    if repeat < 0:
                        _check(size, memory, received)
                        memory.bytes[:] = 0
                    else:
                        seconds["raw"].append(raw)
                        seconds["ours"].append(ours)
                    segments.drop(received, reusable=True)
                found[size // _MIB] = seconds
                _print_row(size // _MIB, seconds)
        return found
    finally:
        await transport.close(5.0)


def _told(owner: "subprocess.Popen[str]") -> Any:
    assert owner.stdout is not None
    for line in owner.stdout:
        if line.startswith("{"):  # UCX writes its warnings there, too
            return json.loads(line)
    raise SystemExit(f"the owner ended with status {owner.wait()}")


def _print_row(mebibytes: int, seconds: Seconds) -> None:
    raw, ours = median(seconds["raw"]), median(seconds["ours"])
    share = median(r / o for r, o in zip(seconds["raw"], seconds["ours"], strict=True))
    print(
        f"{'':<5}{mebibytes:>6}{raw * 1e3:>9.2f} ms{ours * 1e3:>9.2f} ms"
        f"{mebibytes / 1024 / raw:>7.2f} GiB/s{mebibytes / 1024 / ours:>7.2f} GiB/s{share:>8.0%}",
        flush=True,
    )


def _check(size: int, memory: RawMemory, received: Any) -> None:
    expected = content(size)
    with map_location(received) as mapped:
        ours = np.array_equal(np.frombuffer(mapped.view, np.uint8), expected)
    if not ours or not np.array_equal(memory.bytes, expected):
        raise SystemExit("bytes arrived that were not sent")


if __name__ == "__main__":
    raise SystemExit(main())
